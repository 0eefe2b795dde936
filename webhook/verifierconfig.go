package webhook

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// VerifierConfig describes how an endpoint's sender signs. The zero value of a field is the default
// that its comment names.
type VerifierConfig struct {
	// Provider is how the sender signs: [Standard], [Stripe], [GitHub], [Shopify], [Slack], [HMAC],
	// or one of yours. Required.
	Provider Provider

	// Secrets are the secrets that are valid now, in the form in which the provider hands them out:
	// 1 to 8, each of at least 16 characters. While you replace one, list the old and the new one,
	// in any order. Required: without a secret, anyone could send.
	Secrets []string

	// Tolerance is how far the signed time may be from this machine's clock, in the directions that
	// the provider's scheme checks: 1 s to 24 hours. It must be 0 for a provider that signs no
	// time, for example GitHub. Defaults to the provider's, for example 5 minutes.
	//
	// If it is shorter than a sender's queue delay or a clock's error, valid requests are refused.
	// If it is longer, a recorded request can be sent again for longer, and the dedupe has to catch
	// it.
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
	// minSecret is the shortest secret, in characters: shorter ones can be found by trial.
	minSecret = 16
)

// neverKept are headers with which a reader of the stored event could act as another user (W14).
var neverKept = []string{"Authorization", "Cookie", "Proxy-Authorization", "Set-Cookie", "Www-Authenticate", "X-Api-Key"}

// NewVerifier checks the configuration and returns every fault of it at once. No error quotes a
// secret.
func NewVerifier(cfg VerifierConfig) (*Verifier, error) { return newVerifier(cfg, minSecret) }

func newVerifier(cfg VerifierConfig, shortest int) (*Verifier, error) {
	var faults []error
	fault := func(field, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: %s: %s", ErrConfig, field, fmt.Sprintf(format, args...)))
	}
	scheme := &Scheme{}
	if cfg.Provider == nil {
		fault("Provider", "must be set: it says how the sender signs")
	} else if s, err := cfg.Provider.Scheme(); err != nil {
		fault("Provider", "%v", err)
	} else if s == nil || s.Name == "" || s.Key == nil || s.Read == nil || s.Event == nil {
		fault("Provider", "its scheme lacks Name, Key, Read or Event")
	} else {
		copied := *s
		scheme = &copied
	}
	v := &Verifier{scheme: scheme, maxBody: cfg.MaxBody, past: scheme.Past, future: scheme.Future}
	switch timed := v.past > 0 || v.future > 0; {
	case v.past < 0 || v.future < 0:
		fault("Provider", "its scheme has a negative Past or Future")
	case cfg.Tolerance == 0:
	case cfg.Tolerance < time.Second || cfg.Tolerance > 24*time.Hour:
		fault("Tolerance", "%v is not from 1s to 24h", cfg.Tolerance)
	case scheme.Name != "" && !timed:
		fault("Tolerance", "must be 0: %s signs no time", scheme.Name)
	default:
		if v.past > 0 {
			v.past = cfg.Tolerance
		}
		if v.future > 0 {
			v.future = cfg.Tolerance
		}
	}
	if cfg.MaxBody == 0 {
		v.maxBody = defaultMaxBody
	} else if cfg.MaxBody < 0 || cfg.MaxBody > maxMaxBody {
		fault("MaxBody", "%d is not from 1 to %d", cfg.MaxBody, maxMaxBody)
	}
	if n := len(cfg.Secrets); n == 0 || n > maxSecrets {
		fault("Secrets", "must list 1 to %d secrets, not %d", maxSecrets, n)
	}
	for i, secret := range cfg.Secrets {
		field := fmt.Sprintf("Secrets[%d]", i)
		if slices.Contains(cfg.Secrets[:i], secret) {
			fault(field, "must not be listed twice")
			continue
		}
		if len(secret) < shortest {
			fault(field, "must have %d characters or more", shortest)
			continue
		}
		if scheme.Key == nil {
			continue
		}
		key, err := scheme.Key(secret)
		switch {
		case err != nil:
			fault(field, "%v", err)
		case key.mac == nil && key.public == nil:
			fault(field, "the provider's Key function returned no key")
		default:
			v.keys = append(v.keys, key)
		}
	}
	v.keptHeaders = []string{"Content-Type"}
	for i, name := range slices.Concat(scheme.KeepHeaders, cfg.KeepHeaders) {
		field := "Provider"
		if i >= len(scheme.KeepHeaders) {
			field = fmt.Sprintf("KeepHeaders[%d]", i-len(scheme.KeepHeaders))
		}
		canonical := http.CanonicalHeaderKey(name)
		switch {
		case !isToken(name):
			fault(field, "%q is not a header name", name)
		case holdsSecret(canonical, scheme.SignatureHeaders):
			fault(field, "%s must not be kept: it holds a signature or a credential", canonical)
		case !slices.Contains(v.keptHeaders, canonical):
			v.keptHeaders = append(v.keptHeaders, canonical)
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return v, nil
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
