package webhook

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/webhook/internal/received"
	"github.com/onlyonce/onlyonce/webhook/internal/secrets"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// TenantSecrets looks up the secrets of a request's tenant, for an endpoint whose customers,
// repositories or shops have secrets of their own, which change while the endpoint runs:
//
//	TenantSecrets: &webhook.TenantSecrets{
//		Tenant:  func(req *http.Request) string { return req.PathValue("customer") },
//		Secrets: secretsOf, // reads a table, for example
//	}
//
// A secret counts as soon as it is added: a request is refused for its signature only by a look-up
// that began after the request came. One that is removed counts for at most MaxAge (W24).
//
// The tenant is that of the event: ids count within it, so that no customer can use up another
// one's. Its events are in the database of that place if there are several.
type TenantSecrets struct {
	// Tenant names a request's tenant, for example by a value of its path, its query or a header.
	// The name is not verified yet: it decides whose secret must have signed. If it is empty, has
	// more than 255 bytes or control characters, or is not UTF-8, the request is refused like one
	// with a bad signature. The body is read before, and must not be. Tenant must be safe for
	// concurrent use. Required.
	Tenant func(*http.Request) string

	// Secrets returns the secrets of a tenant that are valid now, as [Config].Secrets has them:
	// none if there is no such tenant, and at most 8. An error, a panic or an invalid secret is
	// answered with 503 if no earlier result counts, and so is each tenant's request while Secrets
	// hangs. The context ends after Timeout. Anyone can have it called, with a name that they make
	// up: at most 2*Lookups calls run at once, and two a second for one tenant. Secrets must be
	// safe for concurrent use. Required.
	Secrets func(ctx context.Context, tenant string) ([]string, error)

	// MaxAge is how long a result counts, from 10 s to 24 hours. It is looked up anew after half of
	// it, while requests go on. So Secrets may fail for half of MaxAge before a tenant that sends
	// events notices. Defaults to 5 min.
	MaxAge time.Duration

	// Timeout bounds one call of Secrets: 100 ms to 5 s. Defaults to 2 s.
	Timeout time.Duration

	// Lookups is how many calls of Secrets run at once for tenants that have signed a request with
	// a secret of theirs, and how many besides for all others: 1 to 64. Defaults to 4.
	Lookups int

	// MaxTenants is how many tenants that have signed a request are kept, up to 1,000,000. Beyond
	// that the one whose last request is longest ago is forgotten, and looked up when it comes
	// again. Defaults to 10,000.
	MaxTenants int
}

// maxWaitingBytes is how many bytes of bodies wait for look-ups, if one body is not longer (W17).
const maxWaitingBytes = 16 << 20

// setTenantSecrets fills in a copy of the configuration's TenantSecrets and makes what keeps them.
func (v *Verifier) setTenantSecrets(l *fields.List, cfg *Config, shortest int) {
	c := *cfg.TenantSecrets
	if v.scheme.Certificates != nil {
		l.Add("TenantSecrets", "must be nil: %s signs with a certificate", v.scheme.Name)
	}
	if len(cfg.Secrets) > 0 {
		l.Add("TenantSecrets", "and Secrets exclude each other: a secret of all tenants would sign for each of them")
	}
	if cfg.Tenant != nil {
		l.Add("TenantSecrets", "and Tenant exclude each other: the tenant is the one whose secret has signed")
	}
	if c.Tenant == nil || c.Secrets == nil {
		l.Add("TenantSecrets", "Tenant and Secrets must be set")
	}
	l.Span("TenantSecrets.MaxAge", &c.MaxAge, 5*time.Minute, 10*time.Second, 24*time.Hour)
	l.Span("TenantSecrets.Timeout", &c.Timeout, 2*time.Second, 100*time.Millisecond, 5*time.Second)
	l.Number("TenantSecrets.Lookups", &c.Lookups, 4, 1, 64)
	l.Number("TenantSecrets.MaxTenants", &c.MaxTenants, 10_000, 1, 1_000_000)
	log := fields.Logger(cfg.Logger)
	v.tenantOf = c.Tenant
	v.decoys = decoys()
	v.tenants = secrets.New(secrets.Config{
		Find:       c.keys(v.scheme, shortest),
		MaxAge:     c.MaxAge,
		Timeout:    c.Timeout,
		MaxTenants: c.MaxTenants,
		AtOnce:     c.Lookups,
		MaxBytes:   max(maxWaitingBytes, v.maxBody),
		Failed:     (&failedLookups{endpoint: cfg.Name, log: log}).report,
	})
}

