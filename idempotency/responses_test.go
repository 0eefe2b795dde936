package idempotency_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/internal/outcome"
	"github.com/onlyonce/onlyonce/seal"
)

func TestH12NothingLeavesBeforeCommit(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
		path := fmt.Sprintf("/charges/%d", mode)
		r.handle(idempotency.Route{Pattern: path, Mode: mode}, func(w http.ResponseWriter, req *http.Request) {
			c := http.NewResponseController(w)
			if err := c.Flush(); !errors.Is(err, http.ErrNotSupported) {
				t.Errorf("Flush: %v", err)
			}
			if _, _, err := c.Hijack(); !errors.Is(err, http.ErrNotSupported) {
				t.Errorf("Hijack: %v", err)
			}
			if _, is := w.(http.Flusher); is {
				t.Error("there is a Flush")
			}
			tx, err := idempotency.TxOf(req)
			if err != nil {
				t.Error(err)
				return
			}
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "good news that were sent too early")
			tx.Queue(`select 1 / 0`) // fails with COMMIT, behind the last word of the handler
		})
		for range 2 {
			if g := r.post(path, "k", "x"); g.status != http.StatusInternalServerError ||
				g.code() != "rolled-back" ||
				strings.Contains(g.body, "news") {
				t.Errorf("%v", g)
			}
		}
	}
	if r.runs.Load() != 4 {
		t.Errorf("%d runs", r.runs.Load())
	}
}

func TestH13ReplayIsTheSameBytes(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	all := make([]byte, 1<<16)
	for i := range all {
		all[i] = byte(i)
	}
	for name, h := range map[string]http.HandlerFunc{
		"bytes": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/octet-stream")
			_, _ = w.Write(all)
		},
		"values in order": func(w http.ResponseWriter, _ *http.Request) {
			for _, v := range []string{"</b>; rel=next", "</a>; rel=prev", "</b>; rel=next"} {
				w.Header().Add("Link", v)
			}
			w.Header().Set("Etag", `"v1"`)
			w.WriteHeader(http.StatusAccepted)
			_, _ = io.WriteString(w, `{"b": 1, "a" : 1.0}`+"\n")
		},
		"guessed type": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
		"empty":        func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) },
		"no content":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"redirect": func(w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, "/elsewhere", http.StatusSeeOther)
		},
	} {
		for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
			path := fmt.Sprintf("/%s/%d", strings.ReplaceAll(name, " ", "-"), mode)
			route := idempotency.Route{Pattern: path, NoCalls: true, Mode: mode}
			wrapped := r.layer.MustHandle(calling(route), h)
			r.mux.HandleFunc(path, func(w http.ResponseWriter, req *http.Request) { // what stands around the layer is each answer's own
				w.Header().Set("Access-Control-Allow-Origin", req.Header.Get("Origin"))
				w.Header().Set("X-Request-Id", req.Header.Get("X-Request-Id"))
				wrapped.ServeHTTP(w, req)
			})
			r.srv.Client().CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			first := r.post(path, "k", "x", "Origin", "https://a", "X-Request-Id", "1")
			again := r.post(path, "k", "x", "Origin", "https://b", "X-Request-Id", "2")
			good := first.mark() == "created" &&
				again.mark() == "replayed" &&
				first.status == again.status &&
				first.body == again.body
			if !good {
				t.Errorf("%s: %.80v, then %.80v", path, first, again)
			}
			if again.header.Get("Access-Control-Allow-Origin") != "https://b" ||
				again.header.Get("X-Request-Id") != "2" ||
				again.header.Get("Date") == "" {
				t.Errorf("%s: %v", path, again.header)
			}
			a := first.header.Clone()
			b := again.header.Clone()
			for _, own := range []string{
				"Date",
				"Access-Control-Allow-Origin",
				"X-Request-Id",
				"Idempotency-Status",
				"Idempotent-Replayed",
				"Idempotency-Expires",
			} {
				a.Del(own)
				b.Del(own)
			}
			if !maps.EqualFunc(a, b, slices.Equal) {
				t.Errorf("%s: %v, then %v", path, a, b)
			}
		}
	}
}

