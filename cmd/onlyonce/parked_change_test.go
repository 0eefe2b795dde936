package main

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/operate"
)

func byOrderingKey(c *consumer.Config) { c.OnFailure = consumer.ParkOrderingKey }

func (s *shop) redrive(args ...string) result {
	return s.run(append([]string{"parked", "redrive", "-reason", "mended", "-yes"}, args...)...)
}

func (s *shop) discard(args ...string) result {
	return s.run(append([]string{"parked", "discard", "-reason", "a test order", "-yes"}, args...)...)
}

// audits counts the audit rows of an action whose detail has count rows.
func (s *shop) audits(action string, count int) int {
	return one[int](s.fixture, `select count(*) from onlyonce.audit where action = $1 and reason <> '' and (detail->>'count')::int = $2
		and jsonb_array_length(detail->'ids') = $2`, action, count)
}

// The first message of an ordering key is parked by its handler, and blocks others.
func stuckKey(t *testing.T) (*shop, *broken) {
	s := newShop(t)
	b := breaks("head")
	s.start(b.handle, byOrderingKey)
	s.keyed("a", "head", "b1", "b2", "b3")
	s.keyed("z", "other")
	s.until(`select count(*) = 1 from effects`)
	s.until(`select count(*) = 1 from onlyonce.parked where state = 'waiting'`)
	s.until(`select count(*) = 3 from onlyonce.parked where state = 'blocked'`)
	return s, b
}

func TestRedriveHead(t *testing.T) {
	t.Parallel()
	s, b := stuckKey(t)
	s.redrive("-id", s.parkedID("b2")).want(t, statusFailed, "blocked behind another of its ordering key", "-id "+s.parkedID("head")).lines(
		t,
		1,
	)
	s.run("parked", "show", "-id", s.parkedID("b2")).want(t, statusGood, "2 unsettled before it, 1 after it; first is row "+
		s.parkedID("head"))
	if n := one[int](s.fixture, `select count(*) from onlyonce.audit`); n != 0 {
		t.Error("an audit row for nothing")
	}
	// As long as it fails it waits again, and so do the others.
	s.redrive("-id", s.parkedID("head")).want(t, statusGood, "Redrive 1", "Done: 1 are due now", "The consumer of scope stock applies them")
	s.until(`select count(*) = 1 from onlyonce.parked where state = 'waiting' and attempts = 1`)
	if got := s.states(); got != "head:waiting b1:blocked b2:blocked b3:blocked" {
		t.Errorf("parked: %s", got)
	}
	b.mend()
	r := s.redrive("-scope", "stock").want(t, statusGood, "Done: 1 are due now")
	t.Log("\n" + r.out)
	s.until(`select count(*) = 5 from effects`)
	if got := s.effects(); got != "other head b1 b2 b3" {
		t.Errorf("effects: %s", got)
	}
	if s.audits("parked redrive", 1) != 2 {
		t.Error("not an audit row for each command")
	}
	s.redrive("-id", s.parkedID("head")).want(t, statusFailed, "is settled (resolved)")
	s.keyed("a", "head", "b4") // a copy is a duplicate, and the key is free
	s.until(`select count(*) = 6 from effects`)
	if got := s.effects(); got != "other head b1 b2 b3 b4" {
		t.Errorf("effects: %s", got)
	}
}

// D3: the messages that were blocked by a discarded message are handled next, in order.
func TestDiscardHead(t *testing.T) {
	t.Parallel()
	s, _ := stuckKey(t)
	s.exec(`delete from onlyonce.inbox`) // the horizon has passed while they were parked
	r := s.discard("-id", s.parkedID("head")).want(t, statusGood, "Done: 1 discarded", "1 that they blocked are due now")
	t.Log("\n" + r.out)
	s.until(`select count(*) = 4 from effects`)
	if got := s.effects(); got != "other b1 b2 b3" {
		t.Errorf("effects: %s", got)
	}
	if got := s.states(); got != "head:discarded b1:resolved b2:resolved b3:resolved" {
		t.Errorf("parked: %s", got)
	}
	if n := one[int](s.fixture, `select count(*) from onlyonce.parked where state = 'discarded' and settled_at is not null`); n != 1 {
		t.Error("not settled")
	}
	s.discard("-id", s.parkedID("head")).want(t, statusFailed, "is settled (discarded)")
	s.keyed("a", "head", "last")
	s.until(`select count(*) = 5 from effects`)
	if got := s.effects(); got != "other b1 b2 b3 last" {
		t.Errorf("a copy of a discarded message is no duplicate: %s", got)
	}
}

