package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// operations puts a worker behind the rig's layer, and a route that accepts what its body says.
func (r *rig) operations(work map[string]idempotency.Work) *idempotency.Operations {
	r.t.Helper()
	ops, err := idempotency.NewOperations(r.layer, idempotency.OperationsConfig{PollInterval: 20 * time.Millisecond,
		Backoff: dedupe.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond}, MaxAttempts: 3, Partitions: 2}, work)
	if err != nil {
		r.t.Fatal(err)
	}
	r.handle(idempotency.Route{Pattern: "/exports"}, func(w http.ResponseWriter, req *http.Request) {
		if err := ops.Accept(w, req, idempotency.Request{
			Name:        "export",
			Input:       []byte("input"),
			OrderingKey: req.Header.Get("X-Order"),
		}); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	r.mux.Handle("/operations/", ops)
	return ops
}

// works runs the worker until the test ends.
func (r *rig) works(ops *idempotency.Operations) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ops.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
}

type state struct {
	State    string
	Result   json.RawMessage
	Error    struct{ Code, Text string }
	Progress struct {
		Percent int
		Text    string
	}
	Cancelling bool
}

func (r *rig) state(location string, headers ...string) (s state) {
	r.t.Helper()
	g := r.send(http.MethodGet, location, "", "", headers...)
	if g.status != http.StatusOK {
		r.t.Fatalf("%s: %+v", location, g)
	}
	if err := json.Unmarshal([]byte(g.body), &s); err != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *rig) untilState(location, want string) state {
	r.t.Helper()
	return r.untilIs(func(s state) bool { return s.State == want }, location)
}

// untilIs asks for an operation until it is as it should be; header is that of the one who asks.
func (r *rig) untilIs(is func(state) bool, location string, header ...string) (s state) {
	r.t.Helper()
	until(r.t, "another state of "+location, func() bool {
		s = r.state(location, header...)
		return is(s)
	})
	return s
}

func TestH23OperationIsAcceptedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	ops := r.operations(map[string]idempotency.Work{
		"export": func(ctx context.Context, tx consumer.Tx, op *idempotency.Operation) (json.RawMessage, error) {
			if err := op.Progress(ctx, 50, "half"); err != nil {
				return nil, err
			}
			tx.Queue(`insert into effects values ($1)`, op.Scope.Tenant+string(op.Input))
			return json.RawMessage(`{"rows": 3}`), nil
		},
	})
	first := r.post("/exports", "k1", "x", "X-Tenant", "acct_1")
	again := r.post("/exports", "k1", "x", "X-Tenant", "acct_1")
	location := first.header.Get("Location")
	good := first.status == http.StatusAccepted &&
		again.status == http.StatusAccepted &&
		location != "" &&
		again.header.Get("Location") == location &&
		again.mark() == "replayed"
	if !good {
		t.Fatalf("%+v\n%+v", first, again)
	}
	if s := r.state(location, "X-Tenant", "acct_1"); s.State != "running" {
		t.Errorf("%+v", s)
	}
	for _, other := range []string{"acct_2", ""} {
		if g := r.send(http.MethodGet, location, "", "", "X-Tenant", other); g.status != http.StatusNotFound {
			t.Errorf("%q sees it: %+v", other, g)
		}
		if g := r.send(http.MethodPost, location+"/cancel", "", "", "X-Tenant", other); g.status != http.StatusNotFound {
			t.Errorf("%q cancels it: %+v", other, g)
		}
	}
	r.works(ops)
	ended := r.untilIs(func(s state) bool { return s.State == "succeeded" }, location, "X-Tenant", "acct_1")
	if string(ended.Result) != `{"rows":3}` && string(ended.Result) != `{"rows": 3}` {
		t.Errorf("%s", ended.Result)
	}
	if n := one[int](r, `select count(*) from effects where v = 'acct_1input'`); n != 1 {
		t.Errorf("%d effects", n)
	}
}

