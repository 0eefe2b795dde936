package httpsink

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/frozen"
	"github.com/onlyonce/onlyonce/outbox"
)

// Config describes one remote.
type Config struct {
	// Name is what Call.Sink says. Required.
	Name string

	// BaseURL is where calls go: scheme, host and an optional path that Call.Target is added to. Required; no query, no
	// user and password. A row cannot make the sink call another host, nor leave the path.
	BaseURL string

	// Profile is how the remote takes keys, and for how long it remembers them: [Stripe], [PayPal], [Square], [Adyen],
	// [Standard], or your own. The zero value is a bare UUID in Idempotency-Key.
	Profile Profile

	// KeyWindow is how long the remote remembers a key, by its documentation or your contract: 24 hours, often. [outbox.Forever]
	// where it never forgets. Default: the profile's window; required where that is not known. See
	// outbox.Limits for what a wrong value does.
	KeyWindow time.Duration

	// KeyHeader and QuotedKey are Profile.Header and FormString, for a remote without a profile. With a Profile they
	// must be left empty.
	KeyHeader string
	QuotedKey bool

	// Timeout bounds one attempt, from connecting to the last byte of the answer. Default 30 s, from 1 ms to 10 minutes.
	// Shorter than what the remote may take makes calls that it is still working on be sent again, which it
	// answers with 409, or with the first one's result.
	Timeout time.Duration

	// ConnectTimeout, TLSTimeout and AnswerTimeout bound parts of an attempt: looking up the name and connecting; the TLS
	// handshake; waiting for the answer's headers once the request has gone out. Each from 1 ms to Timeout. Defaults 10 s, 10 s
	// and Timeout, or Timeout where that is shorter. A remote that is down is told apart from one that is slow by
	// the first two. Those of Transport count where they are set and these are not.
	ConnectTimeout, TLSTimeout, AnswerTimeout time.Duration

	// AllowPrivate allows connections to loopback, to private networks (10/8, 172.16/12, 192.168/16, fc00::/7) and to the
	// shared space 100.64/10. Without it only addresses of the public Internet are connected to, so that
	// whoever decides what a name resolves to cannot make the sink call your own hosts. Set it for remotes inside, and in
	// tests. Link-local, multicast, reserved and translated addresses and metadata services of clouds stay refused.
	AllowPrivate bool

	// AllowNetworks are networks that are allowed besides, whatever they are: the one that the remote is in, more
	// narrowly than by AllowPrivate; or 64:ff9b::/96 in a network that reaches IPv4 through NAT64. An IPv6 address that holds
	// an IPv4 address is allowed if both are.
	AllowNetworks []netip.Prefix

	// AllowHosts are the hosts that BaseURL may name: "api.example.com", or "*.example.com" for all below it. For programs
	// that get the base URL from somebody else (a customer's webhook). Empty: any.
	AllowHosts []string

	// Authorize adds authentication to a request right before it is sent: a header, or parameters in the query. It may read
	// the request's body (to sign it) and its headers; the key, the method, the host and the path must stay as they
	// are, and so must the headers that are there, in whatever case, and the query: parameters of other names may be appended to URL.RawQuery, and no header of the
	// connection may be added. Its context ends with the attempt. An error puts the call off, and no call is made.
	// See [Bearer] and [SecretHeader] for the common ones. Nil: nothing is added.
	Authorize func(*http.Request) error

	// Breaker stops calls while the host is down; see [Breaker] for the defaults.
	Breaker Breaker

	// Outcomes overrules what a status means: {401: outbox.Retry} for credentials that expire, {404: outbox.Delivered}
	// for a DELETE that was applied before. Without it 2xx is delivered; 408, 409, 425, 429 and 5xx are retried; all
	// else is rejected.
	Outcomes map[int]outbox.Outcome

	// CaptureHeaders are the headers that are kept of an answer that a call asks for (Call.Capture). Default Content-Type, Location and
	// X-Request-Id. Of the body the first 64 KiB are kept.
	CaptureHeaders []string

	// Transport holds what connecting needs: certificates, a proxy, a dialer of your own. It is cloned, and used for HTTP/1.1
	// with a check on each write. Nil: a plain one without a proxy.
	//
	// A proxy must be set by its address ([http.ProxyURL]): libraries read no environment, so http.ProxyFromEnvironment is
	// refused, which clones of http.DefaultTransport have. With a proxy its address is the one that is checked,
	// and which addresses may be reached through it is for the proxy to say. Connections of a DialContext of your own are
	// checked when they stand, and those of a DialTLSContext after the handshake.
	Transport *http.Transport
}

// ErrConfig is wrapped by every error of New.
var ErrConfig = errors.New("httpsink: bad configuration")

