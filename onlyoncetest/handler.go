package onlyoncetest

import (
	"cmp"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
)

// tuned returns the configuration of a consumer in a test. Scope and Key get defaults, and what
// only costs time is shortened unless it is set. Everything else is the user's.
func tuned(cfg consumer.Config) consumer.Config {
	cfg.Scope = cmp.Or(cfg.Scope, "test")
	if cfg.Key == nil && !cfg.PositionsOnly {
		cfg.Key = idOf
	}
	cfg.Linger = cmp.Or(cfg.Linger, time.Millisecond)
	cfg.Backoff.Min = cmp.Or(cfg.Backoff.Min, time.Millisecond)
	cfg.Backoff.Max = max(cmp.Or(cfg.Backoff.Max, 10*time.Millisecond), cfg.Backoff.Min)
	return cfg
}

// idOf returns a message's id: that of FromMessage, or the header message-id.
func idOf(m *consumer.Message) (string, error) {
	if id := m.ID(); id != "" {
		return id, nil
	}
	return consumer.HeaderKey(idHeader)(m)
}
