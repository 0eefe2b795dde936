package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// gate is a handler that reports when it has begun, and waits for a signal before it returns.
type gate struct {
	begun chan struct{}
	open  chan struct{}
	once  sync.Once
}

func newGate(t *testing.T) *gate {
	g := &gate{begun: make(chan struct{}, 1000), open: make(chan struct{})}
	t.Cleanup(g.release)
	return g
}

func (g *gate) release() { g.once.Do(func() { close(g.open) }) }

func (g *gate) before(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		g.begun <- struct{}{}
		<-g.open
		next(w, req)
	}
}

// background sends a request and returns where its answer will be.
func (r *rig) background(path, key, body string, headers ...string) <-chan got {
	answer := make(chan got, 1)
	go func() {
		g, err := r.try(context.Background(), http.MethodPost, path, key, body, headers...)
		if err != nil {
			g.body = err.Error()
		}
		answer <- g
	}()
	return answer
}

// problem is what the layer's own answers look like.
type problem struct {
	Type, Title, Detail, Instance, Code string
	Status                              int
	Retryable                           *bool
}

// Every way in which the layer itself answers: section 2 of the rules.
func TestH9EveryOutcomeIsTold(t *testing.T) {
	t.Parallel()
	cfg := leasedConfig()
	cfg.TenantLimit = 3
	r := newRig(t, cfg)
	g := newGate(t)
	r.handle(idempotency.Route{Pattern: "/charges"}, effect)
	r.handle(idempotency.Route{Pattern: "/slow", MaxBody: 10, MaxResponse: 10}, g.before(effect))
	r.handle(idempotency.Route{Pattern: "/held", Mode: idempotency.Leased}, g.before(effect))
	r.handle(idempotency.Route{Pattern: "/wait", Wait: 30 * time.Millisecond}, g.before(effect))
	r.handle(idempotency.Route{Pattern: "/long", MaxResponse: 10}, func(w http.ResponseWriter, req *http.Request) {
		effect(w, req)
	})
	r.handle(idempotency.Route{Pattern: "/once", DiscardBody: true}, effect)
	r.handle(
		idempotency.Route{Pattern: "/unsure", Mode: idempotency.Leased},
		charge(func(context.Context, string) ([]byte, error) { return nil, errors.New("no answer") }),
	)
	r.post("/charges", "known", "x")
	r.post("/charges", "broken", "x")
	r.exec(`update onlyonce.http_records set response = '\x00' where id = onlyonce.key('', 'http POST /charges', 'broken')`)
	r.post("/once", "shown", "x")
	r.post("/unsure", "k", "x")
	r.exec(`update onlyonce.http_steps set first_at = first_at - interval '2 days'`)
	first := r.background("/slow", "busy", "x")
	waiting := r.background("/wait", "busy", "x")
	wait(t, "a handler runs", g.begun)
	wait(t, "the other one runs", g.begun)
	crowd := []<-chan got{
		r.background("/held", "1", "x", "X-Tenant", "many"),
		r.background("/held", "2", "x", "X-Tenant", "many"),
		r.background("/held", "3", "x", "X-Tenant", "many"),
	}
	for range crowd {
		wait(t, "the crowd runs", g.begun)
	}
	away := pgtest.DB(t)
	down := newRigOn(t, away, r.pool, cfg)
	down.handle(idempotency.Route{Pattern: "/charges"}, effect)
	lost := newRigOn(t, away, r.pool, cfg)
	lost.handle(idempotency.Route{Pattern: "/bare", Mode: idempotency.Leased}, func(http.ResponseWriter, *http.Request) {})
	lost.post("/bare", "k", "x")
	away.Close()
	cut := wiredRig(t, cfg, &pgtest.Wire{Statement: "commit", At: func(int32) pgtest.Cut { return pgtest.Held }}, g.open)
	cut.handle(idempotency.Route{Pattern: "/charges"}, effect)
	effects := r.effects()
	for _, c := range []struct {
		name      string
		g         got
		status    int
		code      string
		mark      string
		retryable bool
		after     bool // Retry-After
		location  string
	}{
		{"no key", r.post("/charges", "", "x"), 400, "key-missing", "rejected", false, false, ""},
		{"bad key", r.post("/charges", "a,b", "x"), 400, "key-invalid", "rejected", false, false, ""},
		{"body too large", r.post("/slow", "k", "01234567890"), 413, "request-too-large", "rejected", false, false, ""},
		{"another fingerprint", r.post("/charges", "known", "y"), 422, "key-reused", "mismatch", false, false, ""},
		{"a running request", r.post("/slow", "busy", "x"), 409, "request-in-progress", "in-progress", true, true, ""},
		{"wait mode expired", r.post("/wait", "busy", "x"), 409, "request-in-progress", "in-progress", true, true, ""},
		{"tenant cap", r.post("/held", "4", "x", "X-Tenant", "many"), 429, "over-capacity", "rejected", true, true, ""},
		{"store unreachable", down.post("/charges", "k", "x"), 503, "store-unavailable", "rejected", true, true, ""},
		{"store lost at the lookup", lost.post("/bare", "k", "x"), 503, "store-unavailable", "rejected", true, true, ""},
		{"commit outcome unresolved", cut.post("/charges", "k", "x"), 503, "commit-unknown", "in-progress", true, true, ""},
		{"step outcome unknown", r.post("/unsure", "k", "x"), 503, "commit-unknown", "in-progress", true, true, ""},
		{"step outcome unknown, again", r.post("/unsure", "k", "x"), 503, "commit-unknown", "in-progress", true, true, ""},
		{"response over the limit", r.post("/long", "k", "0123456789"), 500, "response-too-large", "rejected", false, false, ""},
		{"tombstone", r.post("/once", "shown", "x"), 410, "response-not-replayable", "replayed", false, false, "/effects/1"},
		{"record cannot be read", r.post("/charges", "broken", "x"), 500, "record-unreadable", "rejected", false, false, ""},
	} {
		var p problem
		if err := json.Unmarshal([]byte(c.g.body), &p); err != nil {
			t.Errorf("%s: %v: %v", c.name, c.g, err)
			continue
		}
		good := c.g.status == c.status &&
			p.Status == c.status &&
			p.Code == c.code &&
			c.g.mark() == c.mark &&
			p.Retryable != nil &&
			*p.Retryable == c.retryable &&
			p.Type == "urn:onlyonce:problem:"+c.code &&
			p.Title != ""
		if !good {
			t.Errorf("%s: %v", c.name, c.g)
		}
		if h := c.g.header; h.Get("Content-Type") != "application/problem+json" ||
			h.Get("Cache-Control") != "no-store" ||
			h.Get("Location") != c.location {
			t.Errorf("%s: headers %v", c.name, h)
		}
		after, err := strconv.Atoi(c.g.header.Get("Retry-After"))
		wrong := c.after != (err == nil) || c.after && (after < 1 || after > 5)
		if wrong {
			t.Errorf("%s: Retry-After %q", c.name, c.g.header.Get("Retry-After"))
		}
		if strings.Contains(c.g.body, "effect of") {
			t.Errorf("%s echoes what is stored: %s", c.name, c.g.body)
		}
		looked := c.code != "request-too-large" && c.name != "tenant cap" // refused before the key is looked for
		if keyed := looked && c.code != "key-missing" && c.code != "key-invalid"; keyed != (c.g.header.Get("Idempotency-Key") != "") {
			t.Errorf("%s: the key is echoed as %q", c.name, c.g.header.Get("Idempotency-Key"))
		}
	}
	if r.effects() != effects {
		t.Errorf("%d effects, were %d: a refusal had one", r.effects(), effects)
	}
	g.release()
	for _, answer := range append(crowd, first, waiting) {
		if g := wait(t, "those that ran are answered", answer); g.mark() != "created" && g.code() != "response-too-large" {
			t.Errorf("%v", g)
		}
	}
	again := r.post("/charges", "known", "x")
	good := again.mark() == "replayed" &&
		again.header.Get("Idempotent-Replayed") == "true" &&
		again.header.Get("Idempotency-Expires") != "" &&
		again.header.Get("Idempotency-Key") == `"known"`
	if !good {
		t.Errorf("a replay: %v %v", again, again.header)
	}
}

