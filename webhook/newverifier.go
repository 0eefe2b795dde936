package webhook

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/webhook/internal/received"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

const (
	defaultMaxBody = 1 << 20
	maxMaxBody     = 32 << 20
	maxSecrets     = 8
)

// neverKept are headers with which a reader of the stored event could act as another user (W14).
var neverKept = []string{
	"Authorization",
	"Cookie",
	"Proxy-Authorization",
	"Set-Cookie",
	"Www-Authenticate",
	"X-Api-Key",
}

// NewVerifier makes a Verifier of a configuration's Provider, Secrets or TenantSecrets, Tolerance,
// MaxBody, KeepHeaders and Logger, and returns every fault of these at once. It does not read the
// other fields. No error quotes a secret.
func NewVerifier(cfg Config) (*Verifier, error) { return newVerifier(&cfg, received.MinSecret) }

func newVerifier(cfg *Config, shortest int) (*Verifier, error) {
	l := &fields.List{Sentinel: ErrConfig, Struct: "Config"}
	sender := &scheme.Scheme{}
	if cfg.Provider == nil {
		l.Add("Provider", "must be set: it says how the sender signs")
	} else if s, err := cfg.Provider.Scheme(); err != nil {
		l.Add("Provider", "%v", err)
	} else if !complete(s) {
		l.Add("Provider", "its scheme lacks Name, Key, Read or Event")
	} else {
		copied := *s
		sender = &copied
	}
	v := &Verifier{scheme: sender, maxBody: cfg.MaxBody, past: sender.Past, future: sender.Future}
	v.setTolerance(l, cfg.Tolerance)
	l.Number("MaxBody", &v.maxBody, min(max(defaultMaxBody, sender.MaxBody), maxMaxBody), 1, maxMaxBody)
	if cfg.TenantSecrets != nil {
		v.setTenantSecrets(l, cfg, shortest)
	} else {
		v.setKeys(l, cfg.Secrets, shortest)
	}
	v.setKeptHeaders(l, cfg.KeepHeaders)
	if err := l.Err(); err != nil {
		return nil, err
	}
	return v, nil
}

// complete reports whether a scheme has what every scheme must have.
func complete(s *scheme.Scheme) bool {
	if s == nil {
		return false
	}
	keys := s.Key != nil || s.Keys != nil || s.Certificates != nil
	return s.Name != "" && keys && s.Read != nil && s.Event != nil
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
	v.keys = parseSecrets(l, v.scheme, secrets, shortest)
}

// parseSecrets returns the keys of secrets that are valid at the same time.
func parseSecrets(l *fields.List, s *scheme.Scheme, secrets []string, shortest int) (all []scheme.Key) {
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
		keys, err := keysOf(s, secret)
		if err != nil {
			l.Add(field, "%v", err)
		}
		all = append(all, keys...)
	}
	return all
}

// keysOf returns the keys of a secret.
func keysOf(s *scheme.Scheme, secret string) (all []scheme.Key, err error) {
	switch {
	case s.Keys != nil:
		all, err = s.Keys(secret)
	case s.Key != nil:
		all = make([]scheme.Key, 1)
		all[0], err = s.Key(secret)
	default: // its scheme is refused
		return nil, nil
	}
	if err == nil && (len(all) == 0 || slices.ContainsFunc(all, scheme.Key.IsZero)) {
		err = errors.New("the provider's Key function returned no key")
	}
	if err != nil {
		return nil, err
	}
	return all, nil
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
	return s != "" &&
		strings.Trim(s, "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") == ""
}
