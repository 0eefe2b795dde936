package queue_test

import (
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// What a receiver parks is a line, once it is committed, with the reason: a conflict too. Its
// copies are none.
func TestParkedMessagesAreLogged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	logger, text := pgtest.Logged()
	r.receives(func(c *queue.Config) { c.Logger = fields.Logger(logger) })
	r.broker.Publish(message("a"), message("a", "another"), message("a", "another"), message(""))
	r.until("all are acknowledged", func() bool { return r.broker.Left() == 0 })
	for reason, want := range map[string]int{"conflict": 1, "no-key": 1} {
		n := strings.Count(text(), `msg="onlyonce: event parked, see onlyonce parked list -kind event" scope=queue/q topic=queue.q reason=`+
			reason)
		if n != want {
			t.Errorf("%d lines of %s:\n%s", n, reason, text())
		}
	}
}
