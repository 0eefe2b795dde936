package idempotency_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// Refused requests are logged at WARN with the reason as text, but not one line for each: anyone
// can send such requests.
func TestRefusedRequestsAreLoggedSeldom(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	of := cfg.Scope
	cfg.Scope = func(r *http.Request) (idempotency.Scope, error) {
		if r.Header.Get("X-Anonymous") != "" {
			return idempotency.Scope{}, errors.New("no session")
		}
		return of(r)
	}
	var text func() string
	cfg.Logger, text = pgtest.Logged()
	r := newRig(t, cfg)
	r.handle(idempotency.Route{Pattern: "/charges"}, effect)
	for range 5 {
		r.post("/charges", "", "body")
		r.post("/charges", strings.Repeat("secret", 60), "body")
		r.post("/charges", "k", "body", "X-Anonymous", "1")
	}
	log := text()
	for _, code := range []string{"key-missing", "key-invalid", "scope-missing"} {
		if strings.Count(log, "code="+code) != 1 {
			t.Errorf("%s is not logged once\n%s", code, log)
		}
	}
	if strings.Count(log, "level=WARN") != 3 || strings.Contains(log, "secret") || !strings.Contains(log, "no session") {
		t.Error(log)
	}
}
