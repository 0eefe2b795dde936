package outbox_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/outbox"
)

// crowd counts how many calls of a tenant are under way at once. None returns before it is opened.
type crowd struct {
	mu        sync.Mutex
	now, most map[string]int
	open      chan struct{}
}

func newCrowd(t *testing.T) (c *crowd, open func()) {
	c = &crowd{now: map[string]int{}, most: map[string]int{}, open: make(chan struct{})}
	open = sync.OnceFunc(func() { close(c.open) })
	t.Cleanup(open)
	return c, open
}

func (c *crowd) send(ctx context.Context, a *outbox.Attempt) outbox.Result {
	c.change(a.Tenant, 1)
	defer c.change(a.Tenant, -1)
	select {
	case <-c.open:
	case <-ctx.Done(): // the machine is so slow that the lease has ended
		return outbox.Failure("cut off", ctx.Err())
	}
	time.Sleep(time.Millisecond)
	return outbox.Result{Outcome: outbox.Delivered}
}

func (c *crowd) change(tenant string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range []string{tenant, "all"} {
		c.now[of] += n
		c.most[of] = max(c.most[of], c.now[of])
	}
}

// atOnce is the most calls of a tenant, or "all", that were under way at once.
func (c *crowd) atOnce(of string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.most[of]
}

// O15: all relays together have no more calls of a tenant under way than it is allowed, use what is
// allowed, and other tenants are not held up.
func TestO15CallsOfATenantUnderWay(t *testing.T) {
	t.Parallel()
	for name, rates := range map[string][]outbox.Rate{
		"tenant":      {{Sink: "payments", Tenant: "slow", InFlight: 3}},
		"each tenant": {{Sink: "payments", EachTenant: true, InFlight: 3}, {Sink: "payments", Tenant: "other", InFlight: 5}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			c, open := newCrowd(t)
			cfg := testConfig(newScripted(c.send))
			cfg.Rates = rates
			for range 20 { // in many lanes
				r.enqueueMany("slow", 15)
				r.enqueueMany("other", 5)
			}
			r.start(cfg)
			r.start(cfg)
			until(t, "as many as may be are under way", func() bool { return c.atOnce("slow") == 3 && c.atOnce("other") > 2 })
			open()
			r.states("delivered")
			if n := c.atOnce("slow"); n != 3 {
				t.Errorf("%d calls were under way at once, of 3", n)
			}
		})
	}
}

// O15: the number of a sink holds for all relays together, and its calls stay in the log. When one
// relay has all that may be under way, the others get their part.
func TestO15CallsOfTheSinkUnderWay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c, open := newCrowd(t)
	cfg := testConfig(newScripted(c.send))
	cfg.Rates = []outbox.Rate{{Sink: "payments", InFlight: 4}}
	for range 20 {
		r.enqueueMany("", 20)
	}
	for range 3 {
		r.start(cfg)
	}
	until(t, "as many as may be are under way", func() bool { return c.atOnce("all") == 4 })
	open()
	r.states("delivered")
	if n := c.atOnce("all"); n != 4 {
		t.Errorf("%d calls were under way at once, of 4", n)
	}
	if n := one[int](r, `select count(*) from onlyonce.parked where waits_for is not null or reason = 'rate'`); n > 0 {
		t.Errorf("%d calls were set aside", n)
	}
}

// O15: with more relays than calls that may be under way, each relay has its turn.
func TestO15MoreRelaysThanCalls(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c, open := newCrowd(t)
	open()
	cfg := testConfig(newScripted(c.send))
	cfg.Rates = []outbox.Rate{{Sink: "payments", InFlight: 1}}
	for range 3 {
		r.start(cfg)
	}
	for range 10 {
		r.enqueueMany("a", 20)
	}
	r.states("delivered")
	if n := c.atOnce("all"); n != 1 {
		t.Errorf("%d calls were under way at once, of 1", n)
	}
}

// O15: a relay that died keeps its share until that lapses; a number that is changed or removed
// holds for the calls that wait.
func TestO15ShareOfARelayThatDied(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c, open := newCrowd(t)
	open()
	r.exec(`insert into onlyonce.rates (sink, calls_of, in_flight) values ('payments', 'tenant slow', 2)`)
	r.exec(`
insert into onlyonce.shares values (
  'payments',
  'tenant slow',
  gen_random_uuid(),
  2,
  2,
  clock_timestamp(),
  clock_timestamp() + interval '30 seconds',
  1
)`)
	r.enqueueMany("slow", 50)
	r.start(testConfig(newScripted(c.send)))
	until(t, "all wait", func() bool { return r.waitingFor("tenant slow") == 50 })
	if n := c.atOnce("slow"); n != 0 {
		t.Errorf("%d calls beside those of a relay that may live", n)
	}
	r.exec(`update onlyonce.shares set until = clock_timestamp() where share = 2`)
	r.states("delivered")
	if n := c.atOnce("slow"); n > 2 {
		t.Errorf("%d calls were under way at once, of 2", n)
	}
	until(t, "the relay gives up what it does not use", func() bool {
		return one[int](r, `select count(*) from onlyonce.shares where share > 0`) == 0
	})
	r.exec(`update onlyonce.rates set in_flight = 1`)
	r.exec(`
insert into onlyonce.shares values (
  'payments',
  'tenant slow',
  gen_random_uuid(),
  1,
  1,
  clock_timestamp(),
  clock_timestamp() + interval '30 seconds',
  1
)`)
	r.enqueue(chargeOf("slow", "another"))
	until(t, "it waits", func() bool { return r.waitingFor("tenant slow") == 1 })
	r.exec(`delete from onlyonce.rates`)
	r.states("delivered")
}