// The status header alone distinguishes the application's own 409 and 422 from the layer's.
func TestH9OutcomesOfEqualStatus(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.Headers = []string{"X-Op"}
	var served []idempotency.ServeEnd
	var mu sync.Mutex
	cfg.Hooks.ServeEnd = func(_ context.Context, s idempotency.ServeEnd) {
		mu.Lock()
		defer mu.Unlock()
		served = append(served, s)
	}
	r := newRig(t, cfg)
	r.handle(
		idempotency.Route{Pattern: "/charges"},
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnprocessableEntity) },
	)
	first := r.post("/charges",
		"", "x", "X-Op", "k")
	again := r.post("/charges", "", "x", "X-Op", "k")
	other := r.post("/charges", "", "y", "X-Op", "k")
	for n, c := range []struct {
		g    got
		mark string
	}{{first, "created"}, {again, "replayed"}, {other, "mismatch"}} {
		if c.g.status != 422 || c.g.mark() != c.mark || c.g.header.Get("X-Op") != `"k"` {
			t.Errorf("%d: %v %v", n, c.g, c.g.header)
		}
	}
	if again.header.Get("Idempotent-Replayed") != "true" ||
		again.header.Get("Idempotency-Expires") == "" ||
		first.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("%v", again.header)
	}
	mu.Lock()
	defer mu.Unlock()
	good := len(served) == 3 &&
		served[0].Outcome == idempotency.Created &&
		served[0].Runs == 1 &&
		served[1].Runs == 0 &&
		served[2].Code == "key-reused" &&
		served[2].Status == 422
	if !good {
		t.Errorf("%+v", served)
	}
}

