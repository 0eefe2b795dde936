package httpsink

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/onlyonce/onlyonce/internal/dialguard"
	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/frozen"
	"github.com/onlyonce/onlyonce/outbox"
)

// Config describes one remote. The zero value of a field is the default that its comment names.
type Config struct {
	// Name identifies the sink: calls with this name in Call.Sink are sent by it. Required.
	Name string

	// BaseURL is where calls go: a scheme (http or https), a host and an optional path, to which
	// Call.Target is appended. For example "https://api.example.com/v1". It must not hold a query,
	// a user or a password. A row cannot make the sink call another host or leave the path.
	// Required.
	BaseURL string

	// Profile says how the remote takes idempotency keys and how long it remembers them: [Stripe],
	// [PayPal], [Square], [Adyen], [Standard], or one of your own. Defaults to the call's key as a
	// bare UUID in the header Idempotency-Key.
	Profile Profile

	// KeyWindow is how long the remote remembers a key, by its documentation or your contract. 24
	// hours is common; use [outbox.Forever] if the remote never forgets a key. See outbox.Limits
	// for the effect of a wrong value. Defaults to the profile's window; required if the profile
	// has none.
	KeyWindow time.Duration

	// RequestIDHeader is a header with a new random UUID at each attempt, for example
	// "X-Request-Id", so that the remote's logs, which see one key, distinguish the attempts. A
	// call that has the header keeps its own value. It must differ from the key's header. Set it
	// only if the remote does not compare the header under a key. Defaults to none.
	RequestIDHeader string

	// Timeout bounds one attempt, from connecting to the last byte of the answer: 1 ms to 10
	// minutes. If it is shorter than the remote may take, the relay repeats calls that the remote
	// is still working on. The remote then answers 409 or with the first call's result. Defaults to
	// 30 s.
	Timeout time.Duration

	// ConnectTimeout bounds looking up the remote's name and connecting: 1 ms to Timeout. It
	// distinguishes a remote that is down from one that is slow. Defaults to 10 s, or to Timeout if
	// that is shorter.
	ConnectTimeout time.Duration

	// AllowPrivate allows connections to loopback, to private networks (10/8, 172.16/12,
	// 192.168/16, fc00::/7) and to the shared space 100.64/10. Set it for remotes in your own
	// network and in tests. Link-local, multicast, reserved and translated addresses and the
	// metadata services of clouds stay refused. Defaults to false: the sink connects to addresses
	// of the public Internet only, so that the owner of a name cannot make it call your own hosts.
	AllowPrivate bool

	// AllowNetworks lists additional networks that are allowed, of any kind: for example the
	// remote's own network, which is narrower than AllowPrivate, or 64:ff9b::/96 in a network that
	// reaches IPv4 through NAT64. An IPv6 address that embeds an IPv4 address is allowed if both
	// are. Defaults to none.
	AllowNetworks []netip.Prefix

	// AllowHosts lists the hosts that BaseURL may name: "api.example.com", or "*.example.com" for
	// every name below it. Set it if the base URL comes from a customer, for example a webhook's
	// address. Defaults to any host.
	AllowHosts []string

	// Authorize adds authentication to a request right before it is sent: a header, or parameters
	// in the query. See [Bearer] and [SecretHeader] for the common kinds. Defaults to none.
	//
	// It may read the request's headers and its body, for example to sign it. It must leave the
	// key, the method, the host, the path and the headers that are set as they are. It may append
	// parameters with other names to URL.RawQuery. It must not add headers of the connection, for
	// example Transfer-Encoding.
	//
	// Its context ends with the attempt. If it returns an error, the sink makes no call and the
	// relay tries again later; the error counts for the Breaker. It must be safe for concurrent
	// use.
	Authorize func(*http.Request) error

	// Breaker holds back calls while the host is down. See [Breaker] for its fields and their
	// defaults.
	Breaker Breaker

	// Outcomes overrides the meaning of statuses from 200 to 599. For example {404:
	// outbox.Delivered} for a DELETE that an earlier attempt has applied, or {422: outbox.Never} if
	// the remote answers 422 only after it has looked for the key: then no earlier attempt was
	// applied either. By default 2xx is delivered; 408, 409 and 5xx are retried; 425 and 429 are
	// postponed; 401 and 403 postpone the calls of the call's tenant, and reject a call that has
	// none; all other statuses are rejected. If the remote is an API in package idempotency, its
	// header Idempotency-Status says more than the status, and decides where Outcomes does not.
	Outcomes map[int]outbox.AttemptOutcome

	// Classify decides about an answer by its headers or body, for example by an error code. It
	// returns 0 to leave the answer to Outcomes and the defaults. It must be safe for concurrent
	// use. Defaults to none.
	Classify func(Answer) outbox.AttemptOutcome

	// CaptureHeaders lists the headers of the answer that are kept for a call with Call.Capture.
	// The first 64 KiB of the body are kept. Defaults to Content-Type, Location and X-Request-Id.
	CaptureHeaders []string

	// Transport holds settings for connecting: certificates, a proxy, a dialer of your own, the
	// time for a TLS handshake (10 s if it is not set) and for the wait for an answer's headers.
	// The sink clones it and uses the clone for HTTP/1.1, with a check before each write. Defaults
	// to a plain transport without a proxy.
	//
	// Set a proxy by its address, with [http.ProxyURL]. http.ProxyFromEnvironment is refused,
	// because libraries read no environment; clones of http.DefaultTransport have it. If there is a
	// proxy, the sink checks the proxy's address, and the proxy decides which addresses it reaches.
	// Connections of your own DialContext are checked once they are established, and those of a
	// DialTLSContext after the handshake.
	Transport *http.Transport
}