// O15: retries that began before there was a number count, and so do calls that are under way while
// the relay stops.
func TestO15CallsThatBeganBefore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c, open := newCrowd(t)
	sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		if a.Number == 1 && order(a) == "retried" {
			return outbox.Failure("busy", nil)
		}
		return c.send(ctx, a)
	})
	cfg := testConfig(sink)
	cfg.DrainTimeout = time.Minute
	x := r.start(cfg)
	r.enqueue(chargeOf("slow", "retried"))
	until(t, "the retry is under way", func() bool { return c.atOnce("slow") == 1 })
	r.exec(`insert into onlyonce.rates (sink, calls_of, in_flight) values ('payments', 'tenant slow', 1)`)
	until(t, "the relay has asked", func() bool { return one[int](r, `select coalesce(sum(share), 0) from onlyonce.shares`) == 1 })
	r.enqueue(chargeOf("slow", "next"))
	until(t, "it waits", func() bool { return r.waitingFor("tenant slow") == 1 })
	stopped := make(chan struct{})
	go func() { defer close(stopped); x.stop() }()
	renewed := one[time.Time](r, `select until from onlyonce.shares`)
	until(t, "the share is kept while the call is under way", func() bool {
		return one[time.Time](r, `select until from onlyonce.shares`).After(renewed.Add(2 * time.Second))
	})
	if n := c.atOnce("slow"); n != 1 {
		t.Errorf("%d calls were under way at once, of 1", n)
	}
	open()
	<-stopped
	if n := one[int](r, `select count(*) from onlyonce.shares`); n != 0 {
		t.Errorf("%d shares are left", n)
	}
	r.start(cfg)
	r.states("delivered")
}

// O15: attempts of which none was made, and those that failed, are under way no more.
func TestO15WhatIsCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var mu sync.Mutex
	tries := map[string]int{}
	sink := newScripted(func(_ context.Context, a *outbox.Attempt) outbox.Result {
		mu.Lock()
		defer mu.Unlock()
		if tries[a.Key]++; tries[a.Key] < 3 {
			if tries[a.Key] == 2 {
				panic("a sink's")
			}
			return outbox.Failure("busy", nil)
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	cfg := testConfig(sink)
	cfg.Rates = []outbox.Rate{{Sink: "payments", InFlight: 2}, {Sink: "payments", Tenant: "slow", InFlight: 1}}
	r.start(cfg)
	var calls []outbox.Call
	for i := range 12 {
		calls = append(calls, keyed(fmt.Sprint("k", i%3), i))
		calls[i].Tenant = "slow"
	}
	r.enqueue(calls...)
	r.states("delivered")
}

// O15: a relay that always has a next call gives its place to the one that has waited longest.
func TestO15LongestWaitsFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	relays := []uuid.UUID{uuid.New(), uuid.New(), uuid.New()}
	asked := 0
	ask := func(relay, held int) int {
		asked++
		return one[int](r, `
select onlyonce.take_share(
  's',
  '',
  $1,
  $2,
  1,
  $3,
  8
)`, relays[relay], asked, held)
	}
	for i, c := range []struct{ relay, held, want int }{
		{0, 0, 1}, {1, 0, 0}, {2, 0, 0}, // 0 has the place, 1 waits, then 2
		{0, 1, 0}, {0, 0, 0}, // 0 starts no other call, and its call returns
		{2, 0, 0}, {1, 0, 1}, // it is the turn of 1
		{0, 0, 0}, {1, 1, 0}, {1, 0, 0}, // then not of 0, which asks first
		{0, 0, 0}, {2, 0, 1},
	} {
		if got := ask(c.relay, c.held); got != c.want {
			t.Fatalf("question %d: relay %d, which holds %d, may have %d calls under way, want %d", i, c.relay, c.held, got, c.want)
		}
	}
}

// O15: a question that arrives after a later one is ignored. Otherwise the database would count
// fewer calls than the relay may make.
func TestO15EarlierQuestionIsIgnored(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := uuid.New()
	b := uuid.New()
	ask := func(relay uuid.UUID, number, held, wants int) string {
		return one[string](r, `
select coalesce(onlyonce.take_share(
  's',
  '',
  $1,
  $2,
  8,
  $3,
  $4
)::text, 'ignored')`,
			relay, number, held, wants)
	}
	got := []string{ask(a, 1, 0, 5), ask(a, 3, 5, 8), ask(a, 2, 5, 5), ask(a, 3, 5, 5), ask(b, 1, 0, 8)}
	if want := []string{"5", "8", "ignored", "ignored", "0"}; !slices.Equal(got, want) {
		t.Errorf("answers: %q, want %q", got, want)
	}
}

// O15: each relay that wants as much gets an equal part, and what one does not want goes to the
// others.
func TestO15EqualParts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	relays := []uuid.UUID{uuid.New(), uuid.New(), uuid.New()}
	may := make([]int, 3)
	asked := 0
	round := func(wants ...int) {
		for range 3 {
			for i, want := range wants {
				asked++
				may[i] = one[int](r, `
select onlyonce.take_share(
  's',
  '',
  $1,
  $2,
  9,
  $3,
  $4
)`, relays[i], asked, min(may[i], want), want)
			}
		}
	}
	for _, c := range []struct{ wants, want []int }{
		{[]int{9, 0, 0}, []int{9, 0, 0}},
		{[]int{9, 9, 9}, []int{3, 3, 3}},
		{[]int{9, 1, 9}, []int{4, 1, 4}},
		{[]int{2, 2, 9}, []int{2, 2, 5}},
	} {
		if round(c.wants...); !slices.Equal(may, c.want) {
			t.Errorf("relays that want %v may have %v calls under way, want %v", c.wants, may, c.want)
		}
	}
}