func TestH10DuplicatesWait(t *testing.T) {
	t.Parallel()
	for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
		r := newRig(t, testConfig())
		other := newRigOn(t, r.pool, r.pool, testConfig())
		g := newGate(t)
		route := idempotency.Route{Pattern: "/charges", KeyWindow: 24 * time.Hour, Wait: 30 * time.Second, Mode: mode}
		r.handle(route, g.before(effect))
		other.handle(route, effect)
		first := r.background("/charges", "k", "x")
		wait(t, "the first one runs", g.begun)
		busy := r.pool.Stat().AcquiredConns()
		var waiting []<-chan got
		for range 8 {
			waiting = append(waiting, r.background("/charges", "k", "x"))
		}
		elsewhere := other.background("/charges", "k", "x")
		beyond := make(chan got, 4)
		for range 4 { // eight of the twelve wait
			go func() {
				g, _ := r.try(context.Background(), http.MethodPost, "/charges", "k", "x")
				beyond <- g
			}()
		}
		told := 0
		until(t, "four are told at once", func() bool {
			for _, c := range waiting {
				told += len(c)
			}
			n := told + len(beyond)
			told = 0
			return n == 4
		})
		if n := r.pool.Stat().AcquiredConns(); n > busy+1 { // the one that waits elsewhere looks now and then
			t.Errorf("mode %d: %d connections are held while they wait, %d before", mode, n, busy)
		}
		g.release()
		created := wait(t, "the first one", first)
		replayed := 0
		for _, c := range append(waiting, elsewhere) {
			if g := wait(t, "who waits gets the answer", c); g.mark() == "replayed" && g.body == created.body {
				replayed++
			}
		}
		for range 4 {
			if g := <-beyond; g.mark() == "replayed" && g.body == created.body {
				replayed++
			}
		}
		if replayed != 9 || created.mark() != "created" {
			t.Errorf("mode %d: %v, and %d of 9 replays", mode, created, replayed)
		}
	}
}