// An operation is its scope's alone, and what has expired is absent, purged or not.
func TestH23WhoSeesAnOperation(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	ops := r.operations(map[string]idempotency.Work{
		"export": func(context.Context, consumer.Tx, *idempotency.Operation) (json.RawMessage, error) {
			return json.RawMessage(`"private"`), nil
		},
	})
	mine := []string{"X-Tenant", "acct_1", "X-Principal", "p"}
	location := r.post("/exports", "k", "x", mine...).header.Get("Location")
	absent := func(why string, headers ...string) {
		t.Helper()
		for _, ask := range []struct{ method, path string }{{http.MethodGet, location}, {http.MethodPost, location + "/cancel"}} {
			if g := r.send(ask.method, ask.path, "", "", headers...); g.status != http.StatusNotFound ||
				strings.Contains(g.body, "export") {
				t.Errorf("%s, %s %s: %v", why, ask.method, ask.path, g)
			}
		}
		if n := one[int](r, `select count(*) from onlyonce.operation_signals where cancel_at is not null`); n != 0 {
			t.Errorf("%s: it was cancelled", why)
		}
	}
	for _, other := range [][]string{
		{"X-Tenant", "acct_1"},
		{"X-Tenant", "acct_1", "X-Principal", "q"},
		{"X-Tenant", "acct_2", "X-Principal", "p"},
		{"X-Principal", "p"},
		{},
	} {
		absent("to "+strings.Join(other, " "), other...)
	}
	r.works(ops)
	until(t, "it is done", func() bool { return r.state(location, mine...).State == "succeeded" })
	r.exec(`update onlyonce.operations set expires_at = clock_timestamp()`)
	absent("expired", mine...)
	r.exec(`update onlyonce.operations set expires_at = clock_timestamp() + interval '1 day', state = 'running'`)
	if g := r.send(http.MethodPost, location+"/cancel", "", "", mine...); g.status != http.StatusOK ||
		!strings.Contains(g.body, `"cancelling":true`) {
		t.Errorf("its own client cancels it: %v", g)
	}
}

// H20: a worker purges the operations that have expired, a batch at a time, and no others.
func TestH20OperationsArePurged(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.PurgeInterval = 100 * time.Millisecond
	r := newRig(t, cfg)
	r.layer.SetPurgeBatch(1)
	ops := r.operations(map[string]idempotency.Work{
		"export": func(context.Context, consumer.Tx, *idempotency.Operation) (json.RawMessage, error) { return nil, nil },
	})
	for _, key := range []string{"k1", "k2", "k3"} {
		r.post("/exports", key, "x", "X-Tenant", key)
	}
	r.works(ops)
	until(t, "they are done", func() bool {
		return one[int](r, `select count(*) from onlyonce.operations where state = 'succeeded'`) == 3
	})
	r.exec(`update onlyonce.operations set expires_at = clock_timestamp() where tenant <> 'k3'`)
	until(t, "two are purged", func() bool { return one[int](r, `select count(*) from onlyonce.operations`) <= 1 })
	if left := one[string](r, `select string_agg(tenant, ' ') from onlyonce.operations`); left != "k3" {
		t.Errorf("left: %s", left)
	}
}

func TestH23OperationsEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	begun := make(chan struct{}, 10)
	ops := r.operations(map[string]idempotency.Work{
		"export": func(ctx context.Context, tx consumer.Tx, op *idempotency.Operation) (json.RawMessage, error) {
			tx.Queue(`insert into effects values ('undone')`)
			switch op.Scope.Principal {
			case "refused":
				return nil, idempotency.Permanent("too-large", "more than can be exported")
			case "permanent":
				return nil, consumer.Permanent(errors.New("private words"))
			case "fails":
				return nil, errors.New("private words")
			case "not-json":
				return json.RawMessage(`{`), nil
			}
			begun <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		},
	})
	r.works(ops)
	end := func(principal string) state {
		g := r.post("/exports", "k", "x", "X-Principal", principal)
		return r.untilIs(func(s state) bool { return s.State != "running" }, g.header.Get("Location"), "X-Principal", principal)
	}
	if s := end("refused"); s.State != "failed" || s.Error.Code != "too-large" || s.Error.Text != "more than can be exported" {
		t.Errorf("%+v", s)
	}
	for _, p := range []string{"permanent", "fails"} {
		if s := end(p); s.State != "failed" || s.Error.Code != "failed" || s.Error.Text != "" {
			t.Errorf("%s: %+v", p, s)
		}
	}
	if s := end("not-json"); s.State != "failed" || s.Error.Code != "bad-result" {
		t.Errorf("%+v", s)
	}
	location := r.post("/exports", "k", "x").header.Get("Location")
	pgtest.Receive(t, patience, "it has begun", begun)
	if g := r.send(http.MethodPost, location+"/cancel", "", ""); g.status != http.StatusOK {
		t.Errorf("%+v", g)
	}
	r.untilState(location, "cancelled")
	if n := r.effects(); n != 0 {
		t.Errorf("%d effects of work that did not succeed", n)
	}
}

