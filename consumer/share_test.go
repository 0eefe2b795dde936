package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// sharedSource is a source whose share group is the test: it decides what is delivered, and what
// the broker delivers no more.
type sharedSource struct {
	*memlog.Source
	settled atomic.Int64
	asked   atomic.Int64 // for settled
	apply   chan func(context.Context, source.Delivery[*consumer.Message]) source.Applied
}

func (s *sharedSource) Deliver(ctx context.Context, _, _ int, apply func(context.Context, source.Delivery[*consumer.Message]) source.Applied) error {
	s.apply <- apply
	<-ctx.Done()
	return nil
}

func (s *sharedSource) Settled(context.Context, string, int32) (int64, error) {
	s.asked.Add(1)
	return s.settled.Load(), nil
}

// shareRig is a rig with one partition of a share group.
type shareRig struct {
	*rig
	share    *sharedSource
	messages []*consumer.Message
	apply    func(context.Context, source.Delivery[*consumer.Message]) source.Applied
}

// newDeliveryRig has n records in its log.
func newDeliveryRig(t *testing.T, n int) *shareRig {
	t.Helper()
	r := &shareRig{rig: newRig(t, 1)}
	r.share = &sharedSource{Source: r.src, apply: make(chan func(context.Context, source.Delivery[*consumer.Message]) source.Applied, 1)}
	for i := range n {
		m := &consumer.Message{Value: fmt.Append(nil, i)}
		r.log.AppendMessage(0, m)
		r.messages = append(r.messages, m)
	}
	return r
}

func shareConfig() consumer.Config {
	cfg := testConfig()
	cfg.Key, cfg.PositionsOnly, cfg.Concurrency = nil, true, 2
	return cfg
}

// consume starts a consumer, and waits until its keeper has the partition.
func (r *shareRig) consume(h consumer.Handler, cfg consumer.Config) (stop func()) {
	r.t.Helper()
	stop = r.startOn(r.share, r.pool, h, cfg)
	r.apply = <-r.share.apply
	until(r.t, "the keeper has the partition", func() bool {
		return r.count(`select count(*) from onlyonce.cursors where shared`) > 0
	})
	return stop
}

// delivery is a delivery of some offsets, as of now.
func (r *shareRig) delivery(offsets ...int64) source.Delivery[*consumer.Message] {
	id := r.log.Identity()
	d := source.Delivery[*consumer.Message]{ClusterID: id.ClusterID, TopicPartition: source.TopicPartition{Topic: id.Topic}, TopicID: id.TopicID, Until: time.Now().Add(patience)}
	for _, o := range offsets {
		m := *r.messages[o]
		d.Messages = append(d.Messages, &m)
	}
	return d
}

// deliver delivers offsets, until they are taken, and returns which of them are acknowledged.
func (r *shareRig) deliver(offsets ...int64) []int64 {
	r.t.Helper()
	var out source.Applied
	until(r.t, "the delivery is taken", func() bool {
		out = r.apply(r.t.Context(), r.delivery(offsets...))
		return len(out.Done) > 0
	})
	return out.Done
}

// wantEffects checks that each of these offsets has one effect, and no other has any.
func (r *shareRig) wantEffects(offsets ...int64) {
	r.t.Helper()
	rows, _ := r.pool.Query(r.t.Context(), `select off from effects order by off`)
	got, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil || !slices.Equal(got, offsets) {
		r.t.Errorf("effects of %v, want %v: %v", got, offsets, err)
	}
}

// G1: messages that are delivered to several transactions at once, in other groups, take effect
// once, and all deliveries are acknowledged.
func TestG1DeliveredToSeveralAtOnce(t *testing.T) {
	t.Parallel()
	r := newDeliveryRig(t, 6)
	r.consume(effect, shareConfig())
	r.deliver(5)
	var all sync.WaitGroup
	for _, offsets := range [][]int64{{0, 1, 2}, {1, 3}, {2, 3, 4}, {0, 4}} {
		all.Go(func() {
			if got := r.deliver(offsets...); !slices.Equal(got, offsets) {
				t.Errorf("of %v, %v are acknowledged", offsets, got)
			}
		})
	}
	all.Wait()
	r.wantEffects(0, 1, 2, 3, 4, 5)
	r.reaches(0, 6)
}