// A tenant's waiters are bounded over all its keys.
func TestH10WaitersOfATenant(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	g := newGate(t)
	r.handle(
		idempotency.Route{Pattern: "/charges", Mode: idempotency.Leased, Wait: 30 * time.Second},
		g.before(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }),
	)
	const keys, each = 9, 8 // 72 of which 64 may wait
	var firsts []<-chan got
	for k := range keys {
		firsts = append(firsts, r.background("/charges", fmt.Sprint(k), "x"))
		wait(t, "it runs", g.begun)
	}
	answers := make(chan got, keys*each)
	for n := range keys * each {
		go func() {
			g, _ := r.try(context.Background(), http.MethodPost, "/charges", fmt.Sprint(n%keys), "x")
			answers <- g
		}()
	}
	for range keys*each - 64 {
		if g := wait(t, "those beyond the cap are told at once", answers); g.code() != "request-in-progress" {
			t.Errorf("%v", g)
		}
	}
	// Another tenant's may wait.
	other := r.background("/charges", "0", "x", "X-Tenant", "other")
	wait(t, "another tenant's runs", g.begun)
	g.release()
	for range 64 {
		if g := wait(t, "the others get theirs", answers); g.mark() != "replayed" {
			t.Errorf("%v", g)
		}
	}
	for _, c := range append(firsts, other) {
		if g := <-c; g.mark() != "created" {
			t.Errorf("%v", g)
		}
	}
}

// Section 3 of the rules: every class of status, what is kept of it, and what of the writes.
func TestH11WhatIsKept(t *testing.T) {
	t.Parallel()
	type want struct{ stored, written bool }
	keep := want{true, true}
	answer := want{true, false}
	nothing := want{}
	classes := map[string]map[int]want{"default": {}, "keep writes": {}}
	for _, status := range []int{200, 201, 202, 204, 301, 302, 303, 304} {
		for _, profile := range classes {
			profile[status] = keep
		}
	}
	for _, status := range []int{400, 402, 404, 410, 411, 412, 413, 415, 418, 422, 424, 428, 431, 451} {
		classes["default"][status], classes["keep writes"][status] = answer, keep
	}
	for _, status := range []int{401, 403, 408, 409, 421, 423, 425, 429, 500, 501, 502, 503, 504, 599} {
		for _, profile := range classes {
			profile[status] = nothing
		}
	}
	r := newRig(t, leasedConfig())
	profiles := map[string]idempotency.Route{"default": {}, "keep writes": {KeepWrites: true}}
	for name, route := range profiles {
		for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
			route.Mode = mode
			route.Pattern = fmt.Sprintf("/%s/%d", strings.Fields(name)[0], mode)
			r.handle(route, func(w http.ResponseWriter, req *http.Request) {
				tx, err := idempotency.TxOf(req)
				if err != nil {
					t.Error(err)
					return
				}
				tx.Queue(`insert into effects values ($1)`, req.Header.Get("Idempotency-Key"))
				if _, err := tx.Exec(req.Context(), `insert into effects values ($1)`, req.Header.Get("Idempotency-Key")); err != nil {
					t.Error(err)
				}
				tx.Queue(`insert into effects values ($1)`, req.Header.Get("Idempotency-Key"))
				status, _ := strconv.Atoi(req.Header.Get("X-Status"))
				w.WriteHeader(status)
				_, _ = io.WriteString(w, "n")
			})
			for _, status := range slices.Sorted(maps.Keys(classes[name])) {
				c := classes[name][status]
				key := fmt.Sprintf("%s-%d-%d", strings.Fields(name)[0], mode, status)
				firstMark := "released"
				nextMark := "released"
				records := 0
				if c.stored {
					firstMark = "created"
					nextMark = "replayed"
					records = 1
				}
				writes := 0
				if c.written {
					writes = 3
				}
				first := r.post(route.Pattern, key, "x", "X-Status", fmt.Sprint(status))
				if first.status != status || first.mark() != firstMark {
					t.Errorf("%s: %v, want %d %s", key, first, status, firstMark)
				}
				if n := one[int](r, `select count(*) from effects where v = $1`, key); n != writes {
					t.Errorf("%s: %d writes stand, want %d", key, n, writes)
				}
				if n := one[int](r, `select count(*) from onlyonce.http_records where id = onlyonce.key('', $1, $2)`,
					"http POST "+route.Pattern, key); n != records {
					t.Errorf("%s: %d records", key, n)
				}
				runs := r.runs.Load()
				again := r.post(route.Pattern, key, "x", "X-Status", fmt.Sprint(status))
				good := again.status == status &&
					again.mark() == nextMark &&
					again.body == first.body &&
					c.stored == (r.runs.Load() == runs)
				if !good {
					t.Errorf("%s again: %v", key, again)
				}
			}
		}
	}
	if n := r.leases(); n != 0 {
		t.Errorf("%d leases are left", n)
	}
}