// keys returns a function that looks up the keys of a tenant.
func (c *TenantSecrets) keys(s *scheme.Scheme, shortest int) func(context.Context, string) ([]scheme.Key, error) {
	return func(ctx context.Context, tenant string) ([]scheme.Key, error) {
		all, err := c.Secrets(ctx, tenant)
		if err != nil || len(all) == 0 {
			return nil, err
		}
		l := &fields.List{Sentinel: errSecrets, Struct: "TenantSecrets"}
		keys := parseSecrets(l, s, all, shortest)
		if err := l.Err(); err != nil {
			return nil, fmt.Errorf("of tenant %q: %w", tenant, err)
		}
		return keys, nil
	}
}

var errSecrets = errors.New("invalid result")

// decoys are keys that nobody has, one of each algorithm. A request of a tenant that does not exist
// is compared with them, so that its answer takes as long as that of a bad signature (W6).
func decoys() (all []scheme.Key) {
	for _, a := range []scheme.Algorithm{scheme.HMACSHA256, scheme.HMACSHA512, scheme.HMACSHA1} {
		key, _ := scheme.MACKey(a, []byte(rand.Text()))
		all = append(all, key)
	}
	public := make([]byte, ed25519.PublicKeySize)
	_, _ = rand.Read(public) // never fails
	key, _ := scheme.PublicKey(public)
	return append(all, key)
}

// failedLookups logs look-ups that failed. A look-up serves several requests, or none.
type failedLookups struct {
	endpoint string
	log      *slog.Logger
	seldom   pace.Seldom
}

func (f *failedLookups) report(err error) {
	held, yes := f.seldom.Let("", time.Now(), pace.Refusals)
	if !yes {
		return
	}
	var reason string
	var cause error
	if refused, is := errors.AsType[*received.Refusal](err); is {
		reason = refused.Reason
		cause = refused.Cause
	}
	f.log.Warn("onlyonce: a look-up for webhooks has failed: "+reason,
		"endpoint", f.endpoint, "error", cause, "not_logged", held)
}

// verifyHTTP verifies a request whose body was read.
func (v *Verifier) verifyHTTP(ctx context.Context, req *http.Request, body []byte) (*Event, error) {
	tenant, err := v.nameTenant(req)
	if err != nil {
		return nil, refusal(v.scheme.Name, err)
	}
	return v.VerifyRequest(ctx, Request{Header: req.Header, Query: req.URL.RawQuery, Body: body, Tenant: tenant})
}

// nameTenant names a request's tenant. A panic is an error: the sender comes again.
func (v *Verifier) nameTenant(req *http.Request) (name string, err error) {
	if v.tenantOf == nil {
		return "", nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = received.Unavailable("TenantSecrets.Tenant panicked", fmt.Errorf("%v", p))
		}
	}()
	return v.tenantOf(req), nil
}

// checkSignature compares a request's signatures with the keys that count for it (W4, W24).
func (v *Verifier) checkSignature(ctx context.Context, r Request, signed scheme.Signed) error {
	keys := v.keys
	switch {
	case v.tenants != nil:
		return v.checkTenant(ctx, r, signed)
	case v.scheme.Certificates != nil:
		var err error
		if keys, err = v.scheme.Certificates.Keys(ctx, r.Time, signed); err != nil {
			return err
		}
	}
	if !authentic(keys, signed, r.Body) {
		return &Error{Check: ErrSignature}
	}
	return nil
}

// checkTenant compares the signatures with the keys of the request's tenant. A tenant that does not
// exist is refused in the same way as a bad signature (W6).
func (v *Verifier) checkTenant(ctx context.Context, r Request, signed scheme.Signed) error {
	right := func(keys []scheme.Key) bool {
		if len(keys) == 0 {
			return authentic(v.decoys, signed, r.Body)
		}
		return authentic(keys, signed, r.Body)
	}
	err := secrets.ErrWrong
	if checkTenantName(r.Tenant) == nil {
		err = v.tenants.Check(ctx, r.Tenant, len(r.Body), right)
	} else {
		right(nil)
	}
	if errors.Is(err, secrets.ErrWrong) {
		return &Error{Check: ErrSignature}
	}
	return err
}

// checkTenantName checks the name of a tenant that must be known.
func checkTenantName(name string) error {
	if name == "" {
		return fmt.Errorf("%w: the name is empty", ErrTenant)
	}
	return validTenant(name)
}

// validTenant checks a tenant's name; empty means that there is only one.
func validTenant(name string) error {
	switch {
	case len(name) > maxTenant:
		return fmt.Errorf("%w: the name has %d bytes, more than %d", ErrTenant, len(name), maxTenant)
	case !utf8.ValidString(name) || strings.IndexFunc(name, unicode.IsControl) >= 0:
		return fmt.Errorf("%w: the name must be UTF-8 without control characters", ErrTenant)
	}
	return nil
}