// A blocked message can be discarded. If all messages of a key are discarded at once, nothing of it
// is left.
func TestDiscardBlocked(t *testing.T) {
	t.Parallel()
	s, b := stuckKey(t)
	s.discard("-id", s.parkedID("b1")).want(t, statusGood, "Done: 1 discarded")
	if got := s.states(); got != "head:waiting b1:discarded b2:blocked b3:blocked" {
		t.Errorf("parked: %s", got)
	}
	s.discard("-scope", "stock", "-topic", "orders", "-partition", "0").want(t, statusGood, "Done: 3 discarded")
	if s.audits("parked discard", 3) != 1 || s.audits("parked discard", 1) != 1 {
		t.Error("audit rows")
	}
	b.mend()
	s.keyed("a", "next")
	s.until(`select count(*) = 2 from effects`)
	if got := s.effects(); got != "other next" {
		t.Errorf("effects: %s", got)
	}
	s.discard("-scope", "stock").want(t, statusFailed, "no parked row that could be changed").lines(t, 1)
}

// D5: a message that was redriven is not applied before an unsettled one of its ordering key,
// however it became due.
func TestRedriveKeepsOrder(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	b := breaks("head", "single")
	s.start(b.handle, byOrderingKey)
	s.keyed("z", "used")
	s.reaches(1)
	s.keyed("a", "head")
	s.log.AppendMessage(0, &consumer.Message{Key: []byte("a"), Value: []byte("conflict"), Headers: []consumer.Header{id("used")}})
	s.keyed("u", "single")
	s.reaches(4)
	s.until(`select count(*) = 3 from onlyonce.parked where state = 'waiting'`)
	b.mend()
	s.redrive("-scope", "stock", "-parked-for", "no-key").want(t, statusFailed, "no parked row that could be changed")
	s.redrive("-scope", "stock", "-parked-for", "conflict").want(t, statusGood, "1 of them are blocked by others", "Done: 1 are due now")
	s.redrive("-id", s.parkedID("single")).want(t, statusGood)
	s.until(`select count(*) = 2 from effects`)
	if got := s.states(); got != "head:waiting conflict:blocked single:resolved" {
		t.Errorf("parked: %s", got)
	}
	s.redrive("-id", s.parkedID("conflict")).want(t, statusFailed, "is blocked behind another of its ordering key")
	if got := s.effects(); got != "used single" {
		t.Errorf("effects: %s", got)
	}
	s.redrive("-id", s.parkedID("head")).want(t, statusGood)
	s.until(`select count(*) = 4 from effects`)
	if got := s.effects(); got != "used single head conflict" {
		t.Errorf("effects: %s", got)
	}
}

