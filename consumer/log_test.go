package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// A start and a take-over are logged at INFO: who joins, what it owns and from where, and what it
// has given up.
func TestStartAndTakeOverAreLogged(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.numbered(0, 5)
	first := testConfig()
	second := testConfig()
	var texts [2]func() string
	first.Logger, texts[0] = pgtest.Logged()
	second.Logger, texts[1] = pgtest.Logged()
	stop := r.start(effect, first)
	r.reaches(0, 5)
	said := func(i int, what string) {
		t.Helper()
		until(t, what, func() bool { return strings.Contains(texts[i](), what) })
	}
	said(0, `msg="onlyonce: consumer starts" scope=stock group=`)
	said(0, "orders/0 from 0") // all of it is handled by then, perhaps
	said(0, "orders/1 from 0")
	next := r.startOn(&memlog.Source{Log: r.log, GroupID: r.src.GroupID}, r.pool, effect, second)
	said(1, "orders/0 from 5")
	said(1, "orders/1 from 0")
	r.log.Append(0, "later", id("later")) // the first one finds out when it proves its membership
	r.src.Rebalance()
	next()
	stop()
	if n := strings.Count(texts[1](), "orders/0 from 5"); n != 1 {
		t.Errorf("the take-over is logged %d times\n%s", n, texts[1]())
	}
}

// An error that repeats is logged once, and counted.
func TestTheSameErrorIsLoggedSeldom(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.numbered(0, 1)
	cfg := testConfig()
	cfg.MaxAttempts = 1 << 20
	cfg.Backoff.Min = time.Millisecond
	cfg.Backoff.Max = time.Millisecond
	var text func() string
	cfg.Logger, text = pgtest.Logged()
	var tries atomic.Int32
	stop := r.start(func(context.Context, consumer.Tx, *consumer.Message) error {
		tries.Add(1)
		return errBoom
	}, cfg)
	until(t, "it is tried many times", func() bool { return tries.Load() > 40 })
	stop()
	r.start(effect, cfg)()
	if n := strings.Count(text(), "fsync is off"); n > 1 {
		t.Errorf("the server's setting is logged %d times\n%s", n, text())
	}
	if n := strings.Count(text(), "trying again"); n < 1 || n > 4 { // the batch, the message alone, and each again after 30 s
		t.Errorf("%d lines for %d tries\n%s", n, tries.Load(), text())
	}
}

// A stop and a replay are logged at INFO: each once, although the replay is handled in more than
// one run of the partition.
func TestStopAndReplayAreLogged(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.numbered(0, 5)
	stop := r.start(effect, testConfig())
	r.reaches(0, 5)
	stop()
	r.exec(`
update onlyonce.cursors set run = run + 1,
                            run_start = 0,
                            replay_no = 1,
                            replay_until = 5,
                            replay_resume = 5,
                            replay_resend = true`)
	r.log.Append(0, "later", id("later"))
	cfg := testConfig()
	var text func() string
	cfg.Logger, text = pgtest.Logged()
	stop = r.start(effect, cfg)
	r.reaches(0, 6)
	stop()
	for _, line := range []string{"replay begins", "replay ends", "consumer drains", "consumer stopped"} {
		if n := strings.Count(text(), line); n != 1 {
			t.Errorf("%q: %d times\n%s", line, n, text())
		}
	}
	if !strings.Contains(text(), "replay=1 from=0 until=5 resend=true") {
		t.Error(text())
	}
}

// A parked message is one line. Those that wait behind it are one line a minute, which is no
// warning: the line of the first has said what is wrong.
func TestMessagesBehindAParkedOneAreNoWarnings(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	for i := range 15 {
		r.log.AppendMessage(0, &consumer.Message{
			Key:     []byte("hot"),
			Value:   []byte(fmt.Sprint("hot-", i)),
			Headers: []consumer.Header{id(fmt.Sprint("hot-", i))},
		})
	}
	cfg := testConfig()
	cfg.OnFailure = consumer.ParkOrderingKey
	var text func() string
	cfg.Logger, text = pgtest.Logged()
	stop := r.start(func(context.Context, consumer.Tx, *consumer.Message) error { return consumer.Permanent(errBoom) }, cfg)
	r.reaches(0, 15)
	stop()
	if n := strings.Count(text(), "level=WARN msg=\"onlyonce: message parked\""); n != 1 {
		t.Errorf("%d messages are logged as parked, want the first\n%s", n, text())
	}
	if n := strings.Count(text(), "level=INFO msg=\"onlyonce: messages wait behind a parked one of their ordering key\""); n != 1 {
		t.Errorf("%d lines of those behind it, want one\n%s", n, text())
	}
}
