package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
)

// both are the modes that a route has.
var both = []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased}

// decides is a handler that writes an effect, calls decide, and answers with a status.
func decides(status int, decide ...func(*http.Request)) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		if tx, err := idempotency.TxOf(req); err == nil {
			tx.Queue(`insert into effects values ('x')`)
		}
		for _, d := range decide {
			d(req)
		}
		w.WriteHeader(status)
	}
}

func TestH27HandlerDecides(t *testing.T) {
	t.Parallel()
	for _, mode := range both {
		r := newRig(t, leasedConfig())
		for name, c := range map[string]struct {
			route       idempotency.Route
			handler     http.HandlerFunc
			marks, code string
			effects     int
		}{
			"final 503": {idempotency.Route{}, decides(503, idempotency.Final), "created replayed", "", 0},
			"final 503 whose writes count": {
				idempotency.Route{KeepWrites: true},
				decides(503, idempotency.Final),
				"created replayed",
				"",
				1,
			},
			"final 409": {idempotency.Route{}, decides(409, idempotency.Final), "created replayed", "", 0},
			"final 201": {idempotency.Route{}, decides(201, idempotency.Final), "created replayed", "", 1},
			"transient 402": {
				idempotency.Route{KeepWrites: true},
				decides(402, idempotency.Transient),
				"released released",
				"",
				0,
			},
			"transient 201": {
				idempotency.Route{},
				decides(201, idempotency.Transient),
				"rejected rejected",
				"rolled-back",
				0,
			},
			"the last one counts": {
				idempotency.Route{},
				decides(402, idempotency.Final, idempotency.Transient),
				"released released",
				"",
				0,
			},
		} {
			r.exec(`truncate effects`)
			c.route.Pattern = "/" + strings.ReplaceAll(name, " ", "-")
			c.route.Mode = mode
			r.handle(c.route, c.handler)
			first := r.post(c.route.Pattern, "k", "x")
			again := r.post(c.route.Pattern, "k", "x")
			if first.mark()+" "+again.mark() != c.marks || first.code() != c.code || r.effects() != c.effects {
				t.Errorf("mode %d, %s: %v, %v, %d effects", mode, name, first, again, r.effects())
			}
		}
	}
}

// Nothing is kept while a step's outcome is unknown, whatever the handler answers and decides: the
// next request calls again. It is kept once the step has a result.
func TestH27OpenStepKeepsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	for _, status := range []int{201, 302, 402, 422, 502} {
		for name, decide := range map[string]func(*http.Request){"": nil, "final": idempotency.Final} {
			for _, later := range []string{"waits", "leaves"} {
				path := fmt.Sprintf("/charges/%d%s/%s", status, name, later)
				var p provider
				runs := 0
				asked := make(chan struct{})
				finished := make(chan struct{})
				r.handle(
					idempotency.Route{Pattern: path, Mode: idempotency.Leased, KeepWrites: true},
					func(w http.ResponseWriter, req *http.Request) {
						runs++
						if runs == 3 { // does not ask for the step any more
							w.WriteHeader(status)
							return
						}
						first := runs == 1
						stepping := make(chan struct{})
						call := func(ctx context.Context, key string) ([]byte, error) {
							result, err := p.pay(ctx, key)
							if !first {
								return result, err
							}
							close(stepping)
							if later == "leaves" {
								<-asked
							}
							return nil, errors.New("no answer")
						}
						if first && later == "leaves" { // the handler returns while the step runs
							go func() {
								defer close(finished)
								_, _ = idempotency.Step(req.Context(), "charge", call)
							}()
							<-stepping
						} else {
							_, _ = idempotency.Step(req.Context(), "charge", call)
						}
						if decide != nil {
							decide(req)
						}
						w.WriteHeader(status)
					},
				)
				first := r.post(path, "k", "x")
				close(asked)
				if later == "leaves" {
					<-finished
				}
				mark := "released"
				code := ""
				if status < 400 {
					mark = "rejected"
					code = "rolled-back"
				}
				if first.mark() != mark || first.code() != code {
					t.Errorf("%s: %v", path, first)
				}
				if n := one[int](r, `select count(*) from onlyonce.http_records where completed_at is not null and scope = $1`,
					"http POST "+path); n != 0 {
					t.Errorf("%s: completed while the step's outcome is unknown", path)
				}
				runs = 2 // a run that takes another way
				if g := r.post(path, "k", "x"); g.mark() != mark || g.code() != code {
					t.Errorf("%s: the step was not asked for: %v", path, g)
				}
				runs = 1
				kept := status < 500 || name != ""
				g, again := r.post(path, "k", "x"), r.post(path, "k", "x")
				wrong := g.status != status ||
					kept && (g.mark() != "created" || again.mark() != "replayed")
				if wrong {
					t.Errorf("%s: the outcome is known: %v, %v", path, g, again)
				}
			}
		}
	}
}