// ErrConfig is wrapped by every error of New.
var ErrConfig = errors.New("httpsink: invalid configuration")

// Sink sends calls over HTTP. Make one with [New]. It is safe for concurrent use.
type Sink struct {
	cfg       Config
	base      *url.URL
	transport *http.Transport
	failures  atomic.Int64 // in a row, see Breaker
}

// New returns a sink for one remote. It does not connect. If the configuration is wrong, the error
// lists every fault, each with its field, and wraps [ErrConfig].
func New(cfg Config) (*Sink, error) {
	l := &fields.List{Sentinel: ErrConfig, Struct: "Config"}
	if cfg.Name == "" {
		l.Add("Name", "must not be empty: calls name the sink by it, in Call.Sink")
	}
	base, err := parseBaseURL(cfg.BaseURL)
	if err != nil {
		l.Add("BaseURL", "%v", err)
	}
	cfg.checkAnswers(l)
	l.Span("Timeout", &cfg.Timeout, 30*time.Second, time.Millisecond, 10*time.Minute)
	cfg.checkKey(l)
	cfg.Breaker.withDefaults(l)
	l.Span("ConnectTimeout", &cfg.ConnectTimeout, min(10*time.Second, cfg.Timeout), time.Millisecond, cfg.Timeout)
	guard := cfg.checkAddresses(l, base)

	transport, err := gatedTransport(cfg.Transport, guard)
	if err != nil {
		l.Add("Transport", "%v", err)
	} else if transport.TLSHandshakeTimeout == 0 {
		transport.TLSHandshakeTimeout = min(10*time.Second, cfg.Timeout)
	}
	if err := l.Err(); err != nil {
		return nil, err
	}
	return &Sink{cfg: cfg, base: base, transport: transport}, nil
}

// checkAnswers checks what is kept of answers, and what their statuses mean.
func (cfg *Config) checkAnswers(l *fields.List) {
	if cfg.CaptureHeaders == nil {
		cfg.CaptureHeaders = []string{"Content-Type", "Location", "X-Request-Id"}
	}
	for _, name := range cfg.CaptureHeaders {
		if !frozen.Token(name) {
			l.Add("CaptureHeaders", "is %q: must be the name of a header", name)
		}
	}
	for status, o := range cfg.Outcomes {
		if status < 200 || status > 599 {
			l.Add("Outcomes", "%d is not a status from 200 to 599", status)
		}
		if o < outbox.Delivered || o > outbox.Unsafe {
			l.Add("Outcomes", "%d: %v is not an outcome", status, o)
		}
	}
}

// checkKey checks how the remote takes keys, and for how long it remembers them.
func (cfg *Config) checkKey(l *fields.List) {
	cfg.Profile.withDefaults(l)
	switch name := cfg.RequestIDHeader; {
	case name == "":
	case !frozen.Token(name) || frozen.Framing(http.CanonicalHeaderKey(name)):
		l.Add("RequestIDHeader", "%q is not the name of a header that a call may have", name)
	case http.CanonicalHeaderKey(name) == cfg.Profile.Header:
		l.Add("RequestIDHeader", "must differ from the key's header: the key is the same at each attempt")
	}
	cfg.KeyWindow = cmp.Or(cfg.KeyWindow, cfg.Profile.KeyWindow)
	if cfg.KeyWindow <= 0 {
		l.Add("KeyWindow", "must be set: how long the remote remembers a key, or outbox.Forever")
	}
}

// checkAddresses checks which hosts and networks the sink may connect to, and returns the guard
// that checks each connection. base is nil if BaseURL is wrong.
func (cfg *Config) checkAddresses(l *fields.List, base *url.URL) *dialguard.Guard {
	for i, n := range cfg.AllowNetworks {
		if err := dialguard.CheckNetwork(n); err != nil {
			l.Add(fmt.Sprintf("AllowNetworks[%d]", i), "%v", err)
		}
	}
	for i, h := range cfg.AllowHosts {
		if name := strings.TrimPrefix(h, "*."); name == "" ||
			strings.ContainsAny(name, "*/@ ") ||
			strings.HasPrefix(name, ".") {
			l.Add(fmt.Sprintf("AllowHosts[%d]", i), "%q must be a host's name, or *. and a name", h)
		}
	}
	guard := &dialguard.Guard{
		AllowPrivate:   cfg.AllowPrivate,
		AllowNetworks:  slices.Clone(cfg.AllowNetworks),
		ConnectTimeout: cfg.ConnectTimeout,
	}
	if base == nil {
		return guard
	}
	if !dialguard.HostMatches(base.Hostname(), cfg.AllowHosts) {
		l.Add("BaseURL", "its host %q is not among AllowHosts", base.Hostname())
	}
	if err := guard.CheckHost(base.Hostname()); err != nil {
		l.Add("BaseURL", "its host cannot be called: %v", err)
	}
	return guard
}

func parseBaseURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil {
		// The parser's error quotes the URL, which may hold a password.
		return nil, errors.New("is not a URL")
	}
	query := u.RawQuery != "" || u.ForceQuery
	fragment := u.Fragment != "" || strings.HasSuffix(s, "#")
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("must start with https:// or http://")
	case u.Hostname() == "":
		return nil, errors.New("must name a host")
	case u.User != nil:
		return nil, errors.New("must not hold a user or password: use Authorize")
	case query || fragment:
		return nil, errors.New("must not hold a query or fragment: Call.Target adds to its path")
	}
	if err := frozen.Target(u.EscapedPath()); err != nil {
		return nil, err
	}
	return u, nil
}