func TestH14HeadersThatAreKept(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	kept := map[string]string{
		"Content-Type":        "text/x",
		"Content-Language":    "de",
		"Content-Encoding":    "identity",
		"Content-Disposition": "inline",
		"Content-Location":    "/c",
		"Location":            "/l",
		"Etag":                `"e"`,
		"Last-Modified":       "Tue, 15 Nov 1994 12:45:26 GMT",
		"Link":                "</n>",
		"Cache-Control":       "private",
		"Vary":                "Accept",
		"X-Ours":              "kept",
		"Allow":               "GET, HEAD",
		"Accept-Post":         "application/json",
		"Accept-Patch":        "text/x",
		"Retry-After":         "2",
		"Content-Range":       "bytes 0-9/10",
	}
	dropped := map[string]string{
		"Set-Cookie":                  "session=1",
		"Authorization":               "Bearer s",
		"Www-Authenticate":            "Basic",
		"Proxy-Authenticate":          "Basic",
		"Access-Control-Allow-Origin": "https://a",
		"Age":                         "1",
		"X-Other":                     "not listed",
		"Keep-Alive":                  "timeout=5",
	}
	r.handle(
		idempotency.Route{Pattern: "/charges", KeepHeaders: []string{"x-ours", "X-Named"}},
		func(w http.ResponseWriter, _ *http.Request) {
			for name, v := range kept {
				w.Header().Set(name, v)
			}
			for name, v := range dropped {
				w.Header().Set(name, v)
			}
			w.Header().Set("Connection", "X-Named")
			w.Header().Set("X-Named", "for this connection")
			w.WriteHeader(http.StatusCreated)
		},
	)
	first := r.post("/charges", "k", "x")
	again := r.post("/charges", "k", "x")
	for name, v := range kept {
		if first.header.Get(name) != v || again.header.Get(name) != v {
			t.Errorf("%s: %q, then %q", name, first.header.Get(name), again.header.Get(name))
		}
	}
	for name, v := range dropped {
		if first.header.Get(name) != v {
			t.Errorf("%s does not reach the first client: %q", name, first.header.Get(name))
		}
		if again.header.Get(name) != "" {
			t.Errorf("%s reaches another one: %q", name, again.header.Get(name))
		}
	}
	if again.header.Get("X-Named") != "" {
		t.Error("a header that Connection names is stored")
	}
	stored := one[[]byte](r, `select response from onlyonce.http_records`)
	for _, secret := range []string{"session=1", "Bearer s", "for this connection"} {
		if bytes.Contains(stored, []byte(secret)) {
			t.Errorf("%q is stored", secret)
		}
	}
	for _, name := range []string{"Set-Cookie", "authorization", "Proxy-Anything", "Access-Control-Allow-Origin", "Date", "Connection"} {
		if _, err := r.layer.Handle(
			idempotency.Route{Pattern: "/x", NoCalls: true, KeepHeaders: []string{name}},
			http.NotFoundHandler(),
		); err == nil ||
			!strings.Contains(err.Error(), "KeepHeaders") {
			t.Errorf("%s may be configured: %v", name, err)
		}
	}
}

// A stored answer that another program has written is replayed only with what the layer itself
// would have stored.
func TestH14StoredHeadersAreJudgedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.handle(idempotency.Route{Pattern: "/charges"}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</aaaaaaaaaaaaaaaa>")
		w.Header().Set("Location", "/1")
		w.WriteHeader(http.StatusCreated)
	})
	r.post("/charges", "injected", "x")
	swap := func(key, from, to string) {
		t.Helper()
		id := `onlyonce.key('', 'http POST /charges', '` + key + `')`
		stored := one[[]byte](r, `select response from onlyonce.http_records where id = `+id)
		if len(from) != len(to) || bytes.Count(stored, []byte(from)) != 1 {
			t.Fatalf("%q is not there once", from)
		}
		r.exec(`update onlyonce.http_records set response = $1 where id = `+id, bytes.Replace(stored, []byte(from), []byte(to), 1))
	}
	swap("injected", "</aaaaaaaaaaaaaaaa>", "a\r\nSet-Cookie: x=12")
	if g := r.post("/charges", "injected", "x"); g.code() != "record-unreadable" || g.header.Get("Set-Cookie") != "" {
		t.Errorf("%v %v", g, g.header)
	}
	if r.runs.Load() != 1 {
		t.Errorf("%d runs", r.runs.Load())
	}
}

