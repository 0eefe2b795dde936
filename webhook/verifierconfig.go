package webhook

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/webhook/internal/received"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// VerifierConfig describes how an endpoint's sender signs. The zero value of a field is the default
// that its comment names.
type VerifierConfig struct {
	// Provider is the sender's way of signing: [Standard], [Stripe], [GitHub], [Shopify], [Slack],
	// [HMAC], one of the packages below this one, for example paypal, or your own. Required.
	Provider Provider

	// Secrets are the currently valid secrets, in the provider's own form: 1 to 8, each of at least
	// 16 characters. While you replace one, list the old and the new one, in any order. Required:
	// without a secret, anyone could send. They must be empty for a sender that signs with a
	// certificate (PayPal, SNS).
	Secrets []string

	// Tolerance is how far the signed time may be from this machine's clock, in the directions that
	// the provider's scheme checks: 1 s to 24 hours. It must be 0 for a provider that signs no
	// time, for example GitHub. Defaults to the provider's, for example 5 minutes.
	//
	// If it is shorter than a sender's queue delay or a clock's error, the Verifier refuses valid
	// requests. If it is longer, an attacker can send a recorded request for longer, and
	// deduplication has to catch it.
	Tolerance time.Duration

	// MaxBody is the longest body, in bytes, up to 32 MiB. Defaults to 1 MiB.
	MaxBody int

	// KeepHeaders are headers that Event.Header has besides Content-Type and those of the provider,
	// for example "X-Request-Id". They are not signed. Credentials and signatures are refused.
	// Defaults to none.
	KeepHeaders []string
}

const (
	defaultMaxBody = 1 << 20
	maxMaxBody     = 32 << 20
	maxSecrets     = 8
)

// neverKept are headers with which a reader of the stored event could act as another user (W14).
var neverKept = []string{"Authorization", "Cookie", "Proxy-Authorization", "Set-Cookie", "Www-Authenticate", "X-Api-Key"}

// NewVerifier checks the configuration and returns every fault of it at once. No error quotes a
// secret.
func NewVerifier(cfg VerifierConfig) (*Verifier, error) {
	return newVerifier(cfg, received.MinSecret, "VerifierConfig")
}

// newVerifier makes a Verifier. of is the type whose fields a fault names.
func newVerifier(cfg VerifierConfig, shortest int, of string) (*Verifier, error) {
	l := &fields.List{Sentinel: ErrConfig, Struct: of}
	sender := &scheme.Scheme{}
	if cfg.Provider == nil {
		l.Add("Provider", "must be set: it says how the sender signs")
	} else if s, err := cfg.Provider.Scheme(); err != nil {
		l.Add("Provider", "%v", err)
	} else if s == nil || s.Name == "" || s.Key == nil && s.Certificates == nil || s.Read == nil || s.Event == nil {
		l.Add("Provider", "its scheme lacks Name, Key, Read or Event")
	} else {
		copied := *s
		sender = &copied
	}
	v := &Verifier{scheme: sender, maxBody: cfg.MaxBody, past: sender.Past, future: sender.Future}
	v.setTolerance(l, cfg.Tolerance)
	if cfg.MaxBody == 0 {
		v.maxBody = defaultMaxBody
	} else if cfg.MaxBody < 0 || cfg.MaxBody > maxMaxBody {
		l.Add("MaxBody", "is %d: must be from 1 to %d", cfg.MaxBody, maxMaxBody)
	}
	v.setKeys(l, cfg.Secrets, shortest)
	v.setKeptHeaders(l, cfg.KeepHeaders)
	if err := l.Err(); err != nil {
		return nil, err
	}
	return v, nil
}

// setTolerance replaces the bounds of the scheme that are not zero.
func (v *Verifier) setTolerance(l *fields.List, tolerance time.Duration) {
	switch timed := v.past > 0 || v.future > 0; {
	case v.past < 0 || v.future < 0:
		l.Add("Provider", "its scheme has a negative Past or Future")
	case tolerance == 0:
	case tolerance < time.Second || tolerance > 24*time.Hour:
		l.Add("Tolerance", "is %v: must be from 1s to 24h", tolerance)
	case v.scheme.Name != "" && !timed:
		l.Add("Tolerance", "must be 0: %s signs no time", v.scheme.Name)
	default:
		if v.past > 0 {
			v.past = tolerance
		}
		if v.future > 0 {
			v.future = tolerance
		}
	}
}

func (v *Verifier) setKeys(l *fields.List, secrets []string, shortest int) {
	if v.scheme.Certificates != nil {
		if len(secrets) > 0 {
			l.Add("Secrets", "must be empty: %s signs with a certificate", v.scheme.Name)
		}
		return
	}
	if n := len(secrets); n == 0 || n > maxSecrets {
		l.Add("Secrets", "must list 1 to %d secrets, not %d", maxSecrets, n)
	}
	for i, secret := range secrets {
		field := fmt.Sprintf("Secrets[%d]", i)
		if slices.Contains(secrets[:i], secret) {
			l.Add(field, "must not be listed twice")
			continue
		}
		if len(secret) < shortest {
			l.Add(field, "must have %d characters or more", shortest)
			continue
		}
		if v.scheme.Key == nil {
			continue
		}
		key, err := v.scheme.Key(secret)
		switch {
		case err != nil:
			l.Add(field, "%v", err)
		case key.IsZero():
			l.Add(field, "the provider's Key function returned no key")
		default:
			v.keys = append(v.keys, key)
		}
	}
}

func (v *Verifier) setKeptHeaders(l *fields.List, more []string) {
	v.keptHeaders = []string{"Content-Type"}
	for i, name := range slices.Concat(v.scheme.KeepHeaders, more) {
		field := "Provider"
		if i >= len(v.scheme.KeepHeaders) {
			field = fmt.Sprintf("KeepHeaders[%d]", i-len(v.scheme.KeepHeaders))
		}
		canonical := http.CanonicalHeaderKey(name)
		switch {
		case !isToken(name):
			l.Add(field, "is %q: must be the name of a header", name)
		case holdsSecret(canonical, v.scheme.SignatureHeaders):
			l.Add(field, "%s must not be kept: it holds a signature or a credential", canonical)
		case !slices.Contains(v.keptHeaders, canonical):
			v.keptHeaders = append(v.keptHeaders, canonical)
		}
	}
}

// holdsSecret reports whether a header must not be kept (W14).
func holdsSecret(canonical string, signatures []string) bool {
	same := func(s string) bool { return http.CanonicalHeaderKey(s) == canonical }
	return slices.ContainsFunc(neverKept, same) || slices.ContainsFunc(signatures, same)
}

// isToken reports whether s is a token of RFC 9110 section 5.6.2.
func isToken(s string) bool {
	return s != "" && strings.Trim(s, "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") == ""
}
