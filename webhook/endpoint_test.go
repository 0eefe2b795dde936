package webhook_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/webhook"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// W1: a webhook is a POST.
func TestW1Method(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := r.serve(samples(t)["Stripe"])
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete, http.MethodOptions} {
		body := stripeBody("evt_1", "")
		req := e.request(e.sign(e.secret, time.Now(), body), body)
		req.Method = method
		r.asks(false, func() {
			a := e.do(req)
			a.want(t, http.StatusMethodNotAllowed, false)
			if a.header.Get("Allow") != "POST" {
				t.Errorf("%s: Allow is %q", method, a.header.Get("Allow"))
			}
		})
	}
}

// endless is a body without an end that counts the bytes read from it.
type endless struct{ n int }

func (b *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	b.n += len(p)
	return len(p), nil
}

// W2: if a body is too long, announced or not, nothing of it is stored and no more than the limit
// is read; memory stays bounded.
func TestW2ChunkedBodies(t *testing.T) {
	r := newRig(t)
	e := r.serve(samples(t)["Stripe"])
	r.asks(false, func() {
		for _, announced := range []bool{true, false} {
			body := &endless{}
			req := e.request(e.sign(e.secret, time.Now(), ""), "")
			req.Body = io.NopCloser(io.LimitReader(body, 10<<20))
			req.ContentLength = -1
			if announced {
				req.ContentLength = 10 << 20
			}
			resp, err := e.client.Do(req)
			if err != nil { // the server hangs up while the client still writes
				continue
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusRequestEntityTooLarge {
				t.Errorf("announced %t: %d", announced, resp.StatusCode)
			}
		}
	})
	receiver := r.receiver(samples(t)["Stripe"])
	post := func(body io.Reader, length int64) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/", body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = e.sign(e.secret, time.Now(), "")
		req.ContentLength = length
		w := &discard{header: http.Header{}}
		receiver.ServeHTTP(w, req)
		return w.status
	}
	body := &endless{}
	if status := post(body, -1); status != http.StatusRequestEntityTooLarge || body.n > 3<<20 {
		t.Errorf("status %d after %d bytes of a body without an end", status, body.n)
	}
	body = &endless{}
	if status := post(body, 10<<20); status != http.StatusRequestEntityTooLarge || body.n != 0 {
		t.Errorf("status %d after %d bytes of an announced one", status, body.n)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 20 {
		post(io.LimitReader(&endless{}, 10<<20), -1)
	}
	runtime.ReadMemStats(&after)
	if per := (after.TotalAlloc - before.TotalAlloc) / 20; per > 12<<20 {
		t.Errorf("%d bytes were allocated for a body of 10 MiB whose limit is 1 MiB", per)
	}
	runtime.ReadMemStats(&before)
	for range 20 {
		post(strings.NewReader("x"), 1<<20) // announced, and never sent
	}
	runtime.ReadMemStats(&after)
	if per := (after.TotalAlloc - before.TotalAlloc) / 20; per > 256<<10 {
		t.Errorf("%d bytes were allocated for a body of 1 byte that was announced as 1 MiB", per)
	}
}

// discard is an http.ResponseWriter without a connection.
type discard struct {
	header http.Header
	status int
}

func (w *discard) Header() http.Header         { return w.header }
func (w *discard) Write(p []byte) (int, error) { return len(p), nil }
func (w *discard) WriteHeader(status int)      { w.status = status }

// W3 to W6: no request that was tampered with reaches the database. A bad signature and a stale one
// have the same answer, byte for byte.
func TestW6TamperedRequestsReachNoStatement(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s sample, _ *webhook.Verifier) {
		r := newRig(t)
		e := r.serve(s)
		r.asks(false, func() {
			var bodies []string
			refused := func(what string, status int, h http.Header, body string) {
				t.Helper()
				a := e.do(e.request(h, body))
				if a.status != status {
					t.Errorf("%s: %d, want %d", what, a.status, status)
				}
				if status == http.StatusUnauthorized {
					delete(a.header, "Date")
					bodies = append(bodies, fmt.Sprint(a.header, a.body))
				}
			}
			good := func() http.Header { return s.sign(s.secret, time.Now(), s.body) }
			refused("another body", 401, good(), s.body+" ")
			refused("another secret", 401, s.sign("whsec_"+strings.Repeat("9", 32), time.Now(), s.body), s.body)
			for _, junk := range []string{"\x00", "\xff\xfe", `{"id":`, strings.Repeat("x", 1<<20), ""} {
				if junk != s.body {
					refused("junk", 401, good(), junk)
				}
			}
			if !s.untimed {
				refused("stale", 401, s.sign(s.secret, time.Now().Add(-2*time.Hour), s.body), s.body)
			}
			h := good()
			h.Set(s.sigs, strings.Repeat(h.Get(s.sigs)+",", 1000)[:4000])
			a := e.do(e.request(h, s.body))
			if a.status != 400 && a.status != 401 {
				t.Errorf("a thousand signatures: %d", a.status)
			}
			for _, name := range s.signed {
				h := good()
				h.Del(name)
				if a := e.do(e.request(h, s.body)); a.status != 400 && a.status != 401 {
					t.Errorf("without %s: %d", name, a.status)
				}
			}
			for _, b := range bodies {
				if b != bodies[0] {
					t.Errorf("two answers of 401 differ: %s, %s", b, bodies[0])
				}
			}
		})
		if n := r.count("onlyonce.inbox") + r.count("onlyonce.event_log") + r.count("onlyonce.parked"); n != 0 {
			t.Errorf("%d rows", n)
		}
		a := e.do(e.request(s.sign(s.secret, time.Now(), s.body), s.body)) // and what is good is stored
		a.want(t, http.StatusOK, false)
		if n := r.count("onlyonce.event_log"); n != 1 {
			t.Errorf("%d events are stored", n)
		}
	})
}

