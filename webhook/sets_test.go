package webhook_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/webhook"
)

// receiveSet is the first statement of a receiver's transaction.
const receiveSet = `select onlyonce.receive_webhooks($1, $2::uuid[], $3::bigint[], $4::bytea[], $5::uuid[], $6::uuid[], $7::boolean[],
	$8::boolean[], '1h', null, '20000', '20000', '20000', '20000')`

// set is a set of events, as a receiver gives it to receiveSet.
type set struct {
	endpoint       string
	keys           []string
	prints         []int64
	digests        [][]byte
	others, asides []*string
	named, handled []bool
}

// add adds an event. other and aside are "" for none.
func (s *set) add(key string, print int64, digest []byte, other, aside string, named, handled bool) {
	orNil := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	s.keys = append(s.keys, key)
	s.prints = append(s.prints, print)
	s.digests = append(s.digests, digest)
	s.others = append(s.others, orNil(other))
	s.asides = append(s.asides, orNil(aside))
	s.named = append(s.named, named)
	s.handled = append(s.handled, handled)
}

// args are the arguments of receiveSet.
func (s *set) args() []any {
	return []any{s.endpoint, s.keys, s.prints, s.digests, s.others, s.asides, s.named, s.handled}
}

// receive claims a set of events and commits it. It returns what it found.
func (r *rig) receive(s *set) []int16 {
	r.t.Helper()
	found, err := r.tryReceive(s)
	if err != nil {
		r.t.Fatal(err)
	}
	return found
}

func (r *rig) tryReceive(s *set) (found []int16, err error) {
	err = pgx.BeginFunc(r.t.Context(), r.pool, func(tx pgx.Tx) error {
		if err := tx.QueryRow(r.t.Context(), receiveSet, s.args()...).Scan(&found); err != nil {
			return err
		}
		_, err := tx.Exec(r.t.Context(), `select onlyonce.seal()`)
		return err
	})
	return found, err
}

// W7: a set finds of each event what it would find if the events came one after another, and leaves
// the same rows of bodies and the same keys, whatever came before. The window of some bodies is
// over. Each outcome comes up.
func TestW7SetsFindWhatSinglesFind(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	random := rand.New(rand.NewPCG(7, 7))
	outcomes := map[int16]int{}
	for round := range 200 {
		events := drawSet(random)
		var want []int16
		together := &set{endpoint: "sets"}
		for _, e := range events {
			alone := &set{endpoint: "one"}
			e.addTo(alone, "000000000001")
			e.addTo(together, "000000000002")
			want = append(want, r.receive(alone)...)
		}
		for _, found := range want {
			outcomes[found]++
		}
		if got := r.receive(together); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("round %d: %+v: found %v, want %v", round, events, got, want)
		}
		if alone, together := r.remembered("one", "1"), r.remembered("sets", "2"); alone != together {
			t.Fatalf("round %d: %+v: %s is remembered, want %s", round, events, together, alone)
		}
		if random.IntN(4) == 0 {
			r.exec(`update onlyonce.webhook_bodies set seen_at = seen_at - interval '2 hours' where digest = $1`,
				fmt.Append(nil, random.IntN(6)))
		}
	}
	for found := range int16(6) {
		if outcomes[found] == 0 {
			t.Errorf("%d was never found: %v", found, outcomes)
		}
	}
}

// drawnEvent is an event of drawSet.
type drawnEvent struct {
	ID, Body                                  int
	NoDigest, Listed, Named, Handled, NoOther bool
}

// drawSet draws up to five events, no two of one body.
func drawSet(random *rand.Rand) (all []drawnEvent) {
	for _, body := range random.Perm(6)[:1+random.IntN(5)] {
		e := drawnEvent{
			ID:       random.IntN(6),
			Body:     body,
			NoDigest: random.IntN(6) == 0,
			Listed:   random.IntN(6) == 0,
			Named:    random.IntN(2) == 0,
			NoOther:  random.IntN(4) == 0,
		}
		e.Handled = !e.Named && !e.NoOther && random.IntN(2) == 0
		all = append(all, e)
	}
	return all
}

// addTo adds the event to a set whose keys end so.
func (e drawnEvent) addTo(s *set, end string) {
	key := func(kind, n int) string { return fmt.Sprintf("%08d-%04d-4000-8000-%s", n, kind, end) }
	digest := fmt.Append(nil, e.Body)
	print := int64(e.Body + 1)
	other := key(1, 10*e.ID+e.Body)
	aside := key(2, 10*e.ID+e.Body)
	if e.Named {
		aside = key(3, e.Body)
	}
	if e.NoDigest {
		digest = nil
	}
	if e.Listed {
		print = 0
	}
	if e.NoDigest || e.NoOther {
		other = ""
	}
	s.add(key(0, e.ID), print, digest, other, aside, e.Named, e.Handled)
}

