package outbox

import (
	"log/slog"
	"sync"
)

// captures notices that RelayConfig.Complete is set although no call asks for its answer: it would
// never be called, and nothing would report that. It is one for all sinks of a relay, because
// Complete is.
type captures struct {
	log *slog.Logger

	mu   sync.Mutex
	done bool // a call has asked for its answer, or the warning is logged
}

// newCaptures returns nil if there is nothing to notice.
func newCaptures(cfg *RelayConfig) *captures {
	if cfg.Complete == nil {
		return nil
	}
	return &captures{log: cfg.Logger}
}

// settled notes a call that has ended, and warns at the first one that was delivered if none before
// it has asked for its answer.
func (c *captures) settled(a *callAttempt, settlement CallState) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.done:
	case a.Capture:
		c.done = true
	case settlement == CallDelivered:
		c.done = true
		c.log.Warn("onlyonce: RelayConfig.Complete is set, and the first call that was delivered does not "+
			"ask for its answer: Complete gets the answers of calls with Call.Capture, and no others",
			"sink", a.Sink, "name", a.Name)
	}
}
