package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/webhook"
)

// W7, W10: what a backfill has accepted is known by its body, too: a recorder's request with the
// very bytes is no event under an id that is made up. Neither is it after the sender's own
// delivery, whose body a list may render in another way.
func TestW7BodiesOfListedEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rendered := push("b") + " "
	e, list := r.lists(samples(t)["GitHub"], func(each func(*webhook.Event) error) error {
		return errors.Join(each(&webhook.Event{ID: "d-a", Type: "push", Time: time.Now(), Body: []byte(push("a"))}),
			each(&webhook.Event{ID: "d-b", Type: "push", Time: time.Now(), Body: []byte(rendered)}))
	})
	list()
	e.sendAs("made-up", push("a")).want(t, 200, true)
	e.sendAs("d-a", push("a")).want(t, 200, true)
	e.sendAs("d-b", push("b")).want(t, 200, true)
	e.sendAs("made-up", push("b")).want(t, 200, true)
	if got := one[string](r, `select string_agg(id, ' ' order by id) from onlyonce.event_log`); got != "e/github/d-a e/github/d-b" {
		t.Errorf("stored: %s", got)
	}
	if n := r.count("onlyonce.parked"); n != 2 {
		t.Errorf("%d are set aside, want the two that were made up", n)
	}
}

// W10: a list may have older events than ids are remembered. They are passed over, and an event
// without a time is refused.
func TestW10ListedEventsThatAreTooOld(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var at time.Time
	var failed error
	_, list := r.lists(samples(t)["Stripe"], func(each func(*webhook.Event) error) error {
		failed = each(&webhook.Event{ID: "evt_1", Time: at, Body: []byte("{}")})
		return failed
	})
	for _, c := range []struct {
		at   time.Time
		want string
	}{
		{time.Now().Add(-4 * 24 * time.Hour), "1 0 1 false"},
		{time.Time{}, "1 0 0 true"},
		{time.Now().Add(-2 * 24 * time.Hour), "1 1 0 false"},
	} {
		at = c.at
		of := list()
		if got := fmt.Sprint(of.Listed, of.Missed, of.Old, of.Err != nil); got != c.want {
			t.Errorf("%v: %s, want %s", c.at, got, c.want)
		}
		if failed != nil && !strings.Contains(failed.Error(), "Time must be set") {
			t.Error(failed)
		}
	}
}

// W10: a list's events come from the user's code. One that could not have been delivered is refused
// with the name of the field, ends the backfill, and stores nothing.
func TestW10ListedEventsThatAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := samples(t)["Stripe"]
	listed := func(change func(e *webhook.Event)) *webhook.Event {
		e := &webhook.Event{ID: "evt_1", Time: time.Now(), Body: []byte("{}")}
		change(e)
		return e
	}
	for _, c := range []struct {
		event *webhook.Event
		field string
	}{
		{nil, "ID must be"},
		{listed(func(e *webhook.Event) { e.ID = "" }), "ID must be"},
		{listed(func(e *webhook.Event) { e.ID = "evt 1" }), "ID must be"},
		{listed(func(e *webhook.Event) { e.ID = strings.Repeat("e", 256) }), "ID must be"},
		{listed(func(e *webhook.Event) { e.Body = nil }), "Body must be set"},
		{listed(func(e *webhook.Event) { e.Body = make([]byte, 1<<20+1) }), "Body must be set, and not longer than 1048576 bytes"},
		{listed(func(e *webhook.Event) { e.Time = time.Time{} }), "Time must be set"},
	} {
		var refused error
		_, list := r.lists(s, func(each func(*webhook.Event) error) error {
			refused = each(c.event)
			return refused
		})
		of := list()
		if refused == nil || !strings.Contains(refused.Error(), c.field) {
			t.Errorf("%q: each returns %v", c.field, refused)
		}
		if of.Err == nil || of.Missed != 0 {
			t.Errorf("%q: the backfill has %v, and missed %d", c.field, of.Err, of.Missed)
		}
	}
	largest := listed(func(e *webhook.Event) { e.Body = []byte(`"` + strings.Repeat("b", 1<<20-2) + `"`) })
	largest.ID = strings.Repeat("e", 255)
	_, list := r.lists(s, func(each func(*webhook.Event) error) error { return each(largest) })
	if of := list(); of.Err != nil || of.Missed != 1 {
		t.Errorf("the largest event: %v, missed %d", of.Err, of.Missed)
	}
	if n := r.count("onlyonce.event_log"); n != 1 {
		t.Errorf("%d events are stored, want the largest", n)
	}
}

// lists returns an endpoint, and a function that has it backfilled once from a list.
func (r *rig) lists(
	s sample,
	of func(each func(*webhook.Event) error) error,
	more ...func(*webhook.Config),
) (e *endpoint, list func() webhook.BackfilledEvent) {
	r.t.Helper()
	told := make(chan webhook.BackfilledEvent, 100)
	backfilled := func(c *webhook.Config) {
		c.Backfill = &webhook.Backfill{
			Every: time.Hour,
			List:  func(_ context.Context, _ time.Time, each func(*webhook.Event) error) error { return of(each) },
		}
		c.Hooks.Backfilled = func(of webhook.BackfilledEvent) { told <- of }
	}
	return r.serve(s, more...), func() webhook.BackfilledEvent {
		r.exec(`delete from onlyonce.webhook_endpoints`) // the next one is due
		ctx, stop := context.WithCancel(r.t.Context())
		ended := make(chan error, 1)
		x := r.receiver(s, append(more, backfilled)...)
		go func() { ended <- x.Upkeep(ctx) }()
		got := pgtest.Receive(r.t, patience, "a backfill", told)
		stop()
		if err := pgtest.Receive(r.t, patience, "Upkeep ends", ended); err != nil {
			r.t.Error(err)
		}
		return got
	}
}
