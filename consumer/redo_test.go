package consumer_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// calling asks for a call for each message, and writes its effect.
func calling(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	if err := outbox.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "charge", Target: "/charges", Body: m.Value}); err != nil {
		return err
	}
	return queued(ctx, tx, m)
}

// keyless is for messages whose calls derive from their positions.
func keyless() consumer.Config {
	cfg := testConfig()
	cfg.Key = nil
	cfg.PositionsOnly = true
	return cfg
}

// calledFor is a rig on which five messages were handled by a consumer that goes on, each with a
// call.
func calledFor(t *testing.T, cfg consumer.Config) (r *rig, stop func()) {
	t.Helper()
	r = newRig(t, 1)
	r.numbered(0, 5)
	stop = r.start(calling, cfg)
	r.reaches(0, 5)
	return r, stop
}

// redone counts the calls that are known to have been made before, perhaps, and the others.
func (r *rig) redone() string {
	r.t.Helper()
	return fmt.Sprintf("%d redone, %d new",
		r.count(`select count(*) from onlyonce.outbox_log where redo`),
		r.count(`select count(*) from onlyonce.outbox_log where not redo`))
}

// O6: an operator has set the position back, and the rows of the calls are gone. The first owner
// takes the partition, which overwrites the group's offset in Kafka, and is gone before it has
// handled anything. The next one must know all the same.
func TestO6SetBackAndTakenOverTwice(t *testing.T) {
	t.Parallel()
	cfg := keyless()
	r, stop := calledFor(t, cfg)
	stop()
	if got := r.redone(); got != "0 redone, 5 new" {
		t.Fatal(got)
	}
	r.exec(`delete from onlyonce.batches`)
	r.exec(`update onlyonce.cursors set run = run + 1, run_start = 1`)
	entered := make(chan struct{}, 1)
	stop = r.start(func(ctx context.Context, _ consumer.Tx, _ *consumer.Message) error {
		select {
		case entered <- struct{}{}:
		default:
		}
		<-ctx.Done()
		return ctx.Err()
	}, cfg)
	pgtest.Receive(t, patience, "the handler is entered", entered)
	stop()
	r.log.Append(0, "later")
	stop = r.start(calling, cfg)
	r.reaches(0, 6)
	stop()
	if got := r.redone(); got != "4 redone, 1 new" {
		t.Errorf("%s; want what lies below the offset that had been reached redone", got)
	}
}

// O6: the database loses commits that it had confirmed, and the owner lives on. It knows how far it
// had been, whatever the group's offset is.
func TestO6LostCommitsOfALivingOwner(t *testing.T) {
	t.Parallel()
	r, stop := calledFor(t, keyless())
	r.exec(`
with p as (delete from onlyonce.progress
           returning 1), l as (delete from onlyonce.batches returning 1) delete from effects`)
	r.log.Append(0, "later")
	r.reaches(0, 6)
	stop()
	if got := r.redone(); got != "5 redone, 1 new" {
		t.Error(got)
	}
}

// A replay that sends calls again gives them keys of their own, under which no call was made.
func TestReplayThatSendsAgainIsNoRedo(t *testing.T) {
	t.Parallel()
	r, stop := calledFor(t, testConfig())
	stop()
	r.exec(`
update onlyonce.cursors set run = run + 1,
                            run_start = 0,
                            replay_no = 1,
                            replay_until = 5,
                            replay_resume = 5,
                            replay_resend = true`)
	r.log.Append(0, "later", id("later"))
	stop = r.start(calling, testConfig())
	r.reaches(0, 6)
	stop()
	if got := r.redone(); got != "0 redone, 11 new" {
		t.Error(got)
	}
}

// O1: an operator who redrives a message of reason conflict decides that it is another one than the
// first of its id. Its calls are others, too: under the first one's keys a remote would repeat its
// earlier answer, and nothing would be charged.
func TestO1RedrivenConflict(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	for _, v := range []string{"first", "second", "third"} {
		r.log.Append(0, v, id("one"))
	}
	stop := r.start(calling, testConfig())
	r.reaches(0, 3)
	// As `parked redrive` does.
	r.exec(`
update onlyonce.parked
   set state = 'retrying', attempts = 0, next_attempt_at = clock_timestamp() where reason = 'conflict'`)
	until(t, "all applied", func() bool { return r.count(`select count(*) from effects`) == 3 })
	stop()
	r.once("first", "second", "third")
	n := r.count(`select count(distinct body) from onlyonce.outbox_log`)
	keys := r.count(`select count(distinct key) from onlyonce.outbox_log`)
	if n != 3 ||
		keys != 3 {
		t.Errorf("%d calls under %d keys", n, keys)
	}
}