// G1: the answer to a COMMIT is lost. The messages run again, and are found to be done.
func TestG1AnswerToCommitIsLost(t *testing.T) {
	for _, cut := range []pgtest.Cut{pgtest.Unsent, pgtest.Unheard} {
		t.Run(fmt.Sprint(cut), func(t *testing.T) {
			t.Parallel()
			r := newDeliveryRig(t, 4)
			w := &pgtest.Wire{Statement: consumer.FenceSlotSQL, At: func(int32) pgtest.Cut { return pgtest.Pass }}
			commits := &pgtest.Wire{Statement: "commit", At: func(int32) pgtest.Cut {
				if w.Seen.CompareAndSwap(2, 3) {
					return cut
				}
				return pgtest.Pass
			}}
			r.pool = pgtest.Wired(t, pgtest.Wired(t, r.pool, pgx.QueryExecModeCacheStatement, w, nil), pgx.QueryExecModeCacheStatement, commits, nil)
			r.consume(effect, shareConfig())
			r.deliver(3)
			if got := r.deliver(0, 1, 2); len(got) != 3 {
				t.Errorf("%v are acknowledged", got)
			}
			if commits.Cuts.Load() != 1 {
				t.Errorf("%d answers were lost", commits.Cuts.Load())
			}
			r.wantEffects(0, 1, 2, 3)
		})
	}
}

// G3, G4: the keeper handles what the broker has given up, and nothing else; the position waits for
// what may still be delivered.
func TestG3KeeperHandlesWhatTheBrokerGaveUp(t *testing.T) {
	t.Parallel()
	r := newDeliveryRig(t, 8)
	r.consume(effect, shareConfig())
	r.deliver(1, 3, 6)
	r.share.settled.Store(5)
	r.reaches(0, 5)
	r.wantEffects(0, 1, 2, 3, 4, 6)
	if got := r.deliver(5, 7); len(got) != 2 {
		t.Errorf("%v are acknowledged", got)
	}
	r.reaches(0, 8)
	r.wantEffects(0, 1, 2, 3, 4, 5, 6, 7)
	if got := r.deliver(0, 4, 7); len(got) != 3 { // redelivered, below the position
		t.Errorf("%v are acknowledged", got)
	}
	r.wantEffects(0, 1, 2, 3, 4, 5, 6, 7)
	until(t, "no rows are kept", func() bool { return r.count(`select count(*) from onlyonce.done`) == 0 })
}

// An idle keeper asks neither broker nor database what the share group has done (G3).
func TestIdleKeeperAsksNothing(t *testing.T) {
	t.Parallel()
	r := newDeliveryRig(t, 3)
	r.consume(effect, shareConfig())
	r.deliver(0, 1)
	r.reaches(0, 2)
	r.deliver(2)
	r.reaches(0, 3)
	if r.share.asked.Load() == 0 {
		t.Error("the keeper has asked nothing")
	}
	before := r.share.asked.Load()
	time.Sleep(5 * process.PaceOf(t.Context()).Sweep)
	if after := r.share.asked.Load(); after != before {
		t.Errorf("asked %d times while nothing waited", after-before)
	}
}

// G5: a record is delivered at an offset below the position that is not the one that was handled
// there: its leader epoch is above that of everything that was read. It is not acknowledged.
func TestG5RecordWrittenAfterATruncation(t *testing.T) {
	t.Parallel()
	r := newDeliveryRig(t, 3)
	r.consume(effect, shareConfig())
	r.deliver(0, 1, 2)
	r.reaches(0, 3)
	until(t, "its row is pruned", func() bool { return r.count(`select count(*) from onlyonce.done`) == 0 })
	d := r.delivery(1)
	d.Messages[0].LeaderEpoch += 7
	if got := r.apply(t.Context(), d); len(got.Done) != 0 || got.Rest == 0 {
		t.Errorf("another record is acknowledged: %+v", got)
	}
	d = r.delivery(1)
	d.TopicID[0]++
	if got := r.apply(t.Context(), d); len(got.Done) != 0 || got.Rest == 0 {
		t.Errorf("a record of another topic is acknowledged: %+v", got)
	}
	r.mu.Lock()
	if len(r.halts) == 0 || r.halts[0].Reason != consumer.HaltTruncated {
		t.Errorf("halts: %v", r.halts)
	}
	r.mu.Unlock()
	halted := func() *consumer.HaltError {
		all, err := r.consumer.Status(t.Context())
		if err != nil || len(all) != 2 || all[0].Delivered || !all[1].Delivered {
			t.Fatalf("status of keeper and member: %+v, %v", all, err)
		}
		return all[1].Halted
	}
	if h := halted(); h == nil || h.Reason != consumer.HaltTruncated || !errors.Is(r.consumer.Healthy(), h) {
		t.Errorf("status is halted by %v, healthy says %v", h, r.consumer.Healthy())
	}
	r.deliver(2)
	if h := halted(); h != nil || r.consumer.Healthy() != nil {
		t.Errorf("after a delivery that is done: halted by %v, healthy says %v", h, r.consumer.Healthy())
	}
}

