package idempotency_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// idle begins a request whose body is announced and does not come but for what is sent of it.
func (r *rig) idle(path, key, sent string, headers ...string) net.Conn {
	r.t.Helper()
	c, err := net.Dial("tcp", r.srv.Listener.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(2 * patience))
	// A server waits for the rest of a body of up to 256 KiB before it answers.
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n", path, len(sent)+100_000)
	if key != "" {
		head += "Idempotency-Key: " + key + "\r\n"
	}
	for i := 0; i < len(headers); i += 2 {
		head += headers[i] + ": " + headers[i+1] + "\r\n"
	}
	if _, err := io.WriteString(c, head+"\r\n"+sent); err != nil {
		r.t.Fatal(err)
	}
	return c
}

// answered returns the answer to a request whose body has not come.
func answered(t *testing.T, c net.Conn) (resp *http.Response, body string) {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	return resp, read(t, resp)
}

// countingScopes counts the requests that have reached the layer.
func countingScopes(cfg idempotency.Config) (idempotency.Config, *atomic.Int64) {
	var n atomic.Int64
	of := cfg.Scope
	cfg.Scope = func(req *http.Request) (idempotency.Scope, error) {
		defer n.Add(1)
		return of(req)
	}
	return cfg, &n
}

// H6: requests whose bodies do not come take no place from those of the same tenant that do,
// however many there are and whichever principal sends them.
func TestH6IdleBodiesTakeNoPlace(t *testing.T) {
	t.Parallel()
	cfg, arrived := countingScopes(testConfig())
	cfg.TenantLimit = 2
	r := newRig(t, cfg)
	r.handle(idempotency.Route{Pattern: "/charges"}, effect)
	const idle = 100
	for i := range idle {
		r.idle("/charges", fmt.Sprint("idle-", i), "x", "X-Tenant", "acme", "X-Principal", "intern")
	}
	pgtest.Until(t, patience, "all have reached the layer", func() bool { return arrived.Load() == idle })
	for i := range 20 {
		if g := r.post("/charges",
			fmt.Sprint("k-", i), "x", "X-Tenant", "acme", "X-Principal", "checkout"); g.status != http.StatusCreated {
			t.Fatalf("%v", g)
		}
	}
}

// H6: a request without a good key is answered before its body has come.
func TestH6HeadersBeforeTheBody(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.handle(idempotency.Route{Pattern: "/charges"}, effect)
	for key, code := range map[string]string{"": "key-missing", "a,b": "key-invalid"} {
		resp, body := answered(t, r.idle("/charges", key, "x"))
		if resp.StatusCode != http.StatusBadRequest || !strings.Contains(body, code) || !resp.Close {
			t.Errorf("%q: %s %s, connection closed: %t", key, resp.Status, body, resp.Close)
		}
	}
	resp, body := answered(t, r.idle("/charges", "k", "x", "X-Tenant", strings.Repeat("x", 201)))
	if resp.StatusCode != http.StatusForbidden || !resp.Close {
		t.Errorf("without a scope: %s %s, connection closed: %t", resp.Status, body, resp.Close)
	}
}

// H6: a body that stops coming is given up, and its client may try again.
func TestH6BodyThatStopsComing(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.handle(idempotency.Route{Pattern: "/charges", KeyPointer: "/key"}, effect)
	resp, body := answered(t, r.idle("/charges", "", "{"))
	if resp.StatusCode != http.StatusBadRequest || !strings.Contains(body, `"code":"body-unreadable","retryable":true`) {
		t.Errorf("%s %s", resp.Status, body)
	}
}

// H6: the bodies of a tenant that arrive at once have a bound, by the bytes that have come; small
// ones pass beside large ones, and other tenants have bounds of their own.
func TestH6MemoryOfBodies(t *testing.T) {
	t.Parallel()
	cfg, arrived := countingScopes(testConfig())
	cfg.TenantBytes = 4 << 20
	r := newRig(t, cfg)
	r.handle(idempotency.Route{Pattern: "/charges"}, effect)
	large := strings.Repeat("x", 600_000)
	full := false
	for i := 0; !full && i < 20; i++ {
		before := arrived.Load()
		c := r.idle("/charges", fmt.Sprint("idle-", i), large, "X-Tenant", "acme")
		pgtest.Until(t, patience, "it has reached the layer", func() bool { return arrived.Load() > before })
		g := r.post("/charges", fmt.Sprint("large-", i), large, "X-Tenant", "acme")
		full = g.code() == "over-capacity"
		if !full && g.status != http.StatusCreated {
			t.Fatalf("%v", g)
		}
		defer c.Close()
	}
	if !full {
		t.Error("20 bodies of 600 kB have room in 4 MiB")
	}
	if g := r.post("/charges", "small", "x", "X-Tenant", "acme"); g.status != http.StatusCreated {
		t.Errorf("a small body beside them: %v", g)
	}
	if g := r.post("/charges", "large", large, "X-Tenant", "other"); g.status != http.StatusCreated {
		t.Errorf("a large body of another tenant: %v", g)
	}
	cfg.TenantBytes = 1 << 20
	layer, err := idempotency.New(r.pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, err = layer.Handle(idempotency.Route{Pattern: "/charges", NoCalls: true}, http.NotFoundHandler())
	if !errors.Is(err, idempotency.ErrConfig) || !strings.Contains(err.Error(), "TenantBytes") {
		t.Errorf("a body that has no room: %v", err)
	}
}
