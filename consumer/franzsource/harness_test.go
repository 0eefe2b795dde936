package franzsource_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/consumertest"
	"github.com/onlyonce/onlyonce/consumer/franzsource"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// patience bounds every wait of these tests.
var patience = pgtest.Patience(time.Minute)

// onBoth runs a test against a real broker and against kfake.
func onBoth(t *testing.T, f func(t *testing.T, brokers []string)) {
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		f(t, kafkatest.Brokers(t))
	})
	t.Run("kfake", func(t *testing.T) {
		t.Parallel()
		f(t, kafkatest.Fake(t))
	})
}

// quick is a configuration in which a lost member is noticed within a second.
func quick(brokers []string, topics ...string) franzsource.Config {
	return franzsource.Config{
		Brokers: brokers, GroupID: "group-" + topics[0], Topics: topics,
		SessionTimeout: time.Second, RebalanceTimeout: 5 * time.Second, HeartbeatInterval: 100 * time.Millisecond,
	}
}

// join runs a Source until the test ends.
func join(t *testing.T, cfg franzsource.Config) *consumertest.Member {
	t.Helper()
	return consumertest.Join(t, franzsource.New(cfg))
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

// runFails runs a Source that must fail before it owns anything, and returns the error's text.
func runFails(t *testing.T, cfg franzsource.Config) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := franzsource.New(cfg).Run(ctx, func(context.Context, consumer.Partition) error {
		t.Error("a partition was handed over")
		return nil
	})
	if err == nil || ctx.Err() != nil {
		t.Fatalf("Run returned %v", err)
	}
	return err.Error()
}

func wantAll(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("error does not say %q: %s", p, text)
		}
	}
}