// W7: if the id is signed, copies are recognized by it alone; other bytes under another id are
// another event.
func TestW7SignedIDs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stripe := samples(t)["Stripe"]
	e := r.serve(stripe)
	other := r.serve(stripe, func(c *webhook.Config) { c.Name = "other" })
	e.send(stripeBody("evt_1", "")).want(t, 200, false)
	e.send(stripeBody("evt_1", "")).want(t, 200, true)
	e.send(stripeBody("evt_2", "")).want(t, 200, false)
	other.send(stripeBody("evt_1", "")).want(t, 200, false)
	if n := r.count("onlyonce.event_log"); n != 3 {
		t.Errorf("%d events are stored, want 3", n)
	}
	if n := r.count("onlyonce.webhook_bodies"); n != 0 {
		t.Errorf("%d bodies are remembered of a sender that signs its ids", n)
	}
}

// W7: if the id is not signed, the same body under another id within the window is parked: once if
// it names itself, and each time if it does not. After the window it is another event.
func TestW7UnsignedIDs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		body  string
		aside int // of four that come under other ids
	}{{"push", 4}, {push("1"), 1}} {
		r := newRig(t)
		e := r.serve(samples(t)["GitHub"])
		e.sendAs("d-1", c.body).want(t, 200, false)
		e.sendAs("d-1", c.body).want(t, 200, true)
		if r.last() != webhook.Duplicate {
			t.Errorf("outcome %s", r.last())
		}
		e.sendAs("d-2", c.body).want(t, 200, true)
		if r.last() != webhook.SameBody {
			t.Errorf("outcome %s", r.last())
		}
		e.sendAs("d-2", c.body).want(t, 200, true) // that one is a copy of what was set aside
		if r.last() != webhook.Duplicate {
			t.Errorf("outcome %s", r.last())
		}
		e.sendAs("d-3", "another "+c.body).want(t, 200, false)
		got := one[string](
			r,
			`select string_agg(kind || ' ' || state || ' ' || reason || ' ' || event_id || ' ' || convert_from(body, 'UTF8'), ', ')
				from onlyonce.parked`,
		)
		if got != "event waiting same-body e/github/d-2 "+c.body {
			t.Errorf("set aside: %s", got)
		}
		r.exec(`update onlyonce.webhook_bodies set seen_at = seen_at - interval '2 days 23 hours'`)
		e.sendAs("d-4", c.body).want(t, 200, true)
		r.exec(`update onlyonce.webhook_bodies set seen_at = seen_at - interval '2 hours'`)
		e.sendAs("d-5", c.body).want(t, 200, false)
		e.sendAs("d-6", c.body).want(t, 200, true) // the window began anew
		e.sendAs("d-7", c.body).want(t, 200, true)
		if got := one[string](
			r,
			`select string_agg(id, ' ' order by appended_at) from onlyonce.event_log`,
		); got != "e/github/d-1 e/github/d-3 e/github/d-5" {
			t.Errorf("stored: %s", got)
		}
		if n := r.count("onlyonce.parked"); n != c.aside {
			t.Errorf("%d are set aside, want %d", n, c.aside)
		}
		// The window of d-3's body is over, and its id is remembered.
		r.exec(`delete from onlyonce.webhook_bodies where digest = sha256(convert_to($1, 'UTF8'))`, "another "+c.body)
		e.sendAs("d-3", "another "+c.body).want(t, 200, true)
		if r.last() != webhook.Duplicate || r.count("onlyonce.parked") != c.aside {
			t.Errorf("outcome %s, %d are set aside", r.last(), r.count("onlyonce.parked"))
		}
	}
}

// W7: a body that came before uses no other id up. Its sender's first delivery fails, someone sends
// a recorded body under that id, and the sender's next try is applied; likewise for ids in advance.
func TestW7ABodyUsesNoOtherIDUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var down atomic.Bool
	e := r.serve(samples(t)["GitHub"], inline(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if down.Load() {
			return errors.New("down")
		}
		return effect(ctx, tx, m)
	}))
	old := push("old")
	e.sendAs("d-1", old).want(t, 200, false)
	down.Store(true)
	e.sendAs("d-2", "lost").want(t, 500, false)
	down.Store(false)
	for i := range 5 {
		e.sendAs(fmt.Sprint("d-", 2+i), old).want(t, 200, true)
	}
	e.sendAs("d-2", "lost").want(t, 200, false)
	for i := range 4 {
		e.sendAs(fmt.Sprint("d-", 3+i), fmt.Sprint("genuine ", i)).want(t, 200, false)
	}
	if n := r.count("effects"); n != 6 {
		t.Errorf("%d effects of 6 events", n)
	}
	if n := r.count("onlyonce.parked"); n != 1 {
		t.Errorf("%d rows are set aside: the recorded body once", n)
	}
}

// W7: if nobody knows whether a sender renders an event anew, an event under an id that came before
// with another body is set aside whole, once, and a person finds it. Its body stays free for its
// own id.
func TestW7AnotherBodyUnderAKnownID(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var text func() string
	e := r.serve(unknownSender(), inline(effect), func(c *webhook.Config) { c.Logger, text = pgtest.Logged() })
	e.sendAs("d-1", "push").want(t, 200, false)
	e.sendAs("d-1", "other").want(t, 200, true)
	if r.last() != webhook.Divergent {
		t.Errorf("outcome %s", r.last())
	}
	for _, id := range []string{"d-1", "d-1"} {
		e.sendAs(id, "other").want(t, 200, true)
	}
	if got := one[string](
		r,
		`select string_agg(state || ' ' || reason || ' ' || event_id || ' ' || convert_from(body, 'UTF8'), ', ') from onlyonce.parked`,
	); got != "waiting divergent e/acme/d-1 other" {
		t.Errorf("set aside: %s", got)
	}
	if s := text(); strings.Count(s, "level=WARN") != 1 || !strings.Contains(s, "reason=divergent") || strings.Contains(s, "d-1") {
		t.Errorf("logged: %s", s)
	}
	e.sendAs("d-2", "other").want(t, 200, false)
	e.sendAs("d-3", "other").want(t, 200, true)
	if n := r.count("effects"); n != 2 {
		t.Errorf("%d effects", n)
	}
	if n := r.count("onlyonce.parked"); n != 2 {
		t.Errorf("%d rows are set aside", n)
	}
}

