package idempotency_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// T12: while the address leads to a standby, clients get 503 with Retry-After. When it leads to the
// primary again, requests are served, although the pool's sockets to the standby are still open.
func TestT12SwitchoverOfALayer(t *testing.T) {
	t.Parallel()
	s := pgtest.NewSwitchover(t)
	pool := s.Pool()
	r := newRigOn(t, pool, s.Direct(), testConfig())
	r.exec(`create table effects (v text not null)`)
	r.handle(idempotency.Route{Pattern: "/charges"}, effect)
	r.handle(idempotency.Route{Pattern: "/leased", Mode: idempotency.Leased}, effect)
	paths := []string{"/charges", "/leased"}
	for _, path := range paths {
		if g := r.post(path, "k1", "10 EUR"); g.mark() != "created" {
			t.Fatalf("%s: %+v", path, g)
		}
	}
	s.Begin()
	for _, path := range paths {
		g := r.post(path, "k2", "10 EUR")
		if g.status != http.StatusServiceUnavailable || g.header.Get("Retry-After") == "" {
			t.Errorf("%s on a standby: %+v", path, g)
		}
	}
	s.End(pool)
	for _, path := range paths {
		until(t, path+" is served", func() bool { return r.post(path, "k2", "10 EUR").mark() == "created" })
		for i := range 8 {
			if g := r.post(path, fmt.Sprint("k3-", i), "10 EUR"); g.mark() != "created" {
				t.Errorf("%s: %+v", path, g)
			}
		}
	}
	if n := r.effects(); n != 2*10 {
		t.Errorf("%d effects of 20 requests", n)
	}
}
