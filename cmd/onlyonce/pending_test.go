package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
)

func TestOutboxList(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.columns = 80
	f.run("outbox", "list").want(t, statusGood, "No matching calls are to be sent.").lines(t, 0)
	f.calls()
	f.enqueues("strange", "", "unlisted")
	f.enqueues("mail", "", "sent")
	f.delivers("mail", one[int64](f, `select max(id) from onlyonce.outbox_log`))
	r := f.run("outbox", "list").want(t, statusGood, "no relay", "30m", "One call whole: onlyonce outbox show KEY").lines(t, 0).fits(t, 80)
	t.Log("\n" + r.out)
	if strings.Contains(r.out, "mail") {
		t.Errorf("a call that was sent is listed:\n%s", r.out)
	}
	f.run("status").want(t, statusGood, "onlyonce outbox list -sink strange\n")
	var names []string
	for line := range strings.Lines(f.run("outbox", "list", "-json").want(t, statusGood).out) {
		var c reports.PendingCall
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatal(err)
		}
		names = append(names, c.Name)
		if c.Listed == (c.Sink == "strange") || c.Bytes == 0 || c.Method != "POST" {
			t.Errorf("%+v", c)
		}
	}
	if got := strings.Join(names, " "); got != "old new unlisted" {
		t.Errorf("oldest first: %s", got)
	}
	for _, c := range []struct {
		args []string
		rows int
		more bool
	}{
		{[]string{"-sink", "payments"}, 2, false},
		{[]string{"-sink", "nowhere"}, 0, false},
		{[]string{"-name", "new"}, 1, false},
		{[]string{"-scope", "other"}, 0, false},
		{[]string{"-limit", "1"}, 1, true},
	} {
		r := f.run(append([]string{"outbox", "list", "-json"}, c.args...)...).want(t, statusGood)
		if n := strings.Count(r.out, "\n"); n != c.rows || strings.Contains(r.err, "there are more") != c.more {
			t.Errorf("%q: %d rows, want %d; %s", c.args, n, c.rows, r.err)
		}
	}
	oldest, err := reports.Look(t.Context(), f.pool, func(tx pgx.Tx) ([]reports.OldestCall, error) {
		return reports.OldestCalls(t.Context(), tx)
	})
	good := err == nil &&
		len(oldest) == 2 &&
		oldest[0].Sink == "payments" &&
		oldest[0].AgeSeconds >= 1800 &&
		oldest[0].Listed &&
		!oldest[1].Listed
	if !good {
		t.Errorf("%+v, %v", oldest, err)
	}
}

func TestOutboxShow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.columns = 80
	f.calls()
	key := one[string](f, `select key::text from onlyonce.outbox_log where name = 'old'`)
	r := f.run("outbox", "show", key).want(
		t,
		statusGood,
		"pending",
		"payments",
		"/charges",
		"Content-Type: text/plain",
		"11 B; -body shows it",
		"\n  onlyonce outbox status -sink payments\n",
		"\n  onlyonce explain "+key+"\n",
	).lines(t, 0).fits(t, 80)
	if strings.Contains(r.out, "body of old") {
		t.Errorf("the body is shown without -body:\n%s", r.out)
	}
	f.run("outbox", "show", "-body", key).want(t, statusGood, "body of old")
	if out := f.run("outbox", "show", key, "-json").want(t, statusGood, `"state":"pending"`).out; strings.Contains(out, "body of old") ||
		strings.Contains(out, `"body"`) {
		t.Errorf("%s", out)
	}
	f.run("outbox", "pause", "-sink", "payments", "-reason", "the bank asks", "-yes").want(t, statusGood)
	f.run("outbox", "show", key).want(t, statusGood, "the bank asks", "onlyonce outbox resume -sink payments -reason WHY")
	f.park("old", "waiting", "rejected")
	id := one[string](f, `select id::text from onlyonce.parked`)
	f.run("outbox", "show", key).want(t, statusGood, "waiting", "onlyonce parked show "+id+"\n")
	f.run("parked", "show", id).want(t, statusGood, "onlyonce parked redrive -id "+id+" -new-key -reason WHY",
		"onlyonce parked discard -id "+id+" -reason WHY")
	f.run("outbox", "show").want(t, statusEnvironment, "missing: KEY")
	f.run("outbox", "show", "order-7").want(t, statusEnvironment, `"order-7" is no UUID`)
	f.run("outbox", "show", "00000000-0000-8000-8000-000000000000").want(t, statusEnvironment, "the log has no call with the key")
}