// W7: GitHub delivers an event in the same bytes each time. So a body that never came before is an
// event, also under an id that came with another one: a stranger has used that id up, with a body
// whose own first delivery has failed. It gets an id of its own.
func TestW7BodyUnderAnIDThatWasUsedUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := r.serve(samples(t)["GitHub"], inline(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		event, err := webhook.EventOf(m)
		if err == nil && m.ID() != "e/github/"+event.ID {
			err = fmt.Errorf("the event %s is the message %s", event.ID, m.ID())
		}
		return errors.Join(err, effect(ctx, tx, m))
	}))
	e.sendAs("d-b", push("a")).want(t, 200, false) // recorded, under the id of the event b
	for i := range 3 {
		e.sendAs("d-b", push("b")).want(t, 200, i > 0)
	}
	e.sendAs("made-up", push("b")).want(t, 200, true)
	e.sendAs("d-a", push("a")).want(t, 200, true) // it is applied already, and kept for a person
	if got := one[string](
		r,
		`select string_agg(regexp_replace(id, '#[0-9a-f]{32}$', '#hash'), ' ' order by at) from effects`,
	); got != "d-b d-b#hash" {
		t.Errorf("effects of %s", got)
	}
	if got := one[string](
		r,
		`select string_agg(reason || ' ' || event_id, ', ' order by id) from onlyonce.parked`,
	); got != "same-body e/github/made-up, same-body e/github/d-a" {
		t.Errorf("set aside: %s", got)
	}
}

// W7: an event that was set aside for its body is appended by an operator, and fails as the first
// one of its id has. Both are parked then, and both are applied once they are redriven.
func TestW7TwoEventsOfOneIDFail(t *testing.T) {
	t.Parallel()
	newRig(t).appliesTwoEventsOfOneID(func(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
		tx.Queue(`insert into effects (id) values ($1)`, string(m.Value))
		return nil
	})
}

// appliesTwoEventsOfOneID stores two events of one id, which both fail and are parked, and then
// redrives them until both have their effect. Each call of apply must write one.
func (r *rig) appliesTwoEventsOfOneID(apply consumer.HandlerFunc) {
	r.t.Helper()
	e := r.serve(unknownSender())
	e.sendAs("d-1", "push").want(r.t, 200, false)
	e.sendAs("d-1", "other").want(r.t, 200, true)
	redrive := func() {
		if _, err := ops.Redrive(
			r.t.Context(),
			r.pool,
			ops.By{Reason: "a test"},
			ops.ParkedInput{ParkedFilter: ops.ParkedFilter{Kind: "event", Scope: webhook.Scope("e")}},
		); err != nil {
			r.t.Fatal(err)
		}
	}
	redrive()
	var mended atomic.Bool
	r.work(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if !mended.Load() {
			return consumer.Permanent(errors.New("the table is missing"))
		}
		return apply(ctx, tx, m)
	})
	pgtest.Until(r.t, patience, "both to be parked", func() bool {
		return one[int](r, `select count(*) from onlyonce.parked where state = 'waiting' and reason = 'permanent'`) == 2
	})
	mended.Store(true)
	redrive()
	pgtest.Until(r.t, patience, "both to be applied", func() bool { return r.count("effects") == 2 })
}

// W7: an event is parked at the moment when another worker has parked another event of its id.
func TestW7TwoEventsOfOneIDFailAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := r.serve(unknownSender())
	e.sendAs("d-1", "push").want(t, 200, false)
	r.work(func(context.Context, consumer.Tx, *consumer.Message) error {
		return consumer.Permanent(errors.New("the table is missing"))
	}, func(c *consumer.Config) {
		c.Hooks.Halted = func(h *consumer.HaltError) { t.Errorf("the partition halted: %v", h) }
	})
	waiting := func(n int) func() bool {
		return func() bool {
			return one[int](r, `select count(*) from onlyonce.parked where state = 'waiting' and reason = 'permanent'`) == n
		}
	}
	pgtest.Until(t, patience, "the first to be parked", waiting(1))
	r.exec(`update onlyonce.parked set state = 'discarded', settled_at = clock_timestamp()`)
	other, err := r.pool.Begin(t.Context()) // as if the first were parked by another worker only now
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Exec(t.Context(), `update onlyonce.parked set state = 'waiting', settled_at = null`); err != nil {
		t.Fatal(err)
	}
	e.sendAs("d-1", "other").want(t, 200, true)
	if _, err := ops.Redrive(
		t.Context(),
		r.pool,
		ops.By{Reason: "a test"},
		ops.ParkedInput{ParkedFilter: ops.ParkedFilter{Kind: "event", Scope: webhook.Scope("e")}},
	); err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, patience, "the second to wait for the first", func() bool {
		return one[int](r, `select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'transactionid'`) == 1
	})
	if err := other.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, patience, "both to be parked", waiting(2))
}

