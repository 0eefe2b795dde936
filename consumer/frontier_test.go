package consumer_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// K6: a cursor's frontier is a time before which nothing in its log is unhandled: none is recorded
// while a message waits.
func TestK6FrontierFollowsThePosition(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.log.Append(0, "first", id("first"))
	hold := make(chan struct{})
	held := make(chan struct{}, 1)
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if string(m.Value) == "first" {
			held <- struct{}{}
			select {
			case <-hold:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return queued(ctx, tx, m)
	}, testConfig())
	pgtest.Receive(t, patience, "held", held)
	until(t, "the owner has asked for the clock", func() bool { return r.count(`select count(*) from onlyonce.owners`) > 0 })
	for range 3 { // it looks every second
		r.exec(`select pg_sleep(1)`)
	}
	if n := r.count(`select count(*) from onlyonce.frontiers`); n != 0 {
		t.Error("a frontier is noted while a message waits that was appended before")
	}
	close(hold)
	until(t, "the frontier is noted", func() bool { return r.count(`select count(*) from onlyonce.frontiers`) == 1 })
	stop()
	r.once("first")
}

// K6: a frontier that was noted while the clock was ahead does not stay for being the greater one.
func TestK6FrontierOfAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.log.Append(0, "first", id("first"))
	for range 2 {
		stop := r.start(queued, testConfig())
		until(t, "the frontier is noted", func() bool {
			return r.count(`
select count(*)
  from onlyonce.frontiers f
  join onlyonce.cursors c on c.id = f.cursor_id and c.run = f.run where f.frontier <= clock_timestamp()`) == 1
		})
		stop()
		// As the rotator leaves it.
		r.exec(`update onlyonce.frontiers set run = -1, frontier = clock_timestamp() + interval '6 days'`)
	}
}

// K6: a consumer that declares that copies come for longer than keys are remembered does not start.
func TestK6CopiesBeyondTheHorizon(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	cfg := testConfig()
	cfg.CopiesWithin = 8 * 24 * time.Hour
	c, err := consumer.New(r.pool, &memlog.Source{Log: r.log, GroupID: "g"}, consumer.HandlerFunc(queued), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "onlyonce inbox horizon -ring consumer_keys") {
		t.Fatalf("%v", err)
	}
	r.exec(`update onlyonce.rings set horizon = '9 days' where name = 'consumer_keys'`)
	r.log.Append(0, "v", id("v"))
	stop := r.start(queued, cfg)
	r.reaches(0, 1)
	stop()
}