func TestEventsListAndShow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.columns = 80
	f.run("events", "list").want(t, statusGood, "No matching events.").lines(t, 0)
	f.exec(`insert into onlyonce.streams (topic, partitions) values ('webhook.stripe', 2);
		select onlyonce.append_events('{webhook.stripe}', '{0}', '{""}', '{stripe/stripe/evt_1}', '{k}', '{1}', '{type}', '{x}',
		'{secret}');
		select onlyonce.append_events('{webhook.stripe}', '{0}', '{""}', '{stripe/stripe/evt_2}', '{k}', '{0}', '{}', '{}', '{secret}')`)
	r := f.run("events", "list").want(t, statusGood, "webhook.stripe", "evt_2", "unread", "6 B").lines(t, 0).fits(t, 80)
	t.Log("\n" + r.out)
	if strings.Contains(r.out, "secret") || strings.Index(r.out, "evt_2") > strings.Index(r.out, "evt_1") {
		t.Errorf("a body is shown, or the oldest comes first:\n%s", r.out)
	}
	var e reports.Event
	if err := json.Unmarshal([]byte(f.run("events", "list", "-id", "evt_1", "-json").want(t, statusGood).out), &e); err != nil ||
		e.ID != "stripe/stripe/evt_1" {
		t.Fatalf("%+v, %v", e, err)
	}
	at := []string{"events", "show", "-topic", e.Topic, "-partition", number(int64(e.Partition)), "-offset", number(e.Offset)}
	r = f.run(at...).want(t, statusGood, "id              evt_1 (of stripe)",
		"6 B; -body shows it", "onlyonce explain -topic webhook.stripe").lines(
		t,
		0,
	).fits(
		t,
		80,
	)
	if strings.Contains(r.out, "secret") {
		t.Errorf("the body is shown without -body:\n%s", r.out)
	}
	f.run(append(at, "-body")...).want(t, statusGood, "secret")
	if out := f.run(append(at, "-json")...).want(t, statusGood, `"state":"unread"`).out; strings.Contains(out, "secret") {
		t.Errorf("%s", out)
	}
	f.run("events", "show", "-topic", "nowhere", "-partition", "0", "-offset", "0").want(
		t,
		statusEnvironment,
		"the event log has no event at nowhere/0@0",
	)

	// A consumer has handled evt_1, and not evt_2.
	f.exec(`insert into onlyonce.leases (name) values ('cursor/mail/webhook.stripe/0'), ('cursor/mail/webhook.stripe/1')`)
	f.exec(`insert into onlyonce.cursors (id, scope, topic, partition, cluster_id, start_offset, run_start, start_policy)
		select id, 'mail', 'webhook.stripe', right(name, 1)::int, 'postgres', 0, case when right(name, 1)::int = $1 then 1 else 0 end,
		'earliest'
		  from onlyonce.leases where name like 'cursor/mail/%'`, e.Partition)
	r = f.run("events", "list", "-behind", "mail").want(t, statusGood, "evt_2", "before mail")
	if strings.Contains(r.out, "evt_1") {
		t.Errorf("a handled event is listed as not handled:\n%s", r.out)
	}
	f.run("events", "list").want(t, statusGood, "handled", "before mail")
	f.run("events", "list", "-behind", "mail", "-id", "evt_1").want(t, statusEnvironment, "give one of the two")
	f.run("events", "list", "-partition", "1").want(t, statusEnvironment, "-partition needs -topic")
}