// W7, O1: of two events of one id that were parked, both have their calls under the same keys when
// they are redriven and when they are handled again.
func TestW7CallsOfTwoEventsOfOneID(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.appliesTwoEventsOfOneID(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		tx.Queue(`insert into effects (id) values ($1)`, uuid.NewString())
		return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: fmt.Sprintf("%x", sha256.Sum256(m.Value)), Target: "/charges"})
	})
	for partition := range int32(4) {
		// It is refused for those that hold no event.
		_, _ = ops.Replay(
			t.Context(),
			r.pool,
			ops.By{Reason: "a test"},
			ops.ReplayInput{CursorName: ops.CursorName{Scope: webhook.Scope("e"), Topic: "webhook.e", Partition: partition}},
		)
	}
	pgtest.Until(t, patience, "both to be handled again", func() bool { return r.count("effects") == 4 })
	if n := r.count("onlyonce.outbox_log"); n != 2 {
		t.Errorf("%d calls of 2 events", n)
	}
}

// W7: the bytes that copies of a day take are bounded, headers included. A copy beyond that leaves
// nothing, and other events are accepted.
func TestW7CopiesOfADayAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := unknownSender()
	e := r.serve(s, func(c *webhook.Config) {
		c.MaxBody = 1 << 10
		c.MaxQuarantineBytes = 65<<10 + 1
	})
	e.sendAs("d-1", "push").want(t, 200, false)
	e.sendAs("d-2", "push").want(t, 200, true)
	if n := one[int](r, `select aside from onlyonce.webhook_endpoints where aside_on = (now() at time zone 'UTC')::date`); n < 504 ||
		n > 2000 {
		t.Errorf("%d bytes are counted", n)
	}
	r.exec(`update onlyonce.webhook_endpoints set aside = 65 << 10`)
	e.sendAs("d-2", "a new push").want(t, 200, false) // no row has used that id up
	for range 2 {
		e.sendAs("d-3", "a new push").want(t, 503, false)
		if err := r.lastRefusal(); !errors.Is(err, webhook.ErrQuarantineFull) {
			t.Error(err)
		}
	}
	if n := r.count("onlyonce.parked"); n != 1 {
		t.Errorf("%d rows are set aside", n)
	}
	if n := one[int](r, `select aside from onlyonce.webhook_endpoints`); n != 65<<10 {
		t.Errorf("%d bytes are counted", n)
	}
	e.sendAs("d-4", "another push").want(t, 200, false)
	e.sendAs("d-4", "a third push").want(t, 503, false)
	e.sendAs("d-5", "a third push").want(t, 200, false)
	r.exec(`update onlyonce.webhook_endpoints set aside_on = aside_on - 1`)
	e.sendAs("d-3", "another push").want(t, 200, true)
	cfg := webhook.Config{Name: "e", Provider: s.provider, Secrets: []string{s.secret}, MaxBody: 1 << 10, MaxQuarantineBytes: 65<<10 - 1}
	if _, err := webhook.New(r.recv, cfg); err == nil || !strings.Contains(err.Error(), "MaxQuarantineBytes") {
		t.Errorf("less than a body: %v", err)
	}
}

// W8: in mode Stored an answer of 200 means that the event is in the log, raw, and a worker applies
// it once.
func TestW8Stored(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	failed := false
	r.work(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		e, err := webhook.EventOf(m)
		good := err == nil &&
			webhook.Topic(e.Endpoint) == m.Topic &&
			e.Provider == "stripe" &&
			e.Type == "invoice.paid" &&
			e.IDSigned &&
			!e.Time.IsZero() &&
			string(e.Body) == stripeBody(e.ID, " ") &&
			m.Tenant() == "t1" &&
			string(m.Key) == "in_1"
		if !good {
			return consumer.Permanent(fmt.Errorf("%+v, %w", e, err))
		}
		if !failed {
			failed = true
			return errors.New("not now")
		}
		return effect(ctx, tx, m)
	})
	e := r.serve(samples(t)["Stripe"], func(c *webhook.Config) {
		c.OrderingKey = func(*webhook.Event) string { return "in_1" }
		c.Tenant = func(*webhook.Event) string { return "t1" }
	})
	for i := range 10 {
		e.send(stripeBody(fmt.Sprint("evt_", i), " ")).want(t, 200, false)
	}
	e.send(stripeBody("evt_3", " ")).want(t, 200, true)
	r.until("all are applied", func() bool { return r.count("effects") >= 10 })
	if got := one[string](
		r,
		`select string_agg(id, ' ' order by at) from effects`,
	); got != "evt_0 evt_1 evt_2 evt_3 evt_4 evt_5 evt_6 evt_7 evt_8 evt_9" {
		t.Errorf("applied: %s", got)
	}
	if n := r.count("onlyonce.parked"); n != 0 {
		t.Errorf("%d are parked", n)
	}
}

