package kafkatest

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// OnBoth runs a test against a real broker and against kfake.
func OnBoth(t *testing.T, f func(t *testing.T, brokers []string)) {
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		f(t, Brokers(t))
	})
	t.Run("kfake", func(t *testing.T) {
		t.Parallel()
		f(t, Fake(t))
	})
}

// RunFails runs a Source that must fail before it owns anything, and returns the error's text.
func RunFails(t testing.TB, s consumer.Source) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience(time.Minute))
	defer cancel()
	err := s.Run(ctx, func(context.Context, source.Partition[*consumer.Message]) error {
		t.Error("a partition was handed over")
		return nil
	})
	if err == nil || ctx.Err() != nil {
		t.Fatalf("Run returned %v", err)
	}
	return err.Error()
}

// RunStarts runs a Source until it owns a partition.
func RunStarts(t testing.TB, s consumer.Source) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var owned atomic.Bool
	err := s.Run(ctx, func(context.Context, source.Partition[*consumer.Message]) error {
		owned.Store(true)
		cancel()
		return nil
	})
	if err != nil || !owned.Load() {
		t.Errorf("Run returned %v; owned %v", err, owned.Load())
	}
}

// WantAll checks that an error's text has all of these parts.
func WantAll(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("error does not say %q: %s", p, text)
		}
	}
}

// SilentBroker listens, accepts connections and answers nothing, like the port of a frozen host. It
// returns its address.
func SilentBroker(t testing.TB) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
	}()
	return l.Addr().String()
}

// OneSilentBrokerOfFour checks that a Source whose list begins with a frozen broker starts with
// another one. Clients choose at random, so it runs several times.
func OneSilentBrokerOfFour(t *testing.T, newSource func(brokers []string, topic string) consumer.Source) {
	cluster := FakeCluster(t, kfake.NumBrokers(3))
	topic := Topic(t, cluster.ListenAddrs(), 1, nil)
	for range 2 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			RunStarts(t, newSource(append([]string{SilentBroker(t)}, cluster.ListenAddrs()...), topic))
		})
	}
}
