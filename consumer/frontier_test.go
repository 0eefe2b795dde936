package consumer_test

import (
	"context"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
)

// K6: a cursor's frontier is a time before which nothing in its log is still to be handled: none is noted while a message waits.
func TestK6FrontierFollowsThePosition(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.log.Append(0, "first", id("first"))
	hold, held := make(chan struct{}), make(chan struct{}, 1)
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
	<-held
	until(t, "the owner has asked for the clock and the end of the log", func() bool {
		return r.count(`select count(*) from pg_stat_activity where datname = current_database() and query = 'select clock_timestamp()'`) > 0 ||
			r.count(`select count(*) from onlyonce.frontiers`) > 0
	})
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