// New checks the configuration and returns every fault of it at once. It does not connect.
func New(cfg Config) (*Sink, error) {
	var faults []error
	fault := func(field, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: %s: %s", ErrConfig, field, fmt.Sprintf(format, args...)))
	}
	if cfg.Name == "" {
		fault("Name", "must not be empty: it is what Call.Sink says")
	}
	base, err := baseURL(cfg.BaseURL)
	if err != nil {
		fault("BaseURL", "%v", err)
	}
	if cfg.CaptureHeaders == nil {
		cfg.CaptureHeaders = []string{"Content-Type", "Location", "X-Request-Id"}
	}
	for _, name := range cfg.CaptureHeaders {
		if !frozen.Token(name) {
			fault("CaptureHeaders", "%q is not a header name", name)
		}
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 30 * time.Second
	}
	if cfg.Timeout < time.Millisecond || cfg.Timeout > 10*time.Minute {
		fault("Timeout", "%v is not from 1ms to 10m", cfg.Timeout)
	}
	field := "Profile"
	if cfg.KeyHeader != "" || cfg.QuotedKey {
		if cfg.Profile != (Profile{}) {
			fault("KeyHeader and QuotedKey", "must be empty with a Profile, which says the same")
		} else if cfg.Profile.Header = cfg.KeyHeader; cfg.QuotedKey {
			cfg.Profile.Form = FormString
		}
		field = "KeyHeader"
	}
	profile, wrong := cfg.Profile.withDefaults()
	for _, err := range wrong {
		fault(field, "%v", err)
	}
	cfg.Profile = profile
	if cfg.KeyWindow == 0 {
		cfg.KeyWindow = profile.Window
	}
	if cfg.KeyWindow <= 0 {
		fault("KeyWindow", "must be set: how long the remote remembers a key, or outbox.Forever")
	}
	if cfg.Breaker, wrong = cfg.Breaker.withDefaults(); len(wrong) > 0 {
		for _, err := range wrong {
			fault("Breaker", "%v", err)
		}
	}
	for status, o := range cfg.Outcomes {
		if status < 200 || status > 599 {
			fault("Outcomes", "%d is not a status from 200 to 599", status)
		}
		if o != outbox.Delivered && o != outbox.Retry && o != outbox.Rejected {
			fault("Outcomes", "%d: %v is not an outcome", status, o)
		}
	}
	phase := func(field string, d *time.Duration, def time.Duration) (set bool) {
		if *d == 0 {
			*d = min(def, max(cfg.Timeout, time.Millisecond))
			return false
		}
		if *d < time.Millisecond || *d > cfg.Timeout {
			fault(field, "%v is not from 1ms to Timeout, %v", *d, cfg.Timeout)
		}
		return true
	}
	phase("ConnectTimeout", &cfg.ConnectTimeout, 10*time.Second)
	setTLS := phase("TLSTimeout", &cfg.TLSTimeout, 10*time.Second)
	setAnswer := phase("AnswerTimeout", &cfg.AnswerTimeout, cfg.Timeout)

	for i, n := range cfg.AllowNetworks {
		if !n.IsValid() || n.Addr().Is4In6() {
			fault(fmt.Sprintf("AllowNetworks[%d]", i), "%v is not a network (write those of IPv4 as 10.0.0.0/8)", n)
		}
	}
	for i, h := range cfg.AllowHosts {
		if name := strings.TrimPrefix(h, "*."); name == "" || strings.ContainsAny(name, "*/@ ") || strings.HasPrefix(name, ".") {
			fault(fmt.Sprintf("AllowHosts[%d]", i), "%q must be a host's name, or *. and a name", h)
		}
	}
	g := &guard{private: cfg.AllowPrivate, networks: slices.Clone(cfg.AllowNetworks), timeout: cfg.ConnectTimeout}
	if base != nil {
		if !allowedHost(base.Hostname(), cfg.AllowHosts) {
			fault("BaseURL", "its host %q is not among AllowHosts", base.Hostname())
		}
		if err := g.host(base.Hostname()); err != nil {
			fault("BaseURL", "its host cannot be called: %v", err)
		}
	}

	transport, err := gatedTransport(cfg.Transport, g)
	if err != nil {
		fault("Transport", "%v", err)
	} else {
		if setTLS || transport.TLSHandshakeTimeout == 0 {
			transport.TLSHandshakeTimeout = cfg.TLSTimeout
		}
		if setAnswer || transport.ResponseHeaderTimeout == 0 {
			transport.ResponseHeaderTimeout = cfg.AnswerTimeout
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return &Sink{cfg: cfg, base: base, transport: transport, breaker: newBreaker(cfg.Breaker)}, nil
}

func baseURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return nil, errors.New("is not a URL") // the error would quote it, and it may hold a password
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("must start with https:// or http://")
	case u.Hostname() == "":
		return nil, errors.New("must name a host")
	case u.User != nil:
		return nil, errors.New("must not hold a user or password: use Authorize")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(s, "#"):
		return nil, errors.New("must not hold a query or fragment: Call.Target adds to its path")
	}
	if err := frozen.Target(u.EscapedPath()); err != nil {
		return nil, err
	}
	return u, nil
}