// W8: if a handler fails in any way, the id is not used up: the same event is handled when it
// arrives again (W12).
func TestW8InlineFailureRollsTheIDBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	type handler func(ctx context.Context, tx consumer.Tx) error
	var fail atomic.Pointer[handler]
	e := r.serve(samples(t)["GitHub"], inline(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		f := fail.Load()
		if err := effect(ctx, tx, m); err != nil || f == nil {
			return err
		}
		return (*f)(ctx, tx)
	}), func(c *webhook.Config) { c.HandlerTimeout = 1500 * time.Millisecond })
	hang := make(chan struct{})
	defer close(hang)
	r.exec(`insert into effects (id) values ('taken')`)
	for name, f := range map[string]handler{
		"error": func(context.Context, consumer.Tx) error { return errors.New("not now") },
		"panic": func(context.Context, consumer.Tx) error { panic("oops") },
		"exit":  func(context.Context, consumer.Tx) error { runtime.Goexit(); return nil },
		"swallowed": func(ctx context.Context, tx consumer.Tx) error {
			_, _ = tx.Exec(ctx, `select 1/0`)
			return nil
		},
		"queued": func(_ context.Context, tx consumer.Tx) error {
			tx.Queue(`select 1/0`)
			return nil
		},
		"deferred": func(_ context.Context, tx consumer.Tx) error {
			tx.Queue(`insert into effects (id) values ('taken')`)
			return nil
		},
		"commit": func(ctx context.Context, tx consumer.Tx) error {
			_, _ = tx.Exec(ctx, `commit`)
			return nil
		},
		"slow": func(ctx context.Context, _ consumer.Tx) error {
			<-ctx.Done()
			return ctx.Err()
		},
		"hangs": func(context.Context, consumer.Tx) error { // W12: and is answered all the same
			<-hang
			return nil
		},
	} {
		fail.Store(&f)
		e.sendAs("d-"+name, name).want(t, http.StatusInternalServerError, false)
		if err := r.lastRefusal(); !errors.Is(err, webhook.ErrHandler) {
			t.Errorf("%s: refused with %v", name, err)
		}
		r.until(name+" is rolled back", func() bool {
			return r.count("onlyonce.inbox")+r.count("onlyonce.webhook_ids")+r.count("onlyonce.webhook_bodies")+r.count("effects") == 1
		})
		fail.Store(nil)
		e.sendAs("d-"+name, name).want(t, 200, false)
		e.sendAs("d-"+name, name).want(t, 200, true)
		if n := r.count("effects"); n != 2 {
			t.Errorf("%s: %d effects, want 2", name, n)
		}
		r.exec(`delete from onlyonce.inbox`)
		r.exec(`truncate onlyonce.webhook_ids, onlyonce.webhook_bodies`)
		r.exec(`delete from effects where id <> 'taken'`)
	}
}

// W8: a handler's COMMIT that is not recognized as one, for example in a function's body, is
// refused by the database.
func TestW8NothingCommitsWithoutTheSeal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var found []int16
	if err := tx.QueryRow(
		t.Context(),
		`select onlyonce.receive_webhooks('e', array[gen_random_uuid()], array[1::bigint], null, null, null, null, null, '1h', null,
			'1000', '1000', '1000', '1000')`,
	).Scan(&found); err != nil ||
		len(found) != 1 ||
		found[0] != 0 {
		t.Fatalf("%v, %v", found, err)
	}
	if err := tx.Commit(t.Context()); guard.SQLState(err) != "OO002" {
		t.Errorf("COMMIT without the seal: %v", err)
	}
}

// W9: however many copies arrive at once, one is new, and each of the others is answered 200 only
// after its COMMIT.
func TestW9DuplicatesInParallel(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"inbox", "inline"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			var more []func(*webhook.Config)
			if mode == "inline" {
				more = append(more, inline(effect))
			} else {
				r.work(effect)
			}
			e := r.serve(samples(t)["Stripe"], more...)
			const events, copies = 12, 8
			var wg sync.WaitGroup
			var mu sync.Mutex
			fresh := map[int]int{}
			for i := range events {
				for range copies {
					wg.Go(func() {
						for {
							a := e.send(stripeBody(fmt.Sprint("evt_", i), ""))
							if a.status == http.StatusServiceUnavailable {
								continue // as a sender does
							}
							if a.status != 200 {
								t.Errorf("%d %s", a.status, a.body)
							}
							if n := one[int](r, `select count(*) from onlyonce.inbox where key = onlyonce.key('', 'webhook/e', $1)`,
								fmt.Sprint("e/stripe/evt_", i)); n != 1 {
								t.Error("answered before it was committed")
							}
							if a.header.Get("Webhook-Duplicate") == "" {
								mu.Lock()
								fresh[i]++
								mu.Unlock()
							}
							return
						}
					})
				}
			}
			wg.Wait()
			r.until("all are applied", func() bool { return r.count("effects") == events })
			for i := range events {
				if fresh[i] != 1 {
					t.Errorf("event %d was new %d times", i, fresh[i])
				}
			}
		})
	}
}

// W9: a copy waits for an uncommitted first one. It is a duplicate if that commits, and new if it
// rolls back. If that takes too long, the sender gets 503 and sends again.
func TestW9UncommittedFirstCopy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	entered := make(chan struct{})
	leave := make(chan error)
	handler := inline(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		entered <- struct{}{}
		if err := <-leave; err != nil {
			return err
		}
		return effect(ctx, tx, m)
	})
	e := r.serve(samples(t)["Stripe"], handler)
	impatient := r.serve(samples(t)["Stripe"], handler, func(c *webhook.Config) { c.DuplicateWait = time.Millisecond })
	send := func(id string) <-chan answer {
		done := make(chan answer, 1)
		go func() { done <- e.send(stripeBody(id, "")) }()
		return done
	}
	waiting := func() {
		t.Helper()
		r.until("a copy waits", func() bool {
			return one[bool](
				r,
				`select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')`,
			)
		})
	}

	first := send("evt_1")
	pgtest.Receive(t, patience, "the handler is entered", entered)
	impatient.send(stripeBody("evt_1", "")).want(t, http.StatusServiceUnavailable, false)
	if err := r.lastRefusal(); !errors.Is(err, webhook.ErrPending) {
		t.Errorf("refused with %v", err)
	}
	second := send("evt_1")
	waiting()
	leave <- nil
	(<-first).want(t, 200, false)
	(<-second).want(t, 200, true)

	first = send("evt_2")
	pgtest.Receive(t, patience, "the handler is entered", entered)
	second = send("evt_2")
	waiting()
	leave <- errors.New("not now")
	(<-first).want(t, http.StatusInternalServerError, false)
	pgtest.Receive(t, patience, "the handler is entered", entered)
	leave <- nil
	(<-second).want(t, 200, false)
	if n := r.count("effects"); n != 2 {
		t.Errorf("%d effects", n)
	}
}