// remembered is what is remembered of an endpoint's events, whose keys end so.
func (r *rig) remembered(endpoint, end string) string {
	r.t.Helper()
	bodies := one[string](
		r,
		`select coalesce(string_agg(encode(digest, 'escape') || left(key::text, 13) || named || (seen_at = '-infinity'), ' '
			order by digest),
			'')
			from onlyonce.webhook_bodies where endpoint = $1`,
		endpoint,
	)
	keys := one[string](
		r,
		`select coalesce(string_agg(left(key::text, 13) || fingerprint, ' ' order by key), '') from onlyonce.inbox
			where key::text like '%00000000000' || $1`,
		end,
	)
	return bodies + " " + keys
}

// W7: a copy changes no row of a body, so that its body does not stay known for longer.
func TestW7CopyKeepsNoBodyKnown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := r.serve(samples(t)["GitHub"], func(c *webhook.Config) { c.BodyWindow = time.Hour })
	e.sendAs("d-1", "push").want(t, 200, false)
	r.exec(`update onlyonce.webhook_bodies set seen_at = seen_at - interval '2 hours'`)
	var sending sync.WaitGroup
	for i := range 8 { // some of them are in one set with the copy
		sending.Go(func() { e.sendAs(fmt.Sprint("d-1", i), fmt.Sprint("other ", i)).want(t, 200, false) })
	}
	e.sendAs("d-1", "push").want(t, 200, true)
	sending.Wait()
	e.sendAs("d-3", "push").want(t, 200, false)
}

// W9: a copy that waits for an uncommitted first one in another process holds up no other event,
// and is answered once that is committed.
func TestW9CopyThatWaitsHoldsUpNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := r.serve(samples(t)["GitHub"], func(c *webhook.Config) { c.DuplicateWait = 2 * time.Second })
	e.sendAs("d-0", "the stream is there").want(t, 200, false)
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }() // on a slow machine it is not committed
	var found []int16
	if err := tx.QueryRow(
		t.Context(),
		`select onlyonce.receive_webhooks('e', array[onlyonce.key('', 'webhook/e', 'e/github/d-1')], array[$1::bigint], null, null, null,
			null, null, '1h', null, '1000', '1000', '0', '0')`,
		dedupe.FingerprintOf([]byte("push")).Int64(),
	).Scan(&found); err != nil {
		t.Fatal(err)
	}
	copied := make(chan answer, 1)
	go func() { copied <- e.sendAs("d-1", "push") }()
	var sending sync.WaitGroup
	for i := range 60 {
		sending.Go(func() { e.sendAs(fmt.Sprint("d-", 2+i), fmt.Sprint("body ", i)).want(t, 200, false) })
	}
	sending.Wait()
	select {
	case a := <-copied: // a slow machine: its wait is over
		a.want(t, http.StatusServiceUnavailable, false)
	default:
		if _, err := tx.Exec(t.Context(), `select onlyonce.seal()`); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if a := <-copied; a.status != http.StatusServiceUnavailable {
			a.want(t, 200, true)
		}
	}
}

// W15: an event that the database never takes is parked, and the others of its set are stored.
func TestW15EventThatTheDatabaseRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := r.serve(samples(t)["Stripe"])
	e.send(stripeBody("evt_first", "")).want(t, 200, false)
	r.exec(`create function refuse() returns trigger language plpgsql as $$ begin
		if new.id like '%evt_3' then raise exception 'not this one'; end if; return new; end $$`)
	for i := range 6 {
		r.exec(fmt.Sprintf(`create trigger refuse before insert on onlyonce_segments.event_log_%d for each row execute function refuse()`,
			i))
	}
	var sending sync.WaitGroup
	for i := range 12 {
		sending.Go(func() { e.send(stripeBody(fmt.Sprint("evt_", i), "")).want(t, 200, false) })
	}
	sending.Wait()
	if n := r.count("onlyonce.event_log"); n != 12 {
		t.Errorf("%d events are stored, want 12", n)
	}
	if got := one[string](
		r,
		`select string_agg(event_id || ' ' || reason || ' ' || state, ', ') from onlyonce.parked`,
	); got != "e/stripe/evt_3 permanent waiting" {
		t.Errorf("parked: %s", got)
	}
	e.send(stripeBody("evt_3", "")).want(t, 200, true)
	r.exec(`delete from onlyonce.inbox where key = onlyonce.key('', 'webhook/e', 'e/stripe/evt_3')`)
	e.send(stripeBody("evt_3", "")).want(t, 200, true) // as long as it is parked
}

// W23: events that arrive together are stored over two connections, however many senders there are,
// and those of one ordering key in the order of their arrival.
func TestW23ConnectionsOfTheStoringSide(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	x := r.receiver(samples(t)["Stripe"], func(c *webhook.Config) {
		c.OrderingKey = func(e *webhook.Event) string { return e.ID[:5] }
	})
	s := samples(t)["Stripe"]
	var sending sync.WaitGroup
	for sender := range 64 {
		sending.Go(func() {
			for i := range 10 {
				body := stripeBody(fmt.Sprintf("e%04d_%d", sender, i), "")
				req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
				req.Header = s.sign(s.secret, time.Now(), body)
				w := httptest.NewRecorder()
				if x.ServeHTTP(w, req); w.Code != http.StatusOK {
					t.Errorf("answered %d: %v", w.Code, r.lastRefusal())
				}
			}
		})
	}
	sending.Wait()
	if n := r.recv.Stat().TotalConns(); n > 2 {
		t.Errorf("%d connections, want at most 2", n)
	}
	if n := one[int](
		r,
		`select count(*) from (select id, row_number() over (partition by order_key order by "offset") - 1 n from onlyonce.event_log) e
		where right(id, 1) <> n::text`,
	); n != 0 || r.count("onlyonce.event_log") != 640 {
		t.Errorf("%d of %d events are out of order", n, r.count("onlyonce.event_log"))
	}
}

