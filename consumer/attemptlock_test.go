package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/consumertest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// neighbours has a message that kills on partition 0, and innocent ones on others.
func neighbours() *consumertest.Log {
	log := consumertest.NewLog("orders", 4)
	log.Append(0, "killer", id("killer"))
	for p := range int32(3) {
		for i := range 3 {
			v := fmt.Sprintf("p%d-%d", p+1, i)
			log.Append(p+1, v, id(v))
		}
	}
	return log
}

func init() {
	children["neighbours"] = func(db string) error {
		begun := make(chan struct{}, 100)
		return childRun(db, &consumertest.Source{Log: neighbours()}, func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			if string(m.Value) != "killer" {
				begun <- struct{}{}
				select { // in mid-work until the process dies, if it does
				case <-ctx.Done():
				case <-time.After(2 * time.Second):
				}
				return queued(ctx, tx, m)
			}
			for n := 0; n < 3; { // the neighbours are under way, unless nothing else is
				select {
				case <-begun:
					n++
				case <-time.After(300 * time.Millisecond):
					n = 3
				}
			}
			kill()
			return nil
		}, func(c *consumer.Config) {
			c.MaxAttempts, c.BatchSize = 3, 1
		})
	}
}

// F9: a message that kills its process is parked. Messages on other partitions that were under way
// each time are not.
func TestF9NeighboursOfAMessageThatKills(t *testing.T) {
	t.Parallel()
	r := newRig(t, 4)
	r.log = neighbours()
	r.src.Log = r.log
	separator := "?"
	if strings.Contains(r.pool.Config().ConnString(), "?") {
		separator = "&"
	}
	deaths := 0
	for ; deaths < 20 && r.count(`select count(*) from onlyonce.parked where partition = 0`) == 0; deaths++ {
		if !killed(runChild(t, "neighbours", r.pool.Config().ConnString()+separator+"pool_max_conns=10")) {
			break
		}
		r.dump(`select partition, attempt_offset, attempts, answers from onlyonce.cursors order by partition`)
	}
	cfg := testConfig()
	stop := r.start(queued, cfg)
	for p, n := range []int64{1, 3, 3, 3} {
		r.reaches(int32(p), n)
	}
	stop()
	if n := r.count(`select count(*) from onlyonce.parked where partition > 0`); n > 0 {
		t.Errorf("%d innocent messages are parked", n)
	}
	if n := r.count(`select count(*) from onlyonce.parked where partition = 0 and reason = 'crashed'`); n != 1 {
		t.Errorf("the message that kills is not parked as crashed after %d deaths", deaths)
	}
}

// turning makes a consumer of which only the turns are used.
func turning(t *testing.T) *consumer.Consumer {
	t.Helper()
	c, err := consumer.New(pgtest.DB(t), &consumertest.Source{Log: consumertest.NewLog("orders", 1), GroupID: "stock"}, queued, testConfig())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// F9: an attempt that is to be alone begins when all others have ended, and none begins before it
// has ended. Waiting ends with a context or with a bound, and then holds up nothing.
func TestF9TurnsApart(t *testing.T) {
	t.Parallel()
	c := turning(t)
	ctx := t.Context()
	enter := func(alone bool) (entered chan func()) {
		entered = make(chan func(), 1)
		go func() {
			leave, err := c.Enter(ctx, alone, time.Hour)
			if err != nil {
				t.Error(err)
				leave = func() {}
			}
			entered <- leave
		}()
		return entered
	}
	first, second := <-enter(false), <-enter(false)

	late, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := c.Enter(late, true, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	if _, err := c.Enter(ctx, true, time.Millisecond); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("behind its bound: %v", err)
	}
	(<-enter(false))() // neither of them holds up others

	alone := enter(true)
	until(t, "the one that waits to go before others", func() bool {
		soon, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		leave, err := c.Enter(soon, false, time.Hour)
		if err == nil {
			leave()
		}
		return err != nil
	})
	shared := enter(false)
	first()
	select {
	case <-alone:
		t.Fatal("it is not alone")
	case <-shared:
		t.Fatal("it did not wait for the one that is to be alone")
	default:
	}
	second()
	leave := pgtest.Receive(t, patience, "alone", alone)
	select {
	case <-shared:
		t.Fatal("it began beside one that is alone")
	default:
	}
	leave()
	(<-shared)()
}

// F9: the turns are the process's: a process that dies takes all of its consumers with it.
func TestF9TurnsAreTheProcesss(t *testing.T) {
	t.Parallel()
	if one, other := consumer.DefaultTurns(), consumer.DefaultTurns(); one != other {
		t.Error("two consumers of one process do not know of each other")
	}
}