// G6: delivered messages are given back while an operator has paused the partition, and count as
// nothing.
func TestG6PausedPartitionGivesBack(t *testing.T) {
	t.Parallel()
	r := newDeliveryRig(t, 3)
	r.consume(effect, shareConfig())
	r.deliver(0)
	if err := r.consumer.Pause(t.Context(), "orders", 0, "a test"); err != nil {
		t.Fatal(err)
	}
	until(t, "messages are given back", func() bool {
		got := r.apply(t.Context(), r.delivery(0))
		return len(got.Done) == 0 && got.Rest > 0
	})
	if got := r.apply(t.Context(), r.delivery(1)); len(got.Done) != 0 {
		t.Errorf("%v are acknowledged", got.Done)
	}
	if err := r.consumer.Resume(t.Context(), "orders", 0); err != nil {
		t.Fatal(err)
	}
	r.deliver(1)
	r.wantEffects(0, 1)
}

// G5, G6: messages of another topic of that name are given back, and so is what is delivered during
// a replay.
func TestG6MembersGiveBack(t *testing.T) {
	t.Parallel()
	r := newDeliveryRig(t, 3)
	var replayed atomic.Bool
	inside, goOn := make(chan struct{}), make(chan struct{})
	r.consume(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset == 0 && replayed.Load() {
			close(inside)
			<-goOn
		}
		return effect(ctx, tx, m)
	}, shareConfig())
	r.deliver(0)
	r.reaches(0, 1)
	other := r.delivery(1)
	other.TopicID[0]++
	if got := r.apply(t.Context(), other); len(got.Done) != 0 || got.Rest == 0 {
		t.Errorf("of another topic: %+v", got)
	}
	replayed.Store(true)
	place := ops.CursorName{Scope: "stock", Topic: "orders"}
	if _, err := ops.Replay(t.Context(), r.pool, ops.By{Reason: "a test"}, ops.ReplayInput{CursorName: place, From: 0, To: 1}); err != nil {
		t.Fatal(err)
	}
	pgtest.Receive(t, patience, "the keeper has the replay's message", inside)
	if got := r.apply(t.Context(), r.delivery(1)); len(got.Done) != 0 || got.Rest == 0 {
		t.Errorf("during a replay: %+v", got)
	}
	close(goOn)
	r.deliver(1, 2)
	r.reaches(0, 3)
	r.wantEffects(0, 0, 1, 2)
}

// G6: the keeper is replaced after a member has read the cursor. The member goes on under the next
// keeper's epoch, in the same delivery, whether or not attempts at the message are counted.
func TestG6NextKeeperTakesOver(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprint(again), func(t *testing.T) {
			t.Parallel()
			r := newDeliveryRig(t, 2)
			r.consume(effect, shareConfig())
			r.deliver(0)
			r.exec(`select onlyonce.take_cursor(c.id, l.epoch, gen_random_uuid(), c.group_id, c.cluster_id, c.topic_id, true, '5s')
				from onlyonce.cursors c join onlyonce.leases l using (id)`)
			d := r.delivery(1)
			d.Again = again
			if got := r.apply(t.Context(), d); !slices.Equal(got.Done, []int64{1}) {
				t.Errorf("after the take-over: %+v", got)
			}
			r.wantEffects(0, 1)
		})
	}
}

// K10: the class of the scope changes after a member has read the cursor. The change fences it out,
// and it goes on with both rings.
func TestK10MembersFollowAChange(t *testing.T) {
	t.Parallel()
	r := newDeliveryRig(t, 0)
	for _, v := range []string{"a", "b"} {
		m := &consumer.Message{Value: []byte(v), Headers: []consumer.Header{id(v)}}
		r.log.AppendMessage(0, m)
		r.messages = append(r.messages, m)
	}
	cfg := testConfig()
	cfg.Concurrency = 2
	r.consume(effect, cfg)
	r.deliver(0)
	if err := r.changes("long"); err != nil {
		t.Fatal(err)
	}
	if got := r.apply(t.Context(), r.delivery(1)); !slices.Equal(got.Done, []int64{1}) {
		t.Errorf("after the change: %+v", got)
	}
	if a, b := r.held("a"), r.held("b"); a != "consumer" || b != "consumer consumer_long" {
		t.Errorf("a is in %q, b in %q", a, b)
	}
}