// shareAsker is a relay that obeys what onlyonce.take_share says.
type shareAsker struct {
	relay           uuid.UUID
	may, underWay   int
	wants, finished int
	asked           int64
	late            []func() // questions that the database has not got yet; their answers are lost
}

// O15: whatever relays ask for and when, and whichever questions arrive late, the calls under way
// are never more than the number, and each relay that has some to make makes some.
func TestO15Shares(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(1, seed))
	for _, most := range []int{1, 2, 5, 12} {
		sink := fmt.Sprint("s", most)
		relays := make([]*shareAsker, 1+random.IntN(5))
		for i := range relays {
			relays[i] = &shareAsker{relay: uuid.New(), wants: 1 + random.IntN(8)}
		}
		waits := func(a *shareAsker) bool { return a.finished == 0 }
		for step := 0; step < 500 || step < 20_000 && slices.ContainsFunc(relays, waits); step++ {
			a := relays[random.IntN(len(relays))]
			switch random.IntN(4) {
			case 0: // asks
				a.asked++
				wants := max(random.IntN(a.wants+1), a.underWay)
				a.may = min(a.may, wants)
				number := a.asked
				held := max(a.may, a.underWay)
				ask := func() *int {
					return one[*int](r, `
select onlyonce.take_share(
  $1,
  '',
  $2,
  $3,
  $4,
  $5,
  $6
)`, sink, a.relay, number, most, held, wants)
				}
				if random.IntN(5) == 0 {
					a.late = append(a.late, func() { ask() })
				} else if may := ask(); may != nil && random.IntN(5) > 0 {
					a.may = *may
				}
			case 1: // starts calls
				a.underWay = max(a.underWay, a.may)
			case 2: // calls return
				n := random.IntN(a.underWay + 1)
				a.underWay = a.underWay - n
				a.finished = a.finished + n
			case 3:
				if len(a.late) > 0 {
					a.late[0]()
					a.late = a.late[1:]
				}
			}
			all := 0
			for _, b := range relays {
				all += b.underWay
			}
			if all > most {
				t.Fatalf("seed %d, step %d: %d calls under way, of %d", seed, step, all, most)
			}
		}
		if i := slices.IndexFunc(relays, waits); i >= 0 {
			t.Errorf("seed %d, of %d: relay %d of %d, which wants %d, has had no call under way",
				seed, most, i, len(relays), relays[i].wants)
		}
	}
}

// O15: of a tenant without calls nobody asks for a share, so the shares of relays that died are
// deleted by those that are left.
func TestO15SharesOfDeadRelaysAreForgotten(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`insert into onlyonce.shares (
  sink,
  calls_of,
  relay,
  share,
  wants,
  since,
  until,
  asked
)
  select 's',
         'tenant ' || h,
         gen_random_uuid(),
         1,
         1,
         now(),
         clock_timestamp() - h * interval '1 hour',
         1
    from generate_series(0, 3) h`)
	r.exec(outbox.Statements["forget rates"], "s")
	if s := one[string](r, `select string_agg(calls_of, ',') from onlyonce.shares`); s != "tenant 0" {
		t.Errorf("shares of %s are left", s)
	}
}
