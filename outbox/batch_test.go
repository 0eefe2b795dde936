package outbox_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/seal"
)

// batching is a scripted sink that takes many calls at once.
type batching struct {
	*scripted
	batch func(ctx context.Context, calls []*outbox.Attempt, ended func(int, outbox.Result))

	mu    sync.Mutex
	sizes []int
}

// newBatching makes the calls of a batch side by side, each as send does.
func newBatching(send func(ctx context.Context, a *outbox.Attempt) outbox.Result) *batching {
	b := &batching{scripted: newScripted(send)}
	b.batch = func(ctx context.Context, calls []*outbox.Attempt, ended func(int, outbox.Result)) {
		var all sync.WaitGroup
		for i, a := range calls {
			all.Go(func() { ended(i, b.Send(ctx, a)) })
		}
		all.Wait()
	}
	return b
}

func (b *batching) SendBatch(ctx context.Context, calls []*outbox.Attempt, ended func(int, outbox.Result)) {
	b.mu.Lock()
	b.sizes = append(b.sizes, len(calls))
	b.mu.Unlock()
	b.batch(ctx, calls, ended)
}

// A Batcher gets as many calls as there are slots, each call once, and no two calls of one ordering
// key (O4).
func TestBatches(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var mu sync.Mutex
	under := 0
	most := 0
	sink := newBatching(func(context.Context, *outbox.Attempt) outbox.Result {
		mu.Lock()
		under++
		most = max(most, under)
		mu.Unlock()
		_ = one[int](r, `select 1`)
		mu.Lock()
		under--
		mu.Unlock()
		return outbox.Result{Outcome: outbox.Delivered}
	})
	alone := sink.batch
	sink.batch = func(ctx context.Context, calls []*outbox.Attempt, ended func(int, outbox.Result)) {
		orders := map[string]bool{}
		for _, a := range calls {
			if a.Order != "" && orders[a.Order] {
				t.Errorf("two calls of ordering key %s in one batch", a.Order)
			}
			orders[a.Order] = true
		}
		alone(ctx, calls, ended)
	}
	const n, slots = 300, 40
	var calls []outbox.Call
	for i := range n {
		c := charge(fmt.Sprint(i))
		if i%3 == 0 {
			c.OrderingKey = fmt.Sprint("k", i%7)
		}
		calls = append(calls, c)
	}
	r.enqueue(calls...)
	cfg := testConfig(sink)
	cfg.Concurrency = slots
	r.start(cfg)
	r.told(n)
	sum := 0
	largest := 0
	for _, size := range sink.sizes {
		sum = sum + size
		largest = max(largest, size)
	}
	seen := map[string]bool{}
	for _, d := range sink.calls() {
		seen[d.Key] = true
	}
	// A busy machine may leave a chunk before the last calls of its keys: those are made alone.
	// Others that are parked then were in a batch.
	left := one[int](r, `select count(*) from onlyonce.parked`)
	good := sum <= n && sum+left >= n && len(seen) == n && len(sink.calls()) == n
	if !good {
		t.Errorf("%d calls in batches and %d alone, %d made, of %d keys, want %d", sum, left, len(sink.calls()), len(seen), n)
	}
	if largest < 2 || most > slots {
		t.Errorf("the largest batch had %d calls, and %d were under way at once; there are %d slots", largest, most, slots)
	}
}