// H23: an operation ends if its work is given up: its client need not ask for ever, the tenant has
// room for another one, and what it keeps can be erased.
func TestH23WorkThatIsGivenUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.works(r.operations(map[string]idempotency.Work{
		"export": func(context.Context, consumer.Tx, *idempotency.Operation) (json.RawMessage, error) {
			panic("each time")
		},
	}))
	location := r.post("/exports", "k", "x", "X-Tenant", "acme").header.Get("Location")
	r.untilIs(func(s state) bool { return s.State == "suspended" }, location, "X-Tenant", "acme")
	if _, err := ops.Discard(
		t.Context(),
		r.pool,
		ops.By{Reason: "it panics"},
		ops.ParkedInput{ParkedFilter: ops.ParkedFilter{Kind: "event", Scope: "operations"}},
	); err != nil {
		t.Fatal(err)
	}
	if s := r.state(location, "X-Tenant", "acme"); s.State != "failed" || s.Error.Code != "failed" {
		t.Errorf("its work was given up: %+v", s)
	}
	if err := r.layer.Erase(t.Context(), "acme", "http POST /exports", "k"); err != nil {
		t.Errorf("erasing it: %v", err)
	}
	if n := one[int](r, `select count(*) from onlyonce.operations where expires_at is null`); n != 0 {
		t.Errorf("%d operations never expire", n)
	}
}

// H19: erasing a request erases what its operation keeps: result, progress, input. While it runs,
// nothing is erased. The record may have expired before.
func TestH19ErasedRequestKeepsNoOperation(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	result := `{"name":"Jane Roe"}`
	ops := r.operations(map[string]idempotency.Work{
		"export": func(ctx context.Context, _ consumer.Tx, op *idempotency.Operation) (json.RawMessage, error) {
			if result == "" {
				return nil, idempotency.Permanent("no-account", "Jane Roe has none")
			}
			return json.RawMessage(result), op.Progress(ctx, 50, "half of Jane Roe")
		}})
	erase := func(key string) error { return r.layer.Erase(t.Context(), "acme", "http POST /exports", key) }
	accept := func(key string) (location string) {
		a := r.post("/exports", key, "x", "X-Tenant", "acme")
		if location = a.header.Get("Location"); a.status != http.StatusAccepted || location == "" {
			t.Fatalf("%+v", a)
		}
		return location
	}
	first := accept("k1")
	if err := erase("k1"); !errors.Is(err, idempotency.ErrOperationRuns) {
		t.Errorf("while it runs: %v", err)
	}
	if again := accept("k1"); again != first {
		t.Errorf("after an erasure that was refused: %q", again)
	}
	r.works(ops)
	ended := func(s state) bool { return s.State == "succeeded" || s.State == "failed" }
	r.untilIs(ended, first, "X-Tenant", "acme")
	r.exec(`insert into onlyonce.parked (kind, state, reason, tenant, scope, topic, event_id, body)
		select 'event', 'resolved', 'exhausted', tenant, 'operations', topic, id::text, convert_to('input', 'UTF8')
		from onlyonce.operations`)
	if err := erase("k1"); err != nil {
		t.Fatal(err)
	}
	if g := r.post("/exports", "k1", "x", "X-Tenant", "acme"); g.status != http.StatusGone {
		t.Errorf("a copy: %+v", g)
	}
	if err := erase("k1"); !errors.Is(err, idempotency.ErrNoRecord) {
		t.Errorf("erased twice: %v", err)
	}
	result = ""
	second := accept("k2")
	r.untilIs(ended, second, "X-Tenant", "acme")
	r.exec(`delete from onlyonce.http_records`)
	if err := erase("k2"); err != nil {
		t.Errorf("an operation that outlived its record: %v", err)
	}
	for _, location := range []string{first, second} {
		if g := r.send(http.MethodGet, location, "", "", "X-Tenant", "acme"); g.status != http.StatusGone ||
			g.code() != "response-not-replayable" {
			t.Errorf("%+v", g)
		}
	}
	if n := one[int](
		r,
		`select (select count(*) from onlyonce.operations
			where coalesce(result, convert_to(error_text, 'UTF8')) is not null or erased_at is null)
		+ (select count(*) from onlyonce.operation_signals where text is not null) + (select count(*) from onlyonce.event_log
		where body is not null)
		+ (select count(*) from onlyonce.parked where body is not null)`,
	); n != 0 {
		t.Errorf("%d places keep something of the person", n)
	}
}
