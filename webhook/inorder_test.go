package webhook_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/webhook"
)

// versioned is an event of an object's version.
func versioned(id, object string, version int) string {
	return stripeBody(id, fmt.Sprintf(`,"o":%q,"v":%d`, object, version))
}

func versionOf(e *webhook.Event) (string, int64, error) {
	var x struct {
		O string
		V int64
	}
	if err := json.Unmarshal(e.Body, &x); err != nil {
		return "", 0, err
	}
	if x.V < 0 {
		return "", 0, errors.New("negative")
	}
	return x.O, x.V, nil
}

func inOrder(t *testing.T, drop bool, told *sync.Map) consumer.HandlerFunc {
	t.Helper()
	h, err := webhook.InOrder(
		webhook.Ordered{
			Version:   versionOf,
			DropStale: drop,
			Stale:     func(m *consumer.Message, _ string, _ int64) { told.Store(m.ID(), true) },
		},
		consumer.HandlerFunc(effect),
	)
	if err != nil {
		t.Fatal(err)
	}
	return h.Handle
}

// An event that is older than what was applied to its object does not reach the handler: it is
// dropped or parked, as configured.
func TestStaleEvents(t *testing.T) {
	t.Parallel()
	sent := []string{
		versioned("evt_a2", "a", 2), versioned("evt_b1", "b", 1), versioned("evt_a1", "a", 1), versioned("evt_a2'", "a", 2),
		versioned("evt_a3", "a", 3), versioned("evt_none", "", 0), versioned("evt_b2", "b", 2), versioned("evt_b0", "b", 0),
	}
	const want = "evt_a2 evt_a2' evt_a3 evt_b1 evt_b2 evt_none"
	for _, mode := range []string{"inbox", "inline"} {
		for name, drop := range map[string]bool{"drop": true, "park": false} {
			t.Run(mode+" "+name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				var told sync.Map
				h := inOrder(t, drop, &told)
				key := func(c *webhook.Config) {
					c.OrderingKey = func(e *webhook.Event) string { o, _, _ := versionOf(e); return o }
				}
				more := []func(*webhook.Config){key}
				if mode == "inline" {
					more = append(more, inline(h))
				} else {
					r.work(h)
				}
				e := r.serve(samples(t)["Stripe"], more...)
				for _, body := range sent {
					e.send(body).want(t, 200, false)
				}
				parked := 0
				if !drop {
					parked = 2
				}
				r.until("all are handled", func() bool { return r.count("effects") >= 6 && r.count("onlyonce.parked") >= parked })
				if got := one[string](r, `select string_agg(id, ' ' order by id collate "C") from effects`); got != want {
					t.Errorf("applied %s, want %s", got, want)
				}
				if n := r.count("onlyonce.parked"); n != parked {
					t.Errorf("%d are set aside, want %d", n, parked)
				}
				for _, id := range []string{"evt_a1", "evt_b0"} {
					r.until(id+" is told", func() bool { _, ok := told.Load("e/stripe/" + id); return ok })
				}
				e.send(sent[2]).want(t, 200, true)
				if mode == "inline" && parked > 0 {
					if got := one[string](
						r,
						`select string_agg(state || ' ' || reason, ' ') from onlyonce.parked`,
					); got != "waiting stale waiting stale" {
						t.Errorf("set aside as %s", got)
					}
				}
			})
		}
	}
	_, err := webhook.InOrder(webhook.Ordered{}, nil)
	for _, field := range []string{"Version", "handler"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
}

// An event that fails does not block a later one, and is stale when it is tried again.
func TestStaleAfterAFailure(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var told sync.Map
	h := inOrder(t, true, &told)
	fail := map[string]bool{"evt_a1": true}
	e := r.serve(samples(t)["Stripe"], inline(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		err := h(ctx, tx, m)
		if x, _ := webhook.EventOf(m); err == nil && fail[x.ID] {
			return errors.New("not now")
		}
		return err
	}))
	e.send(versioned("evt_a1", "a", 1)).want(t, 500, false)
	e.send(versioned("evt_a2", "a", 2)).want(t, 200, false)
	delete(fail, "evt_a1")
	e.send(versioned("evt_a1", "a", 1)).want(t, 200, false)
	if got := one[string](r, `select string_agg(id, ' ') from effects`); got != "evt_a2" {
		t.Errorf("applied %s", got)
	}
}