func TestH28BodiesByReference(t *testing.T) {
	t.Parallel()
	for _, mode := range both {
		r := newRig(t, leasedConfig())
		var fails error
		render := func(_ context.Context, scope idempotency.Scope, reference string) ([]byte, error) {
			return []byte("rendered " + reference + " for " + scope.Tenant), fails
		}
		secret := strings.Repeat("secret", 200)
		handler := func(w http.ResponseWriter, req *http.Request) {
			if err := idempotency.Reference(req, "ch_17"); err != nil {
				t.Error(err)
			}
			w.Header().Set("Location", "/charges/ch_17")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, secret)
		}
		r.handle(idempotency.Route{Pattern: "/charges", Mode: mode, MaxResponse: 1000, Render: render}, handler)
		if g := r.post("/charges", "k", "x", "X-Tenant", "acme"); g.mark() != "created" || g.body != secret {
			t.Errorf("mode %d: the first client: %v", mode, g)
		}
		if n := one[int](r, `select count(*) from onlyonce.http_records where position('secret'::bytea in response) > 0`); n != 0 {
			t.Errorf("mode %d: the body is stored", mode)
		}
		again := func() got { return r.post("/charges", "k", "x", "X-Tenant", "acme") }
		g := again()
		good := g.status == 201 &&
			g.mark() == "replayed" &&
			g.body == "rendered ch_17 for acme" &&
			g.header.Get("Location") == "/charges/ch_17" &&
			g.header.Get("Idempotency-Expires") != ""
		if !good {
			t.Errorf("mode %d: %v", mode, g)
		}
		fails = errors.New("down")
		g = again()
		good = g.status == 503 &&
			g.code() == "response-not-rendered" &&
			g.mark() == "in-progress" &&
			g.header.Get("Retry-After") != ""
		if !good {
			t.Errorf("mode %d: %v", mode, g)
		}
		fails = fmt.Errorf("ch_17: %w", idempotency.ErrReferenceGone)
		if g := again(); g.status != 410 || g.code() != "response-not-replayable" || g.header.Get("Location") != "/charges/ch_17" {
			t.Errorf("mode %d: %v", mode, g)
		}
		if r.runs.Load() != 1 {
			t.Errorf("mode %d: %d runs", mode, r.runs.Load())
		}
		// Without a reference the bound holds, and without Render there is none.
		r.handle(
			idempotency.Route{Pattern: "/long", Mode: mode, MaxResponse: 1000, Render: render},
			func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, secret) },
		)
		if g := r.post("/long", "k", "x"); g.code() != "response-too-large" {
			t.Errorf("mode %d: %v", mode, g)
		}
		r.handle(idempotency.Route{Pattern: "/plain", Mode: mode}, func(w http.ResponseWriter, req *http.Request) {
			if idempotency.Reference(req, "ch_17") == nil {
				t.Error("a reference that nothing can render")
			}
		})
		r.post("/plain", "k", "x")
	}
}

// A copy of a request that has made an operation learns how the operation is, and how it ended.
func TestH23CopiesSeeTheOperation(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	ops := r.operations(map[string]idempotency.Work{
		"export": func(context.Context, consumer.Tx, *idempotency.Operation) (json.RawMessage, error) {
			return json.RawMessage(`{"rows":3}`), nil
		},
	})
	accept := func(w http.ResponseWriter, req *http.Request) {
		if err := ops.Accept(w, req, idempotency.Request{Name: "export"}); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}
	r.handle(idempotency.Route{Pattern: "/accepted"}, accept)
	first := r.post("/accepted", "k", "x")
	location := first.header.Get("Location")
	again := r.post("/accepted", "k", "x")
	good := first.status == 202 &&
		again.header.Get("Retry-After") == "2" &&
		again.status == 202 &&
		again.mark() == "replayed" &&
		strings.Contains(again.body, `"state":"running"`) &&
		again.header.Get("Location") == location
	if !good {
		t.Errorf("%v, %v", first, again)
	}
	r.works(ops)
	r.untilState(location, "succeeded")
	g := r.post("/accepted", "k", "x")
	var s state
	err := json.Unmarshal([]byte(g.body), &s)
	good = err == nil &&
		g.status == 200 &&
		g.mark() == "replayed" &&
		s.State == "succeeded" &&
		string(s.Result) == `{"rows":3}` &&
		g.header.Get("Retry-After") == ""
	if !good {
		t.Errorf("%v, %v", g, err)
	}
	r.exec(`delete from onlyonce.operations`)
	if g := r.post("/accepted", "k", "x"); g.status != 202 || g.mark() != "replayed" {
		t.Errorf("an operation that has expired: %v", g)
	}
}

// The API's own envelope has the layer's status and headers.
func TestH9ProblemsInTheAPIsEnvelope(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.Problem = func(r *http.Request, p idempotency.Problem) (string, []byte) {
		if r.URL.Path == "/default" {
			return "", nil
		}
		return "application/vnd.acme+json", fmt.Appendf(nil, `{"error":{"type":%q,"retryable":%v,"path":%q}}`,
			p.Code, p.Retryable, r.URL.Path)
	}
	scope := cfg.Scope
	cfg.Scope = func(r *http.Request) (idempotency.Scope, error) {
		if r.Header.Get("X-Anonymous") != "" {
			return idempotency.Scope{}, errors.New("no credentials")
		}
		return scope(r)
	}
	r := newRig(t, cfg)
	for _, path := range []string{"/charges", "/default"} {
		r.handle(idempotency.Route{Pattern: path}, effect)
	}
	g := r.post("/charges", "", "x")
	good := g.status == 400 &&
		g.mark() == "rejected" &&
		g.header.Get("Content-Type") == "application/vnd.acme+json" &&
		g.body == `{"error":{"type":"key-missing","retryable":false,"path":"/charges"}}`
	if !good {
		t.Errorf("%v", g)
	}
	if g := r.post("/charges", "k", "x", "X-Anonymous", "1"); g.status != 403 ||
		g.body != `{"error":{"type":"scope-missing","retryable":false,"path":"/charges"}}` {
		t.Errorf("%v", g)
	}
	if g := r.post("/default", "", "x"); g.status != 400 ||
		g.code() != "key-missing" ||
		g.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%v", g)
	}
}
