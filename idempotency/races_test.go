package idempotency_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/onlyonce/onlyonce/idempotency"
)

// One hundred identical requests at once, on one process and on two: one run, one effect, the same
// bytes for all that are answered (H13).
func TestHundredAtOnce(t *testing.T) {
	t.Parallel()
	var p provider
	for _, c := range []struct {
		name  string
		route idempotency.Route
		h     http.HandlerFunc
	}{
		{"transactional", idempotency.Route{}, effect},
		{"leased", idempotency.Route{Mode: idempotency.Leased}, charge(p.pay)},
		{"waiting", idempotency.Route{Wait: 1e9}, effect},
		{"leased and waiting", idempotency.Route{Mode: idempotency.Leased, Wait: 1e9}, charge(p.pay)},
	} {
		for _, processes := range []int{1, 2} {
			r := newRig(t, testConfig())
			rigs := []*rig{r, newRigOn(t, r.pool, r.pool, testConfig())}[:processes]
			c.route.Pattern = "/charges"
			for _, one := range rigs {
				one.handle(c.route, c.h)
			}
			marks := map[string]int{}
			var body string
			for _, g := range r.all(100, func(i int) (got, error) {
				return rigs[i%processes].try(context.Background(), http.MethodPost, "/charges", "k", "x")
			}) {
				marks[g.mark()]++
				switch g.mark() {
				case "created", "replayed":
					if g.status != http.StatusCreated || body != "" && g.body != body {
						t.Errorf("%v, others got %q", g, body)
					}
					body = g.body
				case "in-progress":
					if g.status != http.StatusConflict || g.header.Get("Retry-After") == "" {
						t.Errorf("%v", g)
					}
				default:
					t.Errorf("%v", g)
				}
			}
			runs := int64(0)
			for _, one := range rigs {
				runs += one.runs.Load()
			}
			if marks["created"] != 1 || runs != 1 || r.effects() != 1 {
				t.Errorf("%s, %d processes: %v, %d runs, %d effects", c.name, processes, marks, runs, r.effects())
			}
			if g := r.post("/charges", "k", "x"); g.mark() != "replayed" || g.body != body {
				t.Errorf("%v", g)
			}
		}
	}
	if keys, calls := p.keys(); keys != 1 || calls != 4 { // the same key in four databases
		t.Errorf("%d payments in %d calls", keys, calls)
	}
}

// Go's own transport sends a POST with an Idempotency-Key again, without telling anybody, when a
// connection that it had kept dies before the first byte of an answer: here in front of a server
// that has done the work.
func TestRequestsThatTheTransportRepeats(t *testing.T) {
	t.Parallel()
	for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
		r := newRig(t, testConfig())
		var p provider
		handler := http.HandlerFunc(effect)
		if mode == idempotency.Leased {
			handler = charge(p.pay)
		}
		r.handle(idempotency.Route{Pattern: "/charges", Mode: mode}, handler)
		var requests atomic.Int64
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			n := requests.Add(1)
			if req.URL.Path == "/warm" {
				return
			}
			rec := httptest.NewRecorder()
			r.mux.ServeHTTP(rec, req)
			if n%3 == 2 { // every request on a kept connection; its repetition gets the answer
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				_ = conn.Close()
				return
			}
			for name, values := range rec.Header() {
				w.Header()[name] = values
			}
			w.WriteHeader(rec.Code)
			_, _ = w.Write(rec.Body.Bytes())
		}))
		t.Cleanup(front.Close)
		const n = 20
		for i := range n {
			warm, err := front.Client().Get(front.URL + "/warm")
			if err != nil {
				t.Fatal(err)
			}
			read(t, warm)
			req := post(t, t.Context(), front.URL+"/charges", fmt.Sprint(i))
			req.Header.Set("Idempotency-Key", fmt.Sprint("k", i))
			resp, err := front.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body := read(t, resp)
			if resp.StatusCode != http.StatusCreated || resp.Header.Get("Idempotency-Status") != "replayed" {
				t.Errorf("%d: %d %s %s", i, resp.StatusCode, resp.Header.Get("Idempotency-Status"), body)
			}
		}
		if got := requests.Load(); got != 3*n {
			t.Errorf("%d requests reached the server: the transport has not repeated them", got)
		}
		if r.effects() != n || r.runs.Load() != n {
			t.Errorf("mode %d: %d effects of %d runs", mode, r.effects(), r.runs.Load())
		}
	}
}

// A client that disconnects in the middle ends nothing: the request is completed, and a retry gets
// its answer.
func TestH11ClientThatGoesAway(t *testing.T) {
	t.Parallel()
	for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
		r := newRig(t, testConfig())
		g := newGate(t)
		done := make(chan error, 1)
		wrapped := r.layer.MustHandle(
			idempotency.Route{Pattern: "/charges", NoCalls: true, Mode: mode},
			http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				r.runs.Add(1)
				g.begun <- struct{}{}
				<-g.open
				done <- req.Context().Err()
				effect(w, req)
			}),
		)
		gone := make(chan struct{})
		r.mux.HandleFunc("/charges", func(w http.ResponseWriter, req *http.Request) {
			stop := context.AfterFunc(req.Context(), func() { close(gone) })
			defer stop()
			wrapped.ServeHTTP(w, req)
		})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-g.begun
			cancel()
		}()
		if got, err := r.try(ctx, http.MethodPost, "/charges", "k", "x"); err == nil {
			t.Errorf("%v", got)
		}
		wait(t, "the server notices", gone)
		g.release()
		if err := wait(t, "the handler goes on", done); err != nil {
			t.Errorf("the handler's context: %v", err)
		}
		var again got
		until(t, "the answer is there", func() bool { again = r.post("/charges", "k", "x"); return again.mark() == "replayed" })
		if again.status != http.StatusCreated || r.effects() != 1 || r.runs.Load() != 1 {
			t.Errorf("%v, %d effects", again, r.effects())
		}
	}
}