// A forwarded event is a call whose key derives from the event, once, beside a handler or instead
// of one.
func TestForward(t *testing.T) {
	t.Parallel()
	forward := func(c *webhook.Config) {
		c.Forward = &webhook.Forward{Sink: "kafka", Target: "/hooks", KeyInTarget: true}
		c.OrderingKey = func(*webhook.Event) string { return "in/1 &" }
		c.MaxBody = 1 << 20 // GitHub sends more than a call's body can hold
	}
	var keys []string
	for _, mode := range []webhook.EndpointMode{webhook.ForwardOnly, webhook.Stored, webhook.Inline} {
		r := newRig(t)
		e := r.serve(samples(t)["GitHub"], forward, func(c *webhook.Config) {
			c.Mode = mode
			if mode == webhook.Inline {
				c.Handler = consumer.HandlerFunc(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
					if err := outbox.Enqueue(ctx, tx, outbox.Call{Sink: "mail", Name: "tell", Body: m.Value}); err != nil {
						return err
					}
					return effect(ctx, tx, m)
				})
			}
		})
		e.sendAs("d-1", "push").want(t, 200, false)
		e.sendAs("d-1", "push").want(t, 200, true)
		e.sendAs("d-2", "other").want(t, 200, false)
		if n := r.count("onlyonce.event_log"); (n == 2) != (mode == webhook.Stored) {
			t.Errorf("mode %d: %d events are stored", mode, n)
		}
		if n := r.count("effects"); (n == 2) != (mode == webhook.Inline) {
			t.Errorf("mode %d: %d effects", mode, n)
		}
		if n := r.count("onlyonce.outbox_log where sink = 'kafka'"); n != 2 {
			t.Errorf("mode %d: %d calls, want 2", mode, n)
		}
		got := one[string](
			r,
			`select name || ' ' || target || ' ' || convert_from(body, 'UTF8') || E'\n' || headers from onlyonce.outbox_log
				where sink = 'kafka' order by id limit 1`,
		)
		for _, want := range []string{
			"forward /hooks?key=in%2F1%20%26 push",
			"Webhook-Event-Id: d-1",
			"Webhook-Provider: github",
			"Webhook-Event-Type: push",
			"X-Github-Delivery: d-1",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("mode %d: %s lacks %s", mode, got, want)
			}
		}
		keys = append(keys, one[string](r, `select key::text from onlyonce.outbox_log where sink = 'kafka' order by id limit 1`))
	}
	if slices.Contains(keys, "") || keys[0] != keys[1] || keys[1] != keys[2] {
		t.Errorf("keys %v of one event differ", keys)
	}
}

// One handler works in both modes, and the calls that it enqueues have the same keys in each (E4).
func TestHandlerOfBothModes(t *testing.T) {
	t.Parallel()
	var keys []string
	for _, mode := range []string{"inbox", "inline"} {
		r := newRig(t)
		h := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			if m.ID() != "e/stripe/evt_1" || m.Tenant() != "t" {
				return consumer.Permanent(fmt.Errorf("id %q tenant %q", m.ID(), m.Tenant()))
			}
			return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "mail", Name: "tell", Body: m.Value})
		}
		more := []func(*webhook.Config){func(c *webhook.Config) { c.Tenant = func(*webhook.Event) string { return "t" } }}
		if mode == "inline" {
			more = append(more, inline(h))
		} else {
			r.work(h)
		}
		r.serve(samples(t)["Stripe"], more...).send(stripeBody("evt_1", "")).want(t, 200, false)
		r.until("the call is enqueued", func() bool { return r.count("onlyonce.outbox_log") == 1 })
		keys = append(keys, one[string](r, `select key::text || ' ' || tenant || ' ' || scope from onlyonce.outbox_log`))
	}
	if keys[0] != keys[1] || !strings.HasSuffix(keys[0], " t webhook/e") {
		t.Errorf("calls %v", keys)
	}
}