func TestH15LongAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	long := func(w http.ResponseWriter, req *http.Request) {
		if tx, err := idempotency.TxOf(req); err == nil {
			tx.Queue(`insert into effects values ('x')`)
		}
		w.Header().Set("Location", "/long/1")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
		_, _ = io.WriteString(w, req.Header.Get("X-More"))
	}
	r.handle(idempotency.Route{Pattern: "/tx"}, long)
	r.handle(idempotency.Route{Pattern: "/leased", Mode: idempotency.Leased}, long)
	r.handle(idempotency.Route{Pattern: "/tombstone", Mode: idempotency.Leased, AllowLargeOnce: true}, long)
	r.handle(idempotency.Route{Pattern: "/tombstone-tx", AllowLargeOnce: true}, long)
	for n, path := range []string{"/tx", "/leased"} {
		if g := r.post(path, "fits", "x"); g.mark() != "created" || len(g.body) != 1<<20 {
			t.Errorf("%s: %d, %d bytes", path, g.status, len(g.body))
		}
		for range 2 {
			if g := r.post(path, "long", "x", "X-More", "y"); g.code() != "response-too-large" ||
				g.status != 500 ||
				g.mark() != "rejected" {
				t.Errorf("%s: %d %s", path, g.status, g.code())
			}
		}
		if r.effects() != n+1 {
			t.Errorf("%s: %d effects", path, r.effects())
		}
	}
	for _, path := range []string{"/tombstone", "/tombstone-tx"} {
		effects := r.effects()
		if g := r.post(path, "k", "x", "X-More", "y"); g.mark() != "created" || len(g.body) != 1<<20+1 {
			t.Errorf("%s: the first caller: %d, %d bytes", path, g.status, len(g.body))
		}
		for range 2 {
			if g := r.post(path, "k", "x", "X-More", "y"); g.status != http.StatusGone ||
				g.code() != "response-not-replayable" ||
				g.header.Get("Location") != "/long/1" {
				t.Errorf("%s: the others: %d %s %v", path, g.status, g.code(), g.header)
			}
		}
		if r.effects() != effects+1 {
			t.Errorf("%s: %d effects more", path, r.effects()-effects)
		}
	}
	for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
		path := fmt.Sprintf("/secret/%d", mode)
		r.handle(
			idempotency.Route{Pattern: path, DiscardBody: true, Mode: mode},
			func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "shown once") },
		)
		if g := r.post(path, "k", "x"); g.body != "shown once" {
			t.Errorf("%v", g)
		}
		if g := r.post(path, "k", "x"); g.status != http.StatusGone {
			t.Errorf("%v", g)
		}
	}
	if n := one[int](r, `select count(*) from onlyonce.http_records where position('shown once'::bytea in response) > 0`); n != 0 {
		t.Error("the secret is stored")
	}
}

// H15: 410 says that the request took effect. So a refusal whose body is not stored keeps its
// status, also if that is 410, and no copy is told that it took effect.
func TestH15RefusalKeepsItsStatus(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
		for _, status := range []int{http.StatusUnprocessableEntity, http.StatusGone} {
			path := fmt.Sprintf("/refuses/%d/%d", mode, status)
			r.handle(
				idempotency.Route{Pattern: path, DiscardBody: true, Mode: mode},
				func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", status) },
			)
			for n, mark := range []string{"created", "replayed"} {
				g := r.post(path, "k", "x")
				good := g.status == status &&
					g.mark() == mark &&
					g.code() == "" &&
					g.header.Get("Idempotency-Expires") != "" &&
					(n == 0) == (g.body == "no\n")
				if !good {
					t.Errorf("%s, request %d: %d %s %q %q", path, n, g.status, g.mark(), g.code(), g.body)
				}
				if a, is := outcome.Marked(g.status, g.header, []byte(g.body)); !is || a.Applied != outcome.NotApplied {
					t.Errorf("%s, request %d: a relay reads %+v", path, n, a)
				}
			}
		}
	}
}

// H15: when a refusal is erased, its status is left.
func TestH15ErasedRefusalKeepsItsStatus(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
		for _, status := range []int{http.StatusUnprocessableEntity, http.StatusGone} {
			path := fmt.Sprintf("/refuses/%d/%d", mode, status)
			r.handle(
				idempotency.Route{Pattern: path, Mode: mode},
				func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no, Ms X", status) },
			)
			r.post(path, "k", "x")
			if err := r.layer.Erase(t.Context(), "", "http POST "+path, "k"); err != nil {
				t.Fatal(err)
			}
			g := r.post(path, "k", "x")
			good := g.status == status &&
				g.mark() == "replayed" &&
				g.body == "" &&
				g.header.Get("Idempotency-Expires") != ""
			if !good {
				t.Errorf("%s: %d %s %q", path, g.status, g.mark(), g.body)
			}
			if a, is := outcome.Marked(g.status, g.header, []byte(g.body)); !is || a.Applied != outcome.NotApplied {
				t.Errorf("%s: a relay reads %+v", path, a)
			}
		}
	}
}

