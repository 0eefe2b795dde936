package sharesource_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/sharesource"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// childVar names, in a copy of the test binary, where to consume, and when it is to be killed:
// brokers, group, topic, "handler" or "committed". childDB is the database.
const (
	childVar = "ONLYONCE_TEST_SHARE"
	childDB  = childVar + "_DB"
)

func TestMain(m *testing.M) {
	if what := os.Getenv(childVar); what != "" {
		if err := playChild(strings.Split(what, " ")); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(3) // it should have been killed
	}
	pgtest.Main(m)
}

// playChild consumes until it is killed: in a handler, or after a COMMIT whose messages it has not
// acknowledged yet.
func playChild(what []string) error {
	kill := func() {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // not a step further
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	pool, err := pgxpool.New(ctx, os.Getenv(childDB))
	if err != nil {
		return err
	}
	source := sharesource.New(sharesource.Config{Brokers: strings.Split(what[0], ","), GroupID: what[1], Topics: []string{what[2]}, SessionTimeout: 2 * time.Second})
	cfg := consumer.Config{Scope: "share", PositionsOnly: true, Concurrency: 2, BatchSize: 3}
	var mu sync.Mutex
	commits := 0
	cfg.Hooks.Batch = func(consumer.BatchDone) {
		mu.Lock()
		defer mu.Unlock()
		if commits++; commits == 3 && what[3] == "committed" {
			kill()
		}
	}
	c, err := consumer.New(pool, source, func(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset == 5 && what[3] == "handler" {
			kill()
		}
		tx.Queue(`insert into effect values ($1, 'child')`, string(m.Value))
		return nil
	}, cfg)
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// G1, G2: a member is killed in a transaction, or between COMMIT and acknowledgement. Others get
// its records when the broker gives up on it, and each has one effect.
func TestG1MemberIsKilled(t *testing.T) {
	for _, when := range []string{"handler", "committed"} {
		t.Run(when, func(t *testing.T) {
			kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
				r := newRig(t, brokers)
				r.write(30)
				cmd := exec.CommandContext(t.Context(), os.Args[0])
				cmd.Env = append(os.Environ(), childVar+"="+strings.Join([]string{strings.Join(brokers, ","), r.group(), r.topic, when}, " "), childDB+"="+r.pool.Config().ConnString())
				cmd.Stderr = os.Stderr
				if err := cmd.Run(); err == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
					t.Fatalf("the first member was not killed: %v", err)
				}
				r.start("b", nil)
				r.applied(0)
			})
		})
	}
}

// G2: the source acknowledges what apply has returned as done, and nothing else: not what is left
// of a poll when it polls again, and nothing of a poll that was given back.
func TestG2OnlyWhatIsDoneIsAcknowledged(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		r := newRig(t, brokers)
		r.write(20)
		ctx, stop := context.WithTimeout(t.Context(), patience)
		defer stop()
		var mu sync.Mutex
		first, again := map[int64]bool{}, map[int64]bool{}
		err := r.source().Deliver(ctx, 2, 5, func(_ context.Context, d source.Delivery[*consumer.Message]) (out source.Applied) {
			mu.Lock()
			defer mu.Unlock()
			for _, m := range d.Messages {
				switch {
				case m.Offset%2 == 0 && again[m.Offset], m.Offset%2 == 1 && first[m.Offset]:
					t.Errorf("offset %d is delivered although it was acknowledged", m.Offset)
				case d.Again && !first[m.Offset], !d.Again && first[m.Offset]:
					t.Errorf("offset %d: Again is %t", m.Offset, d.Again)
				}
				if d.Again {
					again[m.Offset] = true
				}
				first[m.Offset] = true
				if m.Offset%2 == 1 || d.Again {
					out.Done = append(out.Done, m.Offset)
				}
			}
			if len(again) == 10 {
				stop()
			}
			return out
		})
		if err != nil {
			t.Error(err)
		}
		if len(first) != 20 || len(again) != 10 {
			t.Errorf("%d records were delivered, %d of them twice; want 20 and 10", len(first), len(again))
		}
	})
}

