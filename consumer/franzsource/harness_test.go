package franzsource_test

import (
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/franzsource"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// patience bounds every wait of these tests.
var patience = pgtest.Patience(time.Minute)

// quick is a configuration in which a lost member is noticed within a second.
func quick(brokers []string, topics ...string) franzsource.Config {
	return franzsource.Config{
		Brokers: brokers, GroupID: "group-" + topics[0], Topics: topics,
		SessionTimeout: time.Second, RebalanceTimeout: 5 * time.Second, HeartbeatInterval: 100 * time.Millisecond,
	}
}

// join runs a Source until the test ends.
func join(t *testing.T, cfg franzsource.Config) *memlog.Member {
	t.Helper()
	return memlog.Join(t, franzsource.New(cfg))
}

// eventually polls a condition that has no notification.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	pgtest.Until(t, patience, what, cond)
}

func values(msgs []*consumer.Message) []string {
	out := make([]string, len(msgs))
	for i, m := range msgs {
		out[i] = string(m.Value)
	}
	return out
}