// A reconciliation adds what never arrived, once, in whichever process it runs, and reports since
// when it has listed (O6).
func TestReconcile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var mu sync.Mutex
	var since []time.Time
	var told []string
	fail := true
	reconcile := func(c *webhook.Config) {
		c.Backfill = &webhook.Backfill{
			Every:   time.Second,
			Overlap: time.Minute,
			List: func(_ context.Context, from time.Time, each func(*webhook.Event) error) error {
				mu.Lock()
				defer mu.Unlock()
				since = append(since, from)
				for _, id := range []string{"evt_came", "evt_missed"} {
					if err := each(&webhook.Event{
						ID:   id,
						Type: "invoice.paid",
						Time: time.Now(),
						Body: []byte(stripeBody(id, `,"rendered":"anew"`)),
					}); err != nil {
						return err
					}
				}
				if fail {
					fail = false
					return errors.New("the provider is down")
				}
				return nil
			},
		}
		c.Hooks.Backfilled = func(of webhook.BackfilledEvent) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprint(of.Listed, of.Missed, of.Err != nil))
		}
	}
	e := r.serve(samples(t)["Stripe"])
	e.send(stripeBody("evt_came", "")).want(t, 200, false)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for range 2 {
		x := r.receiver(e.sample, reconcile)
		running.Go(func() {
			if err := x.Upkeep(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	r.until("three reconciliations", func() bool { mu.Lock(); defer mu.Unlock(); return len(told) >= 3 })
	stop()
	running.Wait()
	if told[0] != "2 1 true" || told[1] != "2 0 false" || told[2] != "2 0 false" {
		t.Errorf("told %q", told)
	}
	if ago := time.Since(since[1]); ago < 3*24*time.Hour || since[2].Before(since[1].Add(24*time.Hour)) {
		t.Errorf("looked since %v: the first two know of no complete one", since)
	}
	e.send(stripeBody("evt_missed", "")).want(t, 200, true)
	if got := one[string](
		r,
		`select string_agg(id, ' ' order by appended_at) from onlyonce.event_log`,
	); got != "e/stripe/evt_came e/stripe/evt_missed" {
		t.Errorf("stored: %s", got)
	}
}

// W10: an event whose handler fails each time does not keep those out that are listed after it, and
// the reconciliation does not count as complete.
func TestW10ReconciliationGoesOn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	told := make(chan webhook.BackfilledEvent, 100)
	x := r.receiver(samples(t)["Stripe"], func(c *webhook.Config) {
		c.Mode = webhook.Inline
		c.Handler = consumer.HandlerFunc(func(_ context.Context, _ consumer.Tx, m *consumer.Message) error {
			if strings.HasSuffix(m.ID(), "evt_fails") {
				return errors.New("each time")
			}
			return nil
		})
		c.Backfill = &webhook.Backfill{
			Every: time.Second,
			List: func(_ context.Context, _ time.Time, each func(*webhook.Event) error) error {
				for _, id := range []string{"evt_fails", "evt_missed"} {
					if err := each(&webhook.Event{
						ID:   id,
						Type: "invoice.paid",
						Time: time.Now(),
						Body: []byte(stripeBody(id, "")),
					}); err != nil {
						return err
					}
				}
				return nil
			},
		}
		c.Hooks.Backfilled = func(of webhook.BackfilledEvent) { told <- of }
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- x.Upkeep(ctx) }()
	if of := pgtest.Receive(t, patience, "a reconciliation", told); of.Listed != 2 ||
		of.Missed != 1 ||
		!errors.Is(of.Err, webhook.ErrHandler) {
		t.Errorf("%+v", of)
	}
	stop()
	if err := pgtest.Receive(t, patience, "Run ends", ended); err != nil {
		t.Error(err)
	}
	if n := one[int](r, `select count(*) from onlyonce.webhook_endpoints where backfilled_at is not null`); n != 0 {
		t.Error("it counts as complete, although an event is missing")
	}
}

// W10: a reconciliation lists no event that is older than ids are remembered, because such an event
// would be accepted a second time.
func TestW10ReconciliationAfterALongPause(t *testing.T) {
	t.Parallel()
	since, before, after := listedSince(t, newRig(t), "-40 days")
	if since.Before(before.Add(-retention)) || since.After(after.Add(-retention)) {
		t.Errorf("it lists what came since %v; ids are remembered from between %v and %v on",
			since, before.Add(-retention), after.Add(-retention))
	}
}

// T11: if the last reconciliation is in the future, because the clock was ahead, the next one is
// due at once, lists what that one may have missed, and is recorded.
func TestT11ReconciliationAfterTheClockWasAhead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	since, before, after := listedSince(t, r, "7 days")
	const back = 75 * time.Minute // Every and Overlap
	if since.Before(before.Add(-back)) || since.After(after.Add(-back)) {
		t.Errorf("it lists what came since %v, between %v and %v was wanted", since, before.Add(-back), after.Add(-back))
	}
	if !one[bool](r, `select backfilled_at < clock_timestamp() from onlyonce.webhook_endpoints`) {
		t.Error("the next one is due in a week")
	}
}

// retention is how long listedSince's endpoint remembers ids.
const retention = 10 * 24 * time.Hour

// listedSince returns since when a reconciliation lists if the last one was so long after now, and
// between which times it ran.
func listedSince(t *testing.T, r *rig, last string) (since, before, after time.Time) {
	t.Helper()
	r.exec(`insert into onlyonce.webhook_endpoints (endpoint, backfilled_at) values ('e', clock_timestamp() + $1::text::interval)`, last)
	r.exec(`update onlyonce.rings set horizon = '11 days' where name = 'standard_keys'`)
	asked := make(chan time.Time, 1)
	recorded := make(chan struct{})
	x := r.receiver(samples(t)["Stripe"], func(c *webhook.Config) {
		c.Retention = retention
		c.Backfill = &webhook.Backfill{List: func(_ context.Context, since time.Time, _ func(*webhook.Event) error) error {
			asked <- since
			return nil
		}}
		c.Hooks.Backfilled = func(webhook.BackfilledEvent) { close(recorded) }
	})
	before = one[time.Time](r, `select clock_timestamp()`)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- x.Upkeep(ctx) }()
	select {
	case <-recorded:
		since = <-asked
	case err := <-ended:
		t.Fatal(err)
	case <-time.After(patience):
		t.Fatal("nothing is listed")
	}
	after = one[time.Time](r, `select clock_timestamp()`)
	stop()
	if err := pgtest.Receive(t, patience, "Run ends", ended); err != nil {
		t.Error(err)
	}
	return since, before, after
}

func TestEndpointFaults(t *testing.T) {
	t.Parallel()
	_, err := webhook.New(nil, webhook.Config{
		Name:           "a/b",
		Mode:           7,
		Forward:        &webhook.Forward{},
		SameBodies:     7,
		Partitions:     -1,
		Retention:      1,
		BodyWindow:     1,
		DuplicateWait:  time.Hour,
		HandlerTimeout: 1,
		RetryAfter:     1,
		MaxInFlight:    -1,
		Backfill:       &webhook.Backfill{Every: 1},
		Group:          "\xff",
		PollInterval:   1,
		LeaseTTL:       1,
		KeepEvents:     -1,
	})
	for _, field := range []string{
		"pool", "Config.Name", "Provider: must be set", "Secrets: ", "Config.Mode", "Config.SameBodies",
		"Forward.Sink: ", "Forward.Target: ", "Partitions", "Retention", "BodyWindow",
		"DuplicateWait", "HandlerTimeout", "RetryAfter", "MaxInFlight", "Backfill: List",
		"Backfill.Every", "Config.Group", "Config.PollInterval", "Config.LeaseTTL",
		"Config.KeepEvents",
	} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
	for why, c := range map[string]struct {
		cfg  webhook.Config
		want string
	}{
		"inline without a handler": {webhook.Config{Mode: webhook.Inline}, "Config.Handler: must be set in mode Inline"},
		"a handler that nothing calls": {
			webhook.Config{Mode: webhook.ForwardOnly, Handler: consumer.HandlerFunc(effect)},
			"Config.Handler: must not be set in mode ForwardOnly",
		},
		"a handler that the consumer has": {
			webhook.Config{Handler: consumer.HandlerFunc(effect)},
			"Config.Handler: must not be set in mode Stored: give the handler to consumer.New",
		},
		"forwarding to nowhere": {webhook.Config{Mode: webhook.ForwardOnly}, "Config.Forward: must be set"},
	} {
		c.cfg.SameBodies = 7 // no fault hides a later one
		_, err := webhook.New(nil, c.cfg)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "Config.SameBodies") {
			t.Errorf("%s: %v", why, err)
		}
	}
}