func TestRedriveAndDiscardParkedMessages(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	b := breaks("v1", "v2", "v3", "v4")
	stop := s.start(b.handle, nil)
	s.keyed("a", "v0", "v1", "v2", "v3", "v4", "v5")
	s.log.AppendMessage(0, &consumer.Message{Key: []byte("a"), Value: []byte("conflict"), Headers: []consumer.Header{id("v0")}})
	s.reaches(7)
	if got := s.effects(); got != "v0 v5" {
		t.Errorf("effects: %s", got)
	}
	stop()
	s.discard("-id", s.parkedID("v3")).want(t, statusGood)
	r := s.redrive("-scope", "stock", "-topic", "orders", "-partition", "0", "-limit", "2").want(
		t,
		statusGood,
		"Redrive 2",
		"There are more",
	)
	t.Log("\n" + r.out)
	if got := s.states(); got != "v1:retrying v2:retrying v3:discarded v4:waiting conflict:waiting" {
		t.Errorf("parked: %s", got)
	}
	b.mend()
	stop = s.start(b.handle, nil) // the next consumer applies them
	s.until(`select count(*) = 4 from effects`)
	s.redrive("-scope", "stock").want(t, statusGood, "Done: 1 are due now") // and not the conflict
	s.until(`select count(*) = 5 from effects`)
	s.keyed("a", "v1", "v2", "v3", "v4", "end")
	s.reaches(12)
	if got := s.effects(); got != "v0 v5 v1 v2 v4 end" {
		t.Errorf("effects: %s", got)
	}
	s.redrive("-scope", "stock").want(t, statusFailed, "no parked row that could be changed")
	s.discard("-scope", "stock").want(t, statusFailed, "no parked row that could be changed")
	s.redrive("-id", s.parkedID("conflict")).want(t, statusGood)
	s.until(`select count(*) = 7 from effects`)
	stop()
	if got := s.effects(); got != "v0 v5 v1 v2 v4 end conflict" {
		t.Errorf("effects: %s", got)
	}
}

// The result of a running attempt decides what a discard finds.
func TestDiscardWaitsForAnAttempt(t *testing.T) {
	t.Parallel()
	for _, succeeds := range []bool{true, false} {
		s := newShop(t)
		b := breaks("v0")
		begun := make(chan struct{})
		end := make(chan struct{})
		var once sync.Once
		s.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			err := b.handle(ctx, tx, m)
			if err != nil || m.Offset != 0 {
				return err
			}
			if _, err := tx.Exec(ctx, `select 1`); err != nil { // so that all that is queued was sent
				return err
			}
			once.Do(func() { close(begun) })
			<-end
			if !succeeds {
				return consumer.Permanent(context.DeadlineExceeded)
			}
			return nil
		}, nil)
		s.keyed("a", "v0")
		s.until(`select count(*) = 1 from onlyonce.parked where state = 'waiting'`)
		b.mend()
		s.redrive("-id", s.parkedID("v0")).want(t, statusGood)
		<-begun
		ended := make(chan result, 1)
		id := s.parkedID("v0")
		go func() { ended <- s.discard("-id", id) }()
		s.until(`select count(*) = 1 from pg_stat_activity
			where datname = current_database() and wait_event_type = 'Lock' and query like '%for update%'`)
		close(end)
		r := <-ended
		if succeeds {
			r.want(t, statusFailed, "is settled (resolved)")
			if got := s.effects() + " " + s.states(); got != "v0 v0:resolved" {
				t.Errorf("%s", got)
			}
			continue
		}
		r.want(t, statusGood, "Done: 1 discarded")
		s.keyed("a", "v1")
		s.until(`select count(*) = 1 from effects`)
		if got := s.effects() + " " + s.states(); got != "v1 v0:discarded" {
			t.Errorf("%s", got)
		}
	}
}