// W9: if the sender signs the id, the same id with another body is a duplicate. A hook and
// the log report it, and nothing is kept.
func TestW9Divergence(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var text func() string
	e := r.serve(samples(t)["Stripe"], func(c *webhook.Config) { c.Logger, text = pgtest.Logged() })
	e.send(stripeBody("evt_1", `,"pending_webhooks":2`)).want(t, 200, false)
	e.send(stripeBody("evt_1", `,"pending_webhooks":1`)).want(t, 200, true)
	if r.last() != webhook.Divergent {
		t.Errorf("outcome %s", r.last())
	}
	if s := text(); strings.Count(s, "came again with another body") != 1 || strings.Contains(s, "evt_1") {
		t.Errorf("log: %s", s)
	}
	stored, parked := r.count("onlyonce.event_log"), r.count("onlyonce.parked")
	if stored != 1 || parked != 0 {
		t.Errorf("%d events are stored, %d set aside", stored, parked)
	}
}

// W10: New refuses a configuration under which ids would be forgotten while the provider may still
// deliver the event.
func TestW10Retention(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	long := altered{
		webhook.HMAC{Name: "acme", SignatureHeader: "X-S", IDHeader: "X-Id"},
		func(s *scheme.Scheme) { s.Redeliveries = 30 * 24 * time.Hour },
	}
	for _, c := range []struct {
		provider  webhook.Provider
		secret    string
		retention time.Duration
		good      bool
	}{
		{webhook.GitHub{}, "0123456789abcdef", 0, true},
		{webhook.GitHub{}, "0123456789abcdef", 72 * time.Hour, true},
		{webhook.GitHub{}, "0123456789abcdef", 72*time.Hour - 1, false},
		{altered{webhook.GitHub{}, func(s *scheme.Scheme) { s.Redeliveries = time.Hour }}, "0123456789abcdef", 24*time.Hour - 1, false},
		{webhook.Standard{}, standardSecret, 72 * time.Hour, false},
		{long, "0123456789abcdef", 29 * 24 * time.Hour, false},
		{long, "0123456789abcdef", 30 * 24 * time.Hour, true},
	} {
		_, err := webhook.New(r.recv, webhook.Config{Name: "e", Provider: c.provider, Secrets: []string{c.secret}, Retention: c.retention})
		if (err == nil) != c.good || err != nil && !strings.Contains(err.Error(), "Retention") {
			t.Errorf("%v: %v", c.retention, err)
		}
	}
}

// W10: if the inbox would forget ids sooner than Retention, Run returns an error that says what to
// change.
func TestW10Horizon(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	x := r.receiver(samples(t)["GitHub"])
	short := func(ring string) {
		t.Helper()
		if err := x.Upkeep(t.Context()); err == nil ||
			!strings.Contains(err.Error(), "Config.Retention") ||
			!strings.Contains(err.Error(), "onlyonce inbox horizon -ring "+ring+" ") {
			t.Errorf("%v", err)
		}
	}
	r.exec(`update onlyonce.rings set horizon = '2 days' where name = 'standard_keys'`)
	short("standard_keys")
	r.exec(`update onlyonce.rings set horizon = '7 days' where name = 'standard_keys'`)
	r.exec(`insert into onlyonce.horizons values ('webhook/e', 'short', 'standard', now())`)
	short("standard_short_keys")
}

// K10: an endpoint's ids are claimed in the ring of its class.
func TestK10EndpointHasAClass(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := r.serve(samples(t)["GitHub"])
	r.exec(`insert into onlyonce.horizons values ('webhook/e', 'long', 'standard', '2000-01-01')`)
	e.sendAs("1", "body").want(t, 200, false)
	e.sendAs("1", "body").want(t, 200, true)
	if got := one[string](r, `select string_agg(segment, ' ') from onlyonce.inbox`); got != "standard_long_keys_0" {
		t.Errorf("claimed in %s", got)
	}
}

// T11: ids and bodies that come while the clock is back are dated by watched time, so that they do
// not look old when it is right again.
func TestT11IdsWhileTheClockIsBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := r.serve(samples(t)["GitHub"])
	r.exec(`update onlyonce.watched set at = clock_timestamp() + interval '7 days'`)
	e.sendAs("1", "body").want(t, 200, false)
	if n := one[int](
		r,
		`select count(*)
			from (select seen_at from onlyonce.webhook_ids union all select seen_at from onlyonce.webhook_bodies) s, onlyonce.watched w
		where seen_at >= w.at`,
	); n != 2 {
		t.Errorf("%d of an id and a body are dated by watched time", n)
	}
}