// A panic and a deadline are kept nothing of either, and a panic is the server's to see.
func TestH11PanicAndDeadline(t *testing.T) {
	t.Parallel()
	for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
		r := newRig(t, leasedConfig())
		var raised any
		write := func(req *http.Request) {
			if tx, err := idempotency.TxOf(req); err == nil {
				_, _ = tx.Exec(req.Context(), `insert into effects values ('undone')`)
			}
		}
		wrapped, err := r.layer.Handle(
			idempotency.Route{Pattern: "/panic", KeyWindow: 24 * time.Hour, Mode: mode},
			http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if r.runs.Add(1) == 1 {
					write(req)
					panic("raised by the handler")
				}
				effect(w, req)
			}),
		)
		if err != nil {
			t.Fatal(err)
		}
		r.mux.HandleFunc("/panic", func(w http.ResponseWriter, req *http.Request) {
			defer func() {
				if p := recover(); p != nil {
					raised = p
					w.WriteHeader(http.StatusTeapot)
				}
			}()
			wrapped.ServeHTTP(w, req)
		})
		if g := r.post("/panic", "k", "x"); g.status != http.StatusTeapot || raised != "raised by the handler" || r.effects() != 0 {
			t.Errorf("mode %d: %v, raised %v, %d effects", mode, g, raised, r.effects())
		}
		if g := r.post("/panic", "k", "x"); g.mark() != "created" || r.effects() != 1 {
			t.Errorf("mode %d: the key is not free: %v", mode, g)
		}
		for _, status := range []int{200, 402, 504} { // whatever a handler that is out of time says
			path := fmt.Sprintf("/late/%d", status)
			r.handle(
				idempotency.Route{Pattern: path, Mode: mode, HandlerTimeout: 50 * time.Millisecond},
				func(w http.ResponseWriter, req *http.Request) {
					write(req)
					<-req.Context().Done()
					w.WriteHeader(status)
				},
			)
			if g := r.post(path, "k", "x"); g.status < 500 || g.mark() == "created" {
				t.Errorf("mode %d, late %d: %v", mode, status, g)
			}
		}
		if r.effects() != 1 || one[int](r, `select count(*) from onlyonce.http_records`) != 1 || r.leases() != 0 {
			t.Errorf("mode %d: %d effects, %d leases", mode, r.effects(), r.leases())
		}
	}
}

// A refusal by a handler that has asked nothing of its transaction yet, in every way in which there
// may be one.
func TestH11RefusalBeforeTheFirstStatement(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	r.handle(
		idempotency.Route{Pattern: "/optional", KeyOptional: true},
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
	)
	r.handle(idempotency.Route{Pattern: "/leased", Mode: idempotency.Leased}, func(w http.ResponseWriter, req *http.Request) {
		if _, err := idempotency.TxOf(req); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusNotFound)
	})
	for _, c := range []struct{ path, key, mark string }{
		{"/optional", "", "bypassed"},
		{"/optional", "k", "created"},
		{"/leased", "k", "created"},
	} {
		if g := r.post(c.path, c.key, "x"); g.status != http.StatusNotFound || g.mark() != c.mark {
			t.Errorf("%v: %v", c, g)
		}
	}
}