// G3, G4: a record is under way in a member while all later ones are done and acknowledged. The
// position waits for it, and the keeper leaves it alone. Then a failover loses a commit whose
// record was acknowledged, which the broker never delivers again: the keeper handles it.
func TestG3AcknowledgedAndLost(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		r := newRig(t, brokers)
		held, release := make(chan struct{}), make(chan struct{})
		var once sync.Once
		r.start("a", func(ctx context.Context, m *consumer.Message) error {
			if m.Offset == 0 {
				once.Do(func() { close(held) })
				select {
				case <-release:
				case <-ctx.Done():
				}
			}
			return ctx.Err()
		}, func(cfg *consumer.Config) { cfg.BatchSize = 1 })
		r.write(1)
		<-held
		r.start("b", nil)
		r.write(9)
		r.until("the others are applied", func() bool { return r.count(`select count(*) from effect`) == 9 })
		r.until("the others are recorded as done", func() bool { return r.count(`select count(*) from onlyonce.done`) == 9 })
		if n := r.count(`select next_offset from onlyonce.positions`); n != 0 {
			t.Fatalf("the position is %d, want 0: record 0 is not done", n)
		}
		r.exec(`delete from onlyonce.done where "offset" = 5`)
		r.exec(`delete from effect where value = '5'`)
		close(release)
		r.applied(0)
	})
}

// G3: another program has archived records of the share group, and acknowledged others, without
// applying any. The keeper finds all of them, and parks the one that cannot be applied.
func TestG3ArchivedUnseen(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		r := newRig(t, brokers)
		r.write(20)
		r.discard(20)
		r.start("a", func(_ context.Context, m *consumer.Message) error {
			if m.Offset == 3 {
				return consumer.Permanent(fmt.Errorf("no such customer"))
			}
			return nil
		})
		r.applied(1)
		r.write(10)
		r.applied(1)
	})
}

// discard takes records from the share group, half of them rejected and half acknowledged.
func (r *rig) discard(n int) {
	r.t.Helper()
	cl := kafkatest.Client(r.t, r.brokers, kgo.ShareGroup(r.group()), kgo.ConsumeTopics(r.topic))
	defer cl.Close()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	for seen := 0; seen < n && ctx.Err() == nil; {
		cl.PollFetches(ctx).EachRecord(func(rec *kgo.Record) {
			seen++
			if rec.Offset%2 == 0 {
				rec.Ack(kgo.AckAccept)
			} else {
				rec.Ack(kgo.AckReject)
			}
		})
		if err := cl.FlushAcks(ctx); err != nil {
			r.t.Fatal(err)
		}
	}
}

// G1: a handler takes longer than the record's lock, so another member gets the record too, while
// the first one goes on.
func TestG1LockEndsBeforeTheHandler(t *testing.T) {
	test := func(t *testing.T, brokers []string) {
		r := newRig(t, brokers)
		held, release := make(chan struct{}), make(chan struct{})
		var once sync.Once
		hold := func(ctx context.Context, _ *consumer.Message) error {
			once.Do(func() { close(held) })
			select {
			case <-release:
			case <-ctx.Done():
			}
			return ctx.Err()
		}
		configure(t, r.writer, r.group(), map[string]string{"share.record.lock.duration.ms": "1000"})
		r.start("a", hold)
		r.start("b", hold)
		r.write(1)
		<-held
		before := r.calls.Load()
		r.until("the record is delivered again", func() bool { return r.calls.Load() > before })
		close(release)
		r.applied(0)
	}
	t.Run("real", func(t *testing.T) { t.Parallel(); test(t, kafkatest.Brokers(t)) })
	t.Run("kfake", func(t *testing.T) {
		t.Parallel()
		locks := map[string]string{"group.share.record.lock.duration.ms": "1000"} // it has no setting of the group
		test(t, kafkatest.FakeCluster(t, kfake.BrokerConfigs(locks)).ListenAddrs())
	})
}