// O4: in batches, too, calls of one key are made one after another, in the order of their commits,
// through retries of each.
func TestO4OrderInBatches(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var mu sync.Mutex
	under := map[string]int{}
	tries := map[string]int{}
	sink := newBatching(func(_ context.Context, a *outbox.Attempt) outbox.Result {
		mu.Lock()
		defer mu.Unlock()
		if under[a.Order]++; under[a.Order] > 1 {
			t.Errorf("two calls of %s at once", a.Order)
		}
		tries[a.Key]++
		again := tries[a.Key] <= int(a.ID)%3
		mu.Unlock()
		_ = one[int](r, `select 1`)
		mu.Lock()
		under[a.Order]--
		if again {
			return outbox.Failure("again", nil)
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	keys := r.neighbours(4)
	for i := range 15 {
		var calls []outbox.Call
		for _, key := range keys {
			calls = append(calls, keyed(key, i))
		}
		r.enqueue(calls...)
	}
	r.start(testConfig(sink))
	r.states("delivered")
	for _, key := range keys {
		last := -1
		for _, s := range strings.Fields(ofKey(sink.scripted, key)) {
			var n int
			if _, err := fmt.Sscan(s, &n); err != nil {
				t.Fatal(err)
			}
			if n < last || n > last+1 {
				t.Errorf("key %s: call %d behind call %d", key, n, last)
			}
			last = n
		}
		if last != 14 {
			t.Errorf("key %s: the last call was %d", key, last)
		}
	}
}

// A call without a result is not taken for delivered. A second result, or one that comes too late,
// is ignored (O4).
func TestBatchEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reason string // of calls for which the sink reports no result
		rest   func(calls []*outbox.Attempt, ended func(int, outbox.Result))
	}{
		"says nothing": {"did not say", func([]*outbox.Attempt, func(int, outbox.Result)) {}},
		"panics":       {"panicked", func([]*outbox.Attempt, func(int, outbox.Result)) { panic("no") }},
		"ends":         {"ended its goroutine", func([]*outbox.Attempt, func(int, outbox.Result)) { runtime.Goexit() }},
		"says it twice": {"did not say", func(_ []*outbox.Attempt, ended func(int, outbox.Result)) {
			ended(0, outbox.Result{Outcome: outbox.Rejected, Reason: "no"})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			sink := newBatching(accept)
			var mu sync.Mutex
			var late []func()
			silent := 0 // how many calls got no result, in however many batches they came
			sink.batch = func(ctx context.Context, calls []*outbox.Attempt, ended func(int, outbox.Result)) {
				mu.Lock()
				late = append(late, func() { ended(len(calls)-1, outbox.Result{Outcome: outbox.Rejected, Reason: "too late"}) })
				silent += len(calls) / 2
				mu.Unlock()
				for i, a := range calls {
					if i%2 == 0 {
						ended(i, sink.Send(ctx, a))
					}
				}
				c.rest(calls, ended)
			}
			const n = 8
			first := charge("first")
			calls := []outbox.Call{first}
			for i := 1; i < n; i++ {
				calls = append(calls, charge(r.sameLane(first, fmt.Sprint("n", i))))
			}
			r.enqueue(calls...)
			cfg := testConfig(sink)
			cfg.Concurrency = 1000 // a lane that looks for parked calls takes up to 16 meanwhile
			r.start(cfg)
			r.states("delivered")
			mu.Lock()
			for _, f := range late {
				f()
			}
			want := silent
			mu.Unlock()
			again := 0
			for _, s := range r.told(n + want) {
				switch {
				case s.State == "retry" && strings.Contains(s.Reason, c.reason):
					again++
				case s.State != "delivered":
					t.Errorf("%+v", s)
				}
			}
			if again != want || want == 0 {
				t.Errorf("%d calls were tried again, want %d", again, want)
			}
			if len(sink.calls()) != n {
				t.Errorf("%d calls were told of, want %d", len(sink.calls()), n)
			}
		})
	}
}

// Hints are only hints: a relay that is woken finds calls that it had no hint of, or had one of too
// early (O2).
func TestWokenRelayAsksTheDatabase(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	cfg := testConfig(sink)
	cfg.PollInterval = time.Minute
	relay := r.relay(cfg)
	r.run(relay)
	r.holds(16)
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if err := outbox.Enqueue(t.Context(), tx, charge("late")); err != nil {
		t.Fatal(err)
	}
	r.enqueue(charge("early"))
	relay.Wake()
	r.told(1)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	relay.Wake()
	r.told(2)
	// There is no hint of calls that SQL writes.
	if err := pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(
			t.Context(),
			`
select onlyonce.enqueue(
  gen_random_uuid(),
  '',
  'checkout',
  'payments',
  'charge',
  'POST',
  '/charges',
  '{}'::text[],
  '{}'::text[],
  ''
)`,
		)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	relay.Wake()
	r.told(3)
}

// opensGood opens no body that says it is bad.
type opensGood struct{}

func (opensGood) Seal(_ [16]byte, body []byte) ([]byte, error) { return body, nil }
func (opensGood) Open(_ [16]byte, sealed []byte) ([]byte, error) {
	if strings.Contains(string(sealed), "bad") {
		return nil, seal.ErrValue
	}
	return sealed, nil
}

// O4: a call that cannot be sent with its batch is handed back as one that has returned: it is
// settled, its slot is free, and the others of the batch are made.
func TestO4CallThatIsLeftOutOfItsBatch(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gate := r.gate()
	sink := newBatching(gate.accept)
	cfg := testConfig(sink)
	cfg.Concurrency = 3
	cfg.Sealer = opensGood{}
	var calls []outbox.Call
	for _, id := range []string{"first", "bad", "third"} {
		c := charge(id)
		c.Sealer = opensGood{}
		calls = append(calls, c)
	}
	r.enqueue(calls...)
	r.start(cfg)
	gate.wait()
	gate.wait()
	until(t, "the call waits for an operator", func() bool {
		return one[int](r, `select count(*) from onlyonce.parked where state = 'waiting' and reason = 'unopened'`) == 1
	})
	sink.mu.Lock()
	together := 0
	for _, n := range sink.sizes {
		together += n
	}
	if together != 2 {
		t.Errorf("batches of %v calls, want the two others in them: a call that is made again goes alone", sink.sizes)
	}
	sink.mu.Unlock()
	r.enqueue(charge("next"))
	gate.wait() // in the slot of the call that was left out
	gate.release()
	r.states("delivered", "waiting")
}