func TestRedriveAsks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.populate()
	row := one[string](f, `select min(id)::text from onlyonce.parked`)
	redrive := []string{"parked", "redrive", "-scope", "stock", "-reason", "mended"}
	states := func() string {
		return one[string](f, `select string_agg(kind || ':' || state, ' ' order by id) from onlyonce.parked`)
	}
	before := states()
	f.run(redrive...).want(t, statusEnvironment, "no terminal")
	f.run("parked", "redrive", "-scope", "stock", "-kind", "message", "-state", "waiting", "-dry-run").want(
		t,
		statusGood,
		"orders/0@12",
		"Redrive 2",
	)
	if got := states(); got != before || one[int](f, `select count(*) from onlyonce.audit`) != 0 {
		t.Errorf("a dry run has changed something: %s, was %s", got, before)
	}
	f.terminal = true
	f.stdin = strings.NewReader("\n")
	r := f.run(redrive...).want(t, statusFailed, "the answer was no")
	if !strings.Contains(r.out, "orders/0@12") || !strings.Contains(r.out, "Redrive 2") {
		t.Errorf("what was asked:\n%s", r.out)
	}
	if got := states(); got != before {
		t.Errorf("%s, was %s", got, before)
	}
	f.stdin = &reader{func() {
		f.exec(`update onlyonce.parked set state = 'discarded', settled_at = now() where id = $1`, row)
	}, strings.NewReader("y\n")}
	f.run(redrive...).want(t, statusFailed, "changed while you were asked")
	f.stdin = &reader{func() {
		f.exec(`insert into onlyonce.parked (kind, reason, scope, topic, partition, "offset")
			values ('message', 'permanent', 'stock', 'orders', 0, 14)`)
	}, strings.NewReader("y\n")}
	f.run(redrive...).want(t, statusGood, "Done: 1 are due now")
	if n := one[int](f, `select count(*) from onlyonce.parked where "offset" = 14 and state = 'waiting'`); n != 1 {
		t.Error("a message was redriven that nobody was shown")
	}
	f.run("parked", "redrive", "-id", "4711", "-reason", "x", "-yes").want(t, statusEnvironment, "there is no parked row 4711")
}

func TestParkedShow(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	b := breaks("secret value")
	s.start(b.handle, byOrderingKey)
	s.log.AppendMessage(0, &consumer.Message{
		Key:     []byte("k\x00\x1b[31m"),
		Value:   []byte("secret value"),
		Time:    time.UnixMilli(1_700_000_000_000),
		Headers: []consumer.Header{id("m1"), {Name: "raw", Value: []byte{0xff, 0x01}}, {Name: "none"}},
	})
	s.until(`select count(*) = 1 from onlyonce.parked`)
	row := s.parkedID("secret value")
	r := s.run("parked", "show", "-id", row).want(
		t, statusGood, "waiting", "permanent", "orders/0@0", "cluster-1", `message-id: "m1"`,
		"raw: hex ff01", "none: null", "no such sku", "at line 2", "12 B; -body shows it",
		"0 unsettled before it, 0 after it", "2023-11-14",
	).lines(t, 0)
	t.Log("\n" + r.out)
	if strings.Contains(r.out, "\x1b") {
		t.Error("an escape sequence reaches the terminal")
	}
	whole := s.run("parked", "show", "-id", row, "-body", "-json").want(t, statusGood)
	if got := fields(
		t,
		[]byte(whole.out),
	); got != "id kind state reason scope tenant topic partition offset sink name key order_key head "+
		"parked_at attempts may_be_applied next_attempt_at redrives redriven_at settled_at error decisions "+
		"behind ahead event_id cluster_id topic_id record_time log_append_time record_key replay "+
		"replay_resend headers method target row_id lane first_attempt_at erased_at capture sealed "+
		"first_key trace response body_bytes body" {
		t.Errorf("fields: %s", got)
	}
	var d operate.ParkedDetail
	if err := json.Unmarshal([]byte(whole.out), &d); err != nil {
		t.Fatal(err)
	}
	good := string(d.Body) == "secret value" &&
		string(d.RecordKey) == "k\x00\x1b[31m" &&
		string(d.Headers[1].Value) == "\xff\x01" &&
		d.Headers[2].Value == nil &&
		d.Error != ""
	if !good {
		t.Errorf("%s", whole.out)
	}
	s.run("parked", "show", "-id", row, "-body").want(t, statusGood, `"secret value"`)
	for _, out := range []string{r.out, s.run("parked", "show", "-id", row, "-json").want(t, statusGood).out} {
		if strings.Contains(out, "secret value\"") && !strings.Contains(out, "line 2 of secret value") || strings.Contains(out, `"body":`) {
			t.Errorf("the body is shown: %s", out)
		}
	}
	s.run("parked", "show", "-id", "4711").want(t, statusEnvironment, "there is no parked row 4711")
	f := newFixture(t)
	f.populate()
	call := one[string](f, `select id::text from onlyonce.parked where kind = 'call'`)
	f.run("parked", "show", "-id", call).want(t, statusGood, "payments", "charge", "reconcile")
}