// G5: what is done at an offset is another record than the one that is delivered. It is not
// acknowledged, and the keeper halts.
func TestG5AnotherRecordIsNoDuplicate(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		r := newRig(t, brokers)
		first := r.start("a", nil)
		r.write(1)
		r.applied(0)
		first.stop()
		r.exec(`insert into onlyonce.done (cursor_id, "offset", hash, run, last) select id, 3, 1, run, false from onlyonce.cursors`)
		r.write(4)
		var mu sync.Mutex
		halts := map[consumer.HaltReason]bool{}
		r.start("b", nil, func(cfg *consumer.Config) {
			cfg.BatchSize, cfg.Concurrency = 1, 1
			cfg.Hooks.Halted = func(h *consumer.HaltError) {
				mu.Lock()
				defer mu.Unlock()
				halts[h.Reason] = true
			}
		})
		r.until("the others are applied", func() bool { return r.count(`select count(*) from effect`) == 4 })
		r.until("the partition halts as truncated", func() bool { mu.Lock(); defer mu.Unlock(); return halts[consumer.HaltTruncated] })
		if n := r.count(`select count(*) from effect where value = '3'`); n != 0 {
			t.Error("record 3 was applied")
		}
		var done any
		r.until("record 3 was delivered", func() (found bool) { done, found = r.answered.Load(int64(3)); return found })
		if done != false {
			t.Error("record 3 was acknowledged")
		}
	})
}

// G7: the share group must not deliver records of aborted transactions.
func TestG7ReadUncommittedIsRefused(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		r := newRig(t, brokers)
		configure(t, r.writer, r.group(), map[string]string{"share.isolation.level": "read_uncommitted"})
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		err := r.source().Deliver(ctx, 1, 1, func(context.Context, source.Delivery[*consumer.Message]) (none source.Applied) { return none })
		if err == nil || ctx.Err() != nil {
			t.Fatalf("Deliver returned %v", err)
		}
		kafkatest.WantAll(t, err.Error(), r.group(), "share.isolation.level", "kafka-configs.sh")
	})
}

// G1: a broker answers for a partition with an error and a leader that is no broker. Kafka 4.3.0
// does so with leader 0, its field's default, while it reads the share group's state after a
// restart. franz-go before 1.22.3 believed it: it fetched the partition from that leader for ever.
func TestG1ErrorWithALeaderThatIsNoBroker(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.FakeCluster(t)
	var left atomic.Int32
	left.Store(3)
	cluster.ControlKey(int16(kmsg.ShareFetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		fetch := req.(*kmsg.ShareFetchRequest)
		if len(fetch.Topics) == 0 || left.Add(-1) < 0 {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.ShareFetchResponse)
		for _, t := range fetch.Topics {
			rt := kmsg.NewShareFetchResponseTopic()
			rt.TopicID = t.TopicID
			for _, p := range t.Partitions {
				rp := kmsg.NewShareFetchResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, kerr.UnknownServerError.Code
				rp.CurrentLeader.LeaderID, rp.CurrentLeader.LeaderEpoch = 7, 7
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
	r := newRig(t, cluster.ListenAddrs())
	r.start("a", nil)
	r.write(10)
	r.applied(0)
	if n := left.Load(); n >= 0 {
		t.Errorf("%d of 3 errors were not sent", n)
	}
}

// G7: records of aborted transactions are not applied, and the position passes them and the
// markers.
func TestG7AbortedRecords(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		r := newRig(t, brokers)
		r.start("a", nil)
		tx := kafkatest.Client(t, brokers, kgo.TransactionalID(r.topic), kgo.TransactionTimeout(time.Minute))
		for _, commit := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit, kgo.TryAbort} {
			if err := tx.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
			value := "aborted"
			if commit == kgo.TryCommit {
				value = fmt.Sprint(r.written)
				r.written++
			}
			kafkatest.Write(t, tx, r.topic, value)
			if err := tx.EndTransaction(t.Context(), commit); err != nil {
				t.Fatal(err)
			}
			r.write(2)
		}
		r.applied(0)
		if n := r.count(`select count(*) from effect where value = 'aborted'`); n != 0 {
			t.Errorf("%d aborted records were applied", n)
		}
	})
}