// D8: an event that was set aside is given up and erased. A copy of it is a duplicate, also when
// the row is gone.
func TestD8CopyOfAnErasedEvent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var told sync.Map
	e := r.serve(samples(t)["Stripe"], inline(inOrder(t, false, &told)))
	e.send(versioned("evt_a2", "a", 2)).want(t, 200, false)
	e.send(versioned("evt_a1", "a", 1)).want(t, 200, false)
	if _, err := ops.Discard(
		t.Context(),
		r.pool,
		ops.By{Reason: "a test"},
		ops.ParkedInput{ParkedFilter: ops.ParkedFilter{ID: 1}},
	); err != nil {
		t.Fatal(err)
	}
	if _, err := ops.EraseParked(t.Context(), r.pool, ops.By{Reason: "a test"}, ops.EraseParkedInput{ID: 1}); err != nil {
		t.Fatal(err)
	}
	if n := one[int](r, `select count(*) from onlyonce.parked where body is null and error = '' and header_names = '{}'`); n != 1 {
		t.Error("the event is not erased")
	}
	e.send(versioned("evt_a1", "a", 1)).want(t, 200, true)
	r.exec(`delete from onlyonce.parked`)
	e.send(versioned("evt_a1", "a", 1)).want(t, 200, true)
	if got := one[string](r, `select string_agg(id, ' ') from effects`); got != "evt_a2" {
		t.Errorf("applied %s", got)
	}
}