// W10: older ids are forgotten, except those whose event waits for an operator (T11).
func TestW10Purge(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := r.serve(samples(t)["GitHub"])
	for _, id := range []string{"old", "parked", "young"} {
		e.sendAs(id, id).want(t, 200, false)
	}
	e.sendAs("aside", "parked").want(t, 200, true)
	r.exec(`update onlyonce.parked set key = onlyonce.key('', 'webhook/e', 'e/github/aside')`) // as if its handler had failed
	r.exec(`update onlyonce.webhook_ids set seen_at = seen_at - interval '8 days'
		where key <> onlyonce.key('', 'webhook/e', 'e/github/young')`)
	r.exec(`update onlyonce.webhook_bodies set seen_at = seen_at - interval '8 days' where digest <> sha256('young')`)
	// T11: the clock is ahead, so that what is young looks old.
	r.exec(`update onlyonce.watched set at = clock_timestamp()`)
	pgtest.ShiftClock(t, r.pool)("30 days")
	r.recv.Reset()
	e.sendAs("again", "young").want(t, 200, true)
	var forgotten int64
	purged := make(chan struct{})
	x := r.receiver(e.sample, func(c *webhook.Config) {
		c.Hooks.Forgotten = func(n int64) { forgotten = n; close(purged) }
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- x.Upkeep(ctx) }()
	select {
	case <-purged:
	case <-time.After(patience):
		pgtest.GaveUp(t, patience, "a purge")
	}
	stop()
	if err := pgtest.Receive(t, patience, "it is done", done); err != nil {
		t.Error(err)
	}
	if forgotten != 4 || r.count("onlyonce.webhook_ids") != 1 || r.count("onlyonce.webhook_bodies") != 1 {
		t.Errorf("%d ids and bodies were forgotten; %d, %d are left",
			forgotten, r.count("onlyonce.webhook_ids"), r.count("onlyonce.webhook_bodies"))
	}
	e.sendAs("old", "old").want(t, 200, true) // its segment is there still
	r.exec(`delete from onlyonce.inbox`)      // the horizon has passed
	e.sendAs("aside", "parked").want(t, 200, true)
	e.sendAs("old", "old").want(t, 200, false) // a new one: its id is forgotten
}

// T13: a database that is slow forgets them too, in smaller portions.
func TestT13PurgeOfASlowDatabase(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := r.serve(samples(t)["GitHub"])
	for i := range 20 {
		e.sendAs(fmt.Sprint("id", i), fmt.Sprint("body", i)).want(t, 200, false)
	}
	r.exec(`update onlyonce.webhook_ids set seen_at = seen_at - interval '8 days'`)
	r.exec(`update onlyonce.webhook_bodies set seen_at = seen_at - interval '8 days'`)
	pgtest.Bound(t, r.pool, "onlyonce.webhook_ids", 5)
	x := r.receiver(e.sample, func(*webhook.Config) {})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- x.Upkeep(ctx) }()
	pgtest.Until(t, patience, "all ids are forgotten", func() bool { return r.count("onlyonce.webhook_ids") == 0 })
	stop()
	if err := pgtest.Receive(t, patience, "it is done", done); err != nil {
		t.Error(err)
	}
}

// W11: without a database no request is answered 2xx.
func TestW11StoreDown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	good := r.recv
	r.recv = r.open("postgres://nobody@127.0.0.1:1/x")
	e := r.serve(samples(t)["Stripe"])
	e.send(stripeBody("evt_1", "")).want(t, http.StatusServiceUnavailable, false)
	if err := r.lastRefusal(); !errors.Is(err, webhook.ErrStore) {
		t.Errorf("refused with %v", err)
	}
	r.recv = good
	e = r.serve(samples(t)["Stripe"])
	r.exec(`alter table onlyonce.event_log rename to gone`)
	e.send(stripeBody("evt_1", "")).want(t, http.StatusServiceUnavailable, false)
	r.exec(`alter table onlyonce.gone rename to event_log`)
	if n := r.count("onlyonce.inbox"); n != 0 {
		t.Errorf("%d ids are claimed of events that were not stored", n)
	}
	// If connections were cut without the pool noticing, the sender does not get an error for it.
	e.send(stripeBody("evt_1", "")).want(t, 200, false)
	r.exec(`select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'receiver' and datname = current_database()`)
	e.send(stripeBody("evt_2", "")).want(t, 200, false)
}

// W12: the sender gets an answer while it still waits, whatever holds the database up.
func TestW12Deadline(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for provider, s := range samples(t) {
		cfg := webhook.Config{Name: "e", Provider: s.provider, Secrets: []string{s.secret}, HandlerTimeout: time.Minute}
		if _, err := webhook.New(r.recv, cfg); err == nil || !strings.Contains(err.Error(), "HandlerTimeout") {
			t.Errorf("%s: a deadline of a minute: %v", provider, err)
		}
	}
	e := r.serve(samples(t)["Slack"], func(c *webhook.Config) { c.HandlerTimeout = 375 * time.Millisecond })
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `lock table onlyonce.event_log`); err != nil {
		t.Fatal(err)
	}
	e.send(e.body).want(t, http.StatusServiceUnavailable, false) // while the lock is held
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.until("what was under way is undone", func() bool {
		return one[bool](
			r,
			`select not exists (select from pg_stat_activity
				where application_name = 'receiver' and datname = current_database() and state <> 'idle')`,
		)
	})
	a := e.send(e.body)
	if a.status != 200 || r.count("onlyonce.event_log") != 1 {
		t.Errorf("sent again: %d, %d events", a.status, r.count("onlyonce.event_log"))
	}
}

// told is a body that reports when it is read.
type told struct {
	io.ReadCloser
	begun chan struct{}
	once  sync.Once
}

func (b *told) Read(p []byte) (int, error) {
	b.once.Do(func() { close(b.begun) })
	return b.ReadCloser.Read(p)
}

// W12, W17: a body that trickles in takes no place, and is refused at the deadline at the latest.
func TestW12SlowBody(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	receiver := r.receiver(samples(t)["Slack"], func(c *webhook.Config) {
		c.HandlerTimeout = 375 * time.Millisecond
		c.MaxInFlight = 1
	})
	begun := make(chan struct{})
	e := r.serveMux(samples(t)["Slack"], http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.ContentLength < 0 {
			req.Body = &told{ReadCloser: req.Body, begun: begun}
		}
		receiver.ServeHTTP(w, req)
	}), "")
	body, writer := io.Pipe()
	defer writer.Close()
	req := e.request(e.sign(e.secret, time.Now(), e.body), "")
	req.Body = body
	req.ContentLength = -1
	done := make(chan struct{})
	go func() {
		defer close(done)
		if resp, err := e.client.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode != http.StatusRequestTimeout {
				t.Errorf("status %d", resp.StatusCode)
			}
		}
	}()
	if _, err := writer.Write([]byte(e.body[:1])); err != nil {
		t.Fatal(err)
	}
	pgtest.Receive(t, patience, "it has begun", begun)
	go func() { // faster than W17 demands: only the deadline ends it
		for chunk := bytes.Repeat([]byte{' '}, 4096); ; time.Sleep(50 * time.Millisecond) {
			if _, err := writer.Write(chunk); err != nil {
				return
			}
		}
	}()
	// there is one place; and the deadline is short
	r.until("an event is taken meanwhile", func() bool { return e.send(e.body).status == 200 })
	pgtest.Receive(t, patience, "it is done", done)
	writer.Close()
}