// H24: the cache has sealed answers too.
func TestH16AnswersAreSealed(t *testing.T) {
	t.Parallel()
	sealer := func(current uint32, ids ...uint32) *seal.Sealer {
		keys := map[uint32]seal.Key{}
		for _, id := range ids {
			keys[id] = seal.Key{byte(id)}
		}
		s, err := seal.New(seal.Keys{Current: current, ByID: keys})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	cfg := leasedConfig()
	r := newRig(t, cfg) // nothing is sealed here
	r.handle(idempotency.Route{Pattern: "/charges"}, effect)
	plain := r.post("/charges", "plain", "x")
	on := func(s *seal.Sealer) *rig {
		cfg := cfg
		cfg.Sealer = s
		r := newRigOn(t, r.pool, r.pool, cfg)
		r.handle(idempotency.Route{Pattern: "/charges"}, effect)
		return r
	}
	one1 := on(sealer(1, 1))
	two := on(sealer(2, 1, 2))
	only2 := on(sealer(2, 2))
	first := one1.post("/charges", "k", "x")
	later := two.post("/charges", "k2", "x")
	for name, c := range map[string]struct {
		g, of got
	}{
		"by its own key":         {one1.post("/charges", "k", "x"), first},
		"after a rotation":       {two.post("/charges", "k", "x"), first},
		"by the new key":         {only2.post("/charges", "k2", "x"), later},
		"one that is not sealed": {two.post("/charges", "plain", "x"), plain},
	} {
		if c.g.mark() != "replayed" || c.g.body != c.of.body {
			t.Errorf("%s: %v", name, c.g)
		}
	}
	if n := one[int](
		r,
		`select count(*) from onlyonce.http_records where sealed and position('effect of'::bytea in response) = 0`,
	); n != 2 {
		t.Errorf("%d records are sealed", n)
	}
	runs := only2.runs.Load() + r.runs.Load()
	r.exec(`update onlyonce.http_records a set response = b.response from onlyonce.http_records b
	         where a.id = onlyonce.key('', 'http POST /charges', 'k2') and b.id = onlyonce.key('', 'http POST /charges', 'k')`)
	for name, g := range map[string]got{
		"a key that is gone":      only2.post("/charges", "k", "x"),
		"no sealer":               r.post("/charges", "k", "x"),
		"another record's answer": two.post("/charges", "k2", "x"),
	} {
		if g.status != 500 || g.code() != "record-unreadable" || strings.Contains(g.body, "effect of") {
			t.Errorf("%s: %v", name, g)
		}
	}
	if only2.runs.Load()+r.runs.Load() != runs || r.effects() != 3 {
		t.Error("it ran again")
	}
}

// A sealed value opens in its place alone: that of another step of the same request does not, nor
// an operation's input as its result.
func TestH24SealedInItsPlace(t *testing.T) {
	t.Parallel()
	cfg := leasedConfig()
	cfg.Sealer = testSealer(t)
	cfg.RequireSealed = true
	r := newRig(t, cfg)
	var healthy atomic.Bool
	var opened atomic.Pointer[string]
	r.handle(idempotency.Route{Pattern: "/charges", Mode: idempotency.Leased}, func(w http.ResponseWriter, req *http.Request) {
		said := ""
		for name, result := range map[string]string{"risk-check": "approved", "charge": "declined"} {
			got, err := idempotency.Step(req.Context(), name, func(context.Context, string) ([]byte, error) { return []byte(result), nil })
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadGateway)
				return
			}
			if name == "charge" {
				said = string(got)
			}
		}
		opened.Store(&said)
		if !healthy.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		_, _ = io.WriteString(w, said)
	})
	r.post("/charges", "k", "x")
	r.exec(`create table kept as select name, result, sealed from onlyonce.http_steps`)
	for what, sql := range map[string]string{
		"another step's": `update onlyonce.http_steps a set result = b.result from kept b
			where a.name = 'charge' and b.name = 'risk-check'`,
		"not sealed": `update onlyonce.http_steps set result = 'approved', sealed = false where name = 'charge'`,
		"none":       `update onlyonce.http_steps set result = null, sealed = false where name = 'charge'`,
	} {
		opened.Store(nil)
		r.exec(sql)
		if g := r.post("/charges", "k", "x"); g.status != http.StatusBadGateway || opened.Load() != nil {
			t.Errorf("%s: %v", what, g)
		}
		r.exec(`update onlyonce.http_steps a set result = b.result, sealed = b.sealed from kept b where a.name = b.name`)
	}
	healthy.Store(true)
	if g := r.post("/charges", "k", "x"); g.body != "declined" {
		t.Errorf("%v", g)
	}
	for what, sql := range map[string]string{
		"a step's result as the answer": `update onlyonce.http_records set response = (select result from kept where name = 'charge')`,
		"an answer that is not sealed":  `update onlyonce.http_records set sealed = false`,
	} {
		r.exec(sql)
		if g := r.post("/charges", "k", "x"); g.code() != "record-unreadable" {
			t.Errorf("%s: %v", what, g)
		}
	}
}

