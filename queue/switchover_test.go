package queue_test

import (
	"testing"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// T12: while the address leads to a standby, the receiver keeps what it has. When it leads to the
// primary again, messages are stored, although the sockets to the standby are still open.
func TestT12SwitchoverOfAReceiver(t *testing.T) {
	t.Parallel()
	for _, ordered := range []bool{false, true} {
		s := pgtest.NewSwitchover(t)
		r := &rig{t: t, pool: s.Direct()}
		pool := s.Pool()
		q := r.queue(pool, r.broker.Connect(), func(c *queue.Config) { c.Ordered = ordered })
		stop := r.runs(q.Receive)
		r.broker.Publish(message("m1"))
		r.until("a message is stored", func() bool { return r.stored().Fresh == 1 })
		s.Begin()
		r.broker.Publish(message("m2"))
		r.until("the standby refuses a message", func() bool { return guard.SQLState(q.Healthy()) == "25006" })
		s.End(pool)
		r.until("it is stored", func() bool { return r.stored().Fresh == 2 && q.Healthy() == nil })
		stop()
		if n := r.count("onlyonce.event_log"); n != 2 {
			t.Errorf("ordered %t: %d messages are stored", ordered, n)
		}
	}
}