// G6: a consumer that reads through no share group takes the partition over in the same group,
// while members still get messages. With a Concurrency of 1 nothing that it does compares with what
// they have recorded, so from then on they give everything back.
func TestG6PlainOwnerBesideMembers(t *testing.T) {
	for _, concurrency := range []int{1, 2} {
		t.Run(fmt.Sprint(concurrency), func(t *testing.T) {
			t.Parallel()
			r := newDeliveryRig(t, 6)
			r.consume(effect, shareConfig())
			cfg := shareConfig()
			cfg.Concurrency = concurrency
			var once sync.Once
			inside, goOn := make(chan struct{}), make(chan struct{})
			r.startOn(&memlog.Source{Log: r.log, GroupID: r.src.GroupID}, r.pool, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				err := effect(ctx, tx, m)
				if err == nil && m.Offset == 0 { // its fence holds: no keeper takes over
					once.Do(func() { close(inside) })
					<-goOn
				}
				return err
			}, cfg)
			pgtest.Receive(t, patience, "the plain owner has the first message", inside)
			got := r.apply(t.Context(), r.delivery(1, 2, 3, 4, 5))
			if concurrency == 1 && len(got.Done) != 0 || got.Rest == 0 { // what another slot has done is acknowledged
				t.Errorf("delivered beside a plain owner: %+v", got)
			}
			close(goOn)
			r.reaches(0, 6)
			r.wantEffects(0, 1, 2, 3, 4, 5)
		})
	}
}

// D2, G3: attempts at a message are counted wherever they are made. A member begins no attempt
// after the record's lock has ended; the keeper goes on from its count, and parks the message.
func TestG3AttemptsGoOnAtTheKeeper(t *testing.T) {
	t.Parallel()
	r := newDeliveryRig(t, 2)
	cfg := shareConfig()
	cfg.MaxAttempts, cfg.Backoff.Min, cfg.Backoff.Max = 3, patience, patience // one attempt in each hand
	var attempts atomic.Int32
	r.consume(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset == 0 {
			return effect(ctx, tx, m)
		}
		if m.Attempt > 0 {
			attempts.Add(1)
		}
		return errors.New("never")
	}, cfg)
	r.deliver(0)
	for range 2 {
		d := r.delivery(1)
		d.Again, d.Until = true, time.Now().Add(time.Second)
		if got := r.apply(t.Context(), d); len(got.Done) != 0 {
			t.Errorf("%v are acknowledged", got.Done)
		}
	}
	r.share.settled.Store(2)
	r.reaches(0, 2)
	if n := attempts.Load(); n != 3 {
		t.Errorf("%d attempts, want 3", n)
	}
	if n := r.count(`select count(*) from onlyonce.parked where "offset" = 1 and reason = 'exhausted' and attempts = 3`); n != 1 {
		t.Errorf("%d messages are parked", n)
	}
	r.wantEffects(0)
}

// The brake holds for delivered messages: if nearly all fail, they are given back and not parked.
func TestBrakeGivesDeliveredMessagesBack(t *testing.T) {
	t.Parallel()
	r := newDeliveryRig(t, 12)
	cfg := shareConfig()
	cfg.Brake = consumer.Brake{Window: 4, Least: 4, Every: 10 * time.Millisecond}
	var healed atomic.Bool
	r.consume(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset > 0 && !healed.Load() {
			return consumer.Permanent(errors.New("no such table"))
		}
		return effect(ctx, tx, m)
	}, cfg)
	r.deliver(0)
	if got := r.apply(t.Context(), r.delivery(1, 2, 3, 4, 5, 6, 7)); len(got.Done) >= 7 || got.Rest == 0 {
		t.Errorf("everything is parked: %+v", got)
	}
	healed.Store(true)
	until(t, "all are handled", func() bool {
		return len(r.apply(t.Context(), r.delivery(1, 2, 3, 4, 5, 6, 7)).Done) == 7
	})
	if n := r.count(`select count(*) from onlyonce.parked`); n >= 7 {
		t.Errorf("%d messages are parked", n)
	}
}

func TestSharedSourceRefuses(t *testing.T) {
	t.Parallel()
	r := newDeliveryRig(t, 0)
	cfg := shareConfig()
	cfg.OnFailure, cfg.OrderingKey = consumer.ParkOrderingKey, func(m *consumer.Message) []byte { return m.Key }
	_, err := consumer.New(r.pool, r.share, effect, cfg)
	for _, field := range []string{"Config.OnFailure", "Config.OrderingKey"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not refused: %v", field, err)
		}
	}
}