// W13: probes are answered, and not stored.
func TestW13ProbesAreAnswered(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	slack := r.serve(samples(t)["Slack"])
	github := r.serve(samples(t)["GitHub"])
	r.asks(false, func() {
		a := slack.send(`{"type":"url_verification","challenge":"3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"}`)
		a.want(t, 200, false)
		if a.body != "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P" ||
			!strings.HasPrefix(a.header.Get("Content-Type"), "text/plain") {
			t.Errorf("answered %q as %s", a.body, a.header.Get("Content-Type"))
		}
		body := `{"zen":"Keep it logically awesome."}`
		h := github.sign(github.secret, time.Now(), body)
		h.Set("X-GitHub-Event", "ping")
		github.do(github.request(h, body)).want(t, 200, false)
		h.Set("X-Hub-Signature-256", strings.Repeat("0", 64))
		if a := github.do(github.request(h, body)); a.status == 200 {
			t.Error("a ping that nobody signed is answered")
		}
	})
}

// W14: only the listed headers are stored, in the log and in the parked table.
func TestW14StoredHeaders(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := r.serve(samples(t)["GitHub"])
	for _, id := range []string{"d-1", "d-2"} {
		h := e.sign(e.secret, time.Now(), "push")
		h.Set("X-GitHub-Delivery", id)
		for name, value := range map[string]string{
			"Authorization":   "Bearer secret",
			"Cookie":          "secret",
			"X-Other":         "secret",
			"X-Forwarded-For": "secret",
			"Onlyonce-Id":     "secret",
			"Content-Type":    "application/json",
		} {
			h.Set(name, value)
		}
		if a := e.do(e.request(h, "push")); a.status != 200 {
			t.Errorf("status %d", a.status)
		}
	}
	const want = "onlyonce-provider onlyonce-id onlyonce-type Content-Type X-Github-Delivery X-Github-Event"
	if got := one[string](r, `select array_to_string(header_names, ' ') from onlyonce.event_log`); got != want {
		t.Errorf("the log has %s", got)
	}
	if got := one[string](r, `select string_agg(convert_from(n, 'UTF8'), ' ') from onlyonce.parked, unnest(header_names) n`); got != want {
		t.Errorf("the parked table has %s", got)
	}
	if one[bool](r, `select exists (select from onlyonce.event_log, unnest(header_values) v where position('secret'::bytea in v) > 0)`) {
		t.Error("a secret is stored")
	}
}

// A worker gets the request's bytes unchanged, and can verify them again (W3).
func TestBytesArriveAsTheyWere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var mu sync.Mutex
	got := map[string][]byte{}
	r.work(func(_ context.Context, _ consumer.Tx, m *consumer.Message) error {
		e, err := webhook.EventOf(m)
		if err != nil {
			return consumer.Permanent(err)
		}
		mu.Lock()
		defer mu.Unlock()
		got[e.ID] = bytes.Clone(e.Body)
		return nil
	})
	e := r.serve(samples(t)["GitHub"])
	want := map[string]string{
		"empty": "",
		"nul":   "a\x00b",
		"latin": "\xff\xfe\x00",
		"json":  "{ \"a\" :1,\r\n\"a\":2}",
		"long":  strings.Repeat("x", 1<<20),
	}
	for id, body := range want {
		e.sendAs(id, body).want(t, 200, false)
	}
	r.until("all are read", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(got) == len(want)
	})
	for id, body := range want {
		if string(got[id]) != body {
			t.Errorf("%s: %.40q", id, got[id])
		}
	}
}

// T5: if a sender hangs up, nothing is undone, because it may have been promised something (W11).
func TestT5ClientThatLeaves(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	entered := make(chan struct{})
	leave := make(chan struct{})
	receiver := r.receiver(samples(t)["Stripe"], inline(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		close(entered)
		select {
		case <-leave:
		case <-ctx.Done():
			return ctx.Err()
		}
		return effect(ctx, tx, m)
	}))
	requests := make(chan context.Context, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		requests <- req.Context()
		receiver.ServeHTTP(w, req)
	}))
	defer server.Close()
	e := &endpoint{rig: r, sample: samples(t)["Stripe"], url: server.URL, client: server.Client()}
	body := stripeBody("evt_1", "")
	ctx, hangUp := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if resp, err := e.client.Do(e.request(e.sign(e.secret, time.Now(), body), body).WithContext(ctx)); err == nil {
			resp.Body.Close()
			t.Error("it was answered")
		}
	}()
	pgtest.Receive(t, patience, "the handler is entered", entered)
	hangUp()
	pgtest.Receive(t, patience, "it is gone", gone)
	<-(<-requests).Done() // the server knows
	close(leave)
	r.until("the event is applied", func() bool { return r.count("effects") == 1 })
}

// W7: one body under many ids at once is accepted once, and set aside once if it names itself;
// otherwise each of the others is kept.
func TestW7SameBodyInParallel(t *testing.T) {
	t.Parallel()
	const n = 10
	for body, aside := range map[string]int{push("1"): 1, "push": n - 1} {
		r := newRig(t)
		e := r.serve(samples(t)["GitHub"])
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				if a := e.sendAs(fmt.Sprint("d-", i), body); a.status != 200 {
					t.Errorf("status %d", a.status)
				}
			})
		}
		wg.Wait()
		stored, parked := r.count("onlyonce.event_log"), r.count("onlyonce.parked")
		if stored != 1 || parked != aside {
			t.Errorf("%s: %d are stored, %d set aside, want %d", body, stored, parked, aside)
		}
	}
}