// A body that never comes to its end has claimed nothing (H6).
func TestRequestThatBreaksOff(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.handle(idempotency.Route{Pattern: "/charges"}, effect)
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.srv.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "POST /charges HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 10\r\n\r\nhalf")
	_ = conn.(*net.TCPConn).CloseWrite()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil {
		if body := read(t, resp); resp.StatusCode != http.StatusBadRequest || !strings.Contains(body, "body-unreadable") {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	}
	_ = conn.Close()
	if g := r.post("/charges", "k", "half and half"); g.mark() != "created" || r.runs.Load() != 1 {
		t.Errorf("%v", g)
	}
}

// A route's mode is changed while records of the other mode stand, and while old and new processes
// work side by side (H19).
func TestModeOfARouteChanges(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	var p provider
	modes := []*rig{r, newRigOn(t, r.pool, r.pool, testConfig())}
	g := newGate(t)
	for i, one := range modes {
		mode := idempotency.RouteMode(i)
		one.handle(idempotency.Route{Pattern: "/charges", Mode: mode}, effect)
		one.handle(idempotency.Route{Pattern: "/slow", Mode: mode}, g.before(effect))
		one.handle(idempotency.Route{Pattern: "/left", Mode: mode}, func(w http.ResponseWriter, req *http.Request) {
			if mode == idempotency.Leased {
				_, _ = idempotency.Step(req.Context(), "s", p.pay)
				w.WriteHeader(http.StatusBadGateway)
				return
			}
			effect(w, req)
		})
	}
	for i, first := range modes {
		second := modes[1-i]
		key := fmt.Sprint("k", i)
		a := first.post("/charges", key, "x")
		b := second.post("/charges", key, "x")
		if a.mark() != "created" || b.mark() != "replayed" || a.body != b.body {
			t.Errorf("mode %d first: %v, %v", i, a, b)
		}
	}
	a, b := modes[0].runs.Load(), modes[1].runs.Load()
	if r.effects() != 2 || a != 1 || b != 1 {
		t.Errorf("%d effects, %d and %d runs", r.effects(), a, b)
	}
	// In flight in one mode: whichever of the two comes through, only one does.
	for i, first := range modes {
		g := newGate(t)
		key := fmt.Sprint("s", i)
		path := fmt.Sprint("/slow", i)
		for j, one := range modes {
			h := effect
			if i == j {
				h = g.before(effect)
			}
			one.handle(idempotency.Route{Pattern: path, Mode: idempotency.RouteMode(j)}, h)
		}
		running := first.background(path, key, "x")
		wait(t, "it runs", g.begun)
		dup := modes[1-i].post(path, key, "x")
		g.release()
		a := wait(t, "it is answered", running)
		created := 0
		for _, g := range []got{a, dup} {
			if g.mark() == "created" {
				created++
			} else if g.mark() != "in-progress" && g.mark() != "replayed" {
				t.Errorf("%v", g)
			}
		}
		if created != 1 || r.effects() != 3+i {
			t.Errorf("mode %d in flight: %v, %v; %d effects", i, a, dup, r.effects())
		}
	}
	// One that was left with a step done is not run by a handler that knows no steps.
	if g := modes[1].post("/left", "k", "x"); g.mark() != "released" {
		t.Errorf("%v", g)
	}
	if g := modes[0].post("/left", "k", "x"); g.code() != "request-in-progress" {
		t.Errorf("%v", g)
	}
}

// The cap of a tenant is its own (H10).
func TestTenantLimit(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.TenantLimit = 2
	r := newRig(t, cfg)
	g := newGate(t)
	r.handle(idempotency.Route{Pattern: "/slow", Mode: idempotency.Leased}, g.before(effect))
	r.handle(idempotency.Route{Pattern: "/charges"}, effect)
	running := []<-chan got{r.background("/slow", "1", "x", "X-Tenant", "a"), r.background("/slow", "2", "x", "X-Tenant", "a")}
	for range running {
		wait(t, "they run", g.begun)
	}
	if got := r.post("/charges", "3", "x", "X-Tenant", "a"); got.status != http.StatusTooManyRequests {
		t.Errorf("%v", got)
	}
	if got := r.post("/charges", "3", "x", "X-Tenant", "b"); got.mark() != "created" {
		t.Errorf("%v", got)
	}
	g.release()
	for _, c := range running {
		if got := <-c; got.mark() != "created" {
			t.Errorf("%v", got)
		}
	}
	if got := r.post("/charges", "3", "x", "X-Tenant", "a"); got.mark() != "created" {
		t.Errorf("%v", got)
	}
}