func TestH24OperationsAreSealedInTheirPlaces(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.Sealer = testSealer(t)
	cfg.RequireSealed = true
	r := newRig(t, cfg)
	ops := r.operations(map[string]idempotency.Work{
		"export": func(_ context.Context, _ consumer.Tx, op *idempotency.Operation) (json.RawMessage, error) {
			return json.Marshal(string(op.Input))
		},
	})
	location := r.post("/exports", "k", "x").header.Get("Location")
	input := one[[]byte](r, `select body from onlyonce.event_log`)
	if bytes.Contains(input, []byte("input")) {
		t.Errorf("the input is stored as it is: %q", input)
	}
	r.works(ops)
	if s := r.untilState(location, "succeeded"); string(s.Result) != `"input"` {
		t.Errorf("%s", s.Result)
	}
	result := one[[]byte](r, `select result from onlyonce.operations`)
	for what, change := range map[string]func(){
		"the input":  func() { r.exec(`update onlyonce.operations set result = $1`, input) },
		"not sealed": func() { r.exec(`update onlyonce.operations set result = '"other"', sealed = false`) },
	} {
		change()
		if g := r.send(http.MethodGet, location, "", ""); g.code() != "record-unreadable" {
			t.Errorf("%s: %v", what, g)
		}
		r.exec(`update onlyonce.operations set result = $1, sealed = true`, result)
	}
	if s := r.state(location); string(s.Result) != `"input"` {
		t.Errorf("%+v", s)
	}
}

func TestRequireSealedNeedsASealer(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.RequireSealed = true
	if _, err := idempotency.New(nil, cfg); !errors.Is(err, idempotency.ErrConfig) ||
		!strings.Contains(err.Error(), "Config.RequireSealed") {
		t.Errorf("%v", err)
	}
}

// H13: trailers, of both forms that net/http has, are in the first answer and in each replay.
func TestH13Trailers(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.handle(idempotency.Route{Pattern: "/charges"}, func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Trailer", "Sum, Proxy-Ticket, X-Unset")
		w.Header().Add("Trailer", "X-Line")
		effect(w, req)
		w.Header().Set("Sum", "17")
		w.Header().Set("X-Line", "1\r\n2")
		w.Header().Set("Proxy-Ticket", "secret")
		w.Header()[http.TrailerPrefix+"Grpc-Status"] = []string{"0", "1"}
		w.Header().Set("X-Late", "no trailer")
	})
	http2 := httptest.NewUnstartedServer(r.mux)
	http2.EnableHTTP2 = true
	http2.StartTLS()
	t.Cleanup(http2.Close)
	for i, srv := range []*httptest.Server{r.srv, http2} {
		for _, mark := range []string{"created", "replayed"} {
			req := post(t, t.Context(), srv.URL+"/charges", "x")
			req.Header.Set("Idempotency-Key", fmt.Sprint("k-", i))
			resp, err := srv.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body := read(t, resp)
			want := http.Header{"Sum": {"17"}, "Grpc-Status": {"0", "1"}}
			if body != "effect of x" || resp.Header.Get("Idempotency-Status") != mark || !maps.EqualFunc(resp.Trailer, want, slices.Equal) {
				t.Errorf("%s, %s: %q, trailers %v, headers %v", resp.Proto, mark, body, resp.Trailer, resp.Header)
			}
		}
	}
}