// W7: if a day's bytes are used up, that event alone is refused, and its body counts as not set
// aside.
func TestW7DayIsFullForOneEventOfASet(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := r.serve(samples(t)["GitHub"], func(c *webhook.Config) {
		c.MaxBody = 1000
		c.MaxQuarantineBytes = 1000 + 64<<10
	})
	e.sendAs("d-1", "push").want(t, 200, false)
	r.exec(`insert into onlyonce.webhook_endpoints (endpoint, aside_on, aside)
		values ('e', (clock_timestamp() at time zone 'UTC')::date, 1000 + (64 << 10))`)
	var sending sync.WaitGroup
	for i := range 20 {
		sending.Go(func() {
			if i == 7 {
				e.sendAs("recorded", "push").want(t, http.StatusServiceUnavailable, false)
				return
			}
			e.sendAs(fmt.Sprint("d-", 10+i), fmt.Sprint("body ", i)).want(t, 200, false)
		})
	}
	sending.Wait()
	if n := one[int](r, `select aside from onlyonce.webhook_endpoints`); n != 1000+64<<10 {
		t.Errorf("%d bytes of the day are used", n)
	}
	r.exec(`update onlyonce.webhook_endpoints set aside = 0`)
	e.sendAs("recorded", "push").want(t, 200, true)
	if r.last() != webhook.SameBody || r.count("onlyonce.parked") != 1 {
		t.Errorf("outcome %s, %d are set aside", r.last(), r.count("onlyonce.parked"))
	}
}

// T4: the answer to the COMMIT of a set never arrives. The endpoint stores the whole set again on
// another connection, and so finds out the outcome of each event: each sender gets 200, as of a new
// event, and each event is there once (W11).
func TestT4LostCommitOfASet(t *testing.T) {
	t.Parallel()
	const events = 12
	for _, how := range []pgtest.Cut{pgtest.Unsent, pgtest.Unheard} {
		r := newRig(t)
		var all atomic.Int32 // requests that are about to wait for their set
		hold := make(chan struct{})
		w := &pgtest.Wire{Statement: "commit", At: func(n int32) pgtest.Cut {
			switch n {
			case 1: // of the first event alone: the others come meanwhile
				<-hold
			case 2: // of a set of the others
				return how
			}
			return pgtest.Pass
		}}
		r.recv = pgtest.Wired(t, r.pool, pgx.QueryExecModeExec, w, nil)
		e := r.serve(samples(t)["Stripe"], func(c *webhook.Config) {
			c.OrderingKey = func(*webhook.Event) string {
				all.Add(1)
				return "one"
			}
		})
		var sending sync.WaitGroup
		for i := range events {
			sending.Go(func() { e.send(stripeBody(fmt.Sprint("evt_", i), "")).want(t, 200, false) })
		}
		r.until("all have come", func() bool { return all.Load() == events })
		close(hold)
		sending.Wait()
		if n := w.Cuts.Load(); n != 1 {
			t.Errorf("%v: %d connections were cut", how, n)
		}
		if n := r.count("onlyonce.event_log"); n != events {
			t.Errorf("%v: %d events, want %d", how, n, events)
		}
		largest := one[int](r, `select max(n) from (select count(*) n from onlyonce.event_log group by xmin::text) s`)
		if largest < 2 {
			t.Errorf("%v: the largest set has %d events", how, largest)
		}
	}
}

// K7: an event is parked until the inbox has forgotten its id, and then redriven: it is stored, and
// what comes after that is a copy.
func TestK7CopyOfAnEventThatWasRedrivenLate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := r.serve(samples(t)["Stripe"])
	r.exec(`create function refuse() returns trigger language plpgsql as $$ begin raise exception 'not this one'; end $$`)
	for i := range 6 {
		r.exec(fmt.Sprintf(`create trigger refuse before insert on onlyonce_segments.event_log_%d for each row execute function refuse()`,
			i))
	}
	e.send(stripeBody("evt_1", "")).want(t, 200, false)
	r.exec(`drop function refuse() cascade`)
	r.exec(`delete from onlyonce.inbox`)
	if _, err := ops.Redrive(
		t.Context(),
		r.pool,
		ops.By{Reason: "a test"},
		ops.ParkedInput{ParkedFilter: ops.ParkedFilter{Kind: "event", Scope: webhook.Scope("e")}},
	); err != nil {
		t.Fatal(err)
	}
	e.send(stripeBody("evt_1", "")).want(t, 200, true)
	if n := r.count("onlyonce.event_log"); n != 1 {
		t.Errorf("%d events are stored, want 1", n)
	}
}
