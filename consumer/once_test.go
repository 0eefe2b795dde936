package consumer_test

import (
	"fmt"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
)

// T2, T8: copies at other offsets and in another partition, with handlers that wait and that queue.
func TestEveryMessageTakesEffectOnce(t *testing.T) {
	for name, h := range map[string]consumer.HandlerFunc{"waiting": effect, "queued": queued} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 2)
			var values []string
			for p := range int32(2) {
				values = append(values, r.numbered(p, 200)...)
			}
			for i := range 50 { // copies at other offsets, in the other partition too
				v := fmt.Sprintf("p0-%d", i*3)
				r.log.Append(int32(i%2), v, id(v))
			}
			stop := r.start(h, testConfig())
			r.reaches(0, 225)
			r.reaches(1, 225)
			stop()
			r.once(values...)
			if n := r.count(`select count(*) from onlyonce.inbox`); n != 400 {
				t.Errorf("%d keys in the inbox, want 400", n)
			}
			if offset, metadata := r.log.Committed("stock", 0); offset != 225 || metadata != "onlyonce/1 stock 225" {
				t.Errorf("Kafka's offset is %d with metadata %q", offset, metadata)
			}
		})
	}
}

func TestPositionsOnlyTakesEveryOffsetOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.log.Append(0, "a")
	r.log.Append(0, "a")
	cfg := testConfig()
	cfg.Key = nil
	cfg.PositionsOnly = true
	stop := r.start(queued, cfg)
	r.reaches(0, 2)
	stop()
	if n := r.count(`select count(*) from effects`); n != 2 {
		t.Errorf("%d effects, want 2: without keys, equal messages at two offsets are two messages", n)
	}
}

// T8: five copies come in one batch.
func TestCopiesInsideOneBatch(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	for range 5 {
		r.log.Append(0, "same", id("one"))
	}
	stop := r.start(queued, testConfig())
	r.reaches(0, 5)
	stop()
	r.once("same")
}

// K1: the same id with another payload is a mistake of a producer, and skipping the message would
// lose it.
func TestK1ConflictIsParkedAndNeverSkipped(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.log.Append(0, "first", id("one"))
	r.log.Append(0, "second", id("one"))
	r.log.Append(0, "third", id("one"))
	r.log.Append(0, "other", id("two"))
	stop := r.start(queued, testConfig())
	r.reaches(0, 4)
	stop()
	r.once("first", "other")
	if got := fmt.Sprint(r.reasons()); got != "map[1:conflict 2:conflict]" {
		t.Errorf("parked: %s", got)
	}
	if n := r.count(`select count(*) from onlyonce.parked where body = 'second'::bytea and reason = 'conflict'`); n != 1 {
		t.Error("the conflicting message is not whole in onlyonce.parked")
	}
}

// K1: a missing or empty key is never "".
func TestK1MessageWithoutKeyIsParked(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.log.Append(0, "none")
	r.log.Append(0, "empty", id(""))
	r.log.Append(0, "twice", id("a"), id("b"))
	r.log.Append(0, "good", id("good"))
	stop := r.start(queued, testConfig())
	r.reaches(0, 4)
	stop()
	r.once("good")
	if got := fmt.Sprint(r.reasons()); got != "map[0:no-key 1:no-key 2:no-key]" {
		t.Errorf("parked: %s", got)
	}
}

// If PayloadKey is chosen, messages with the same bytes have one effect. The record key is part of
// the bytes, and a message without a value has no id.
func TestPayloadKey(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	for partition, m := range []struct{ key, value string }{
		{"acct-1", "10 EUR"},
		{"acct-1", "10 EUR"},
		{"acct-2", "10 EUR"},
		{"acct-210", " EUR"},
	} {
		r.log.AppendMessage(int32(partition%2), &consumer.Message{Key: []byte(m.key), Value: []byte(m.value)}) //nolint:gosec // 0 or 1
	}
	r.log.AppendMessage(0, &consumer.Message{Key: []byte("acct-1")})
	cfg := testConfig()
	cfg.Key = consumer.PayloadKey()
	stop := r.start(queued, cfg)
	r.reaches(0, 3)
	r.reaches(1, 2)
	stop()
	if n := r.count(`select count(*) from effects`); n != 3 {
		t.Errorf("%d effects", n)
	}
	if got := fmt.Sprint(r.reasons()); got != "map[2:no-key]" {
		t.Errorf("parked: %s", got)
	}
}

func TestTenantsChooseTheSameId(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	for _, tenant := range []string{"acme", "globex", "acme"} {
		r.log.Append(0, tenant, id("1"), consumer.Header{Name: "tenant", Value: []byte(tenant)})
	}
	cfg := testConfig()
	cfg.Tenant = func(m *consumer.Message) string { v, _ := m.Header("tenant"); return string(v) }
	stop := r.start(queued, cfg)
	r.reaches(0, 3)
	stop()
	r.once("acme", "globex")
}

func TestTwoScopesEachApplyOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 20)
	stop := r.start(queued, testConfig())
	r.reaches(0, 20)
	stop()
	r.once(values...)
	r.src.GroupID = "billing"
	cfg := testConfig()
	cfg.Scope = "billing"
	stop = r.start(queued, cfg)
	until(t, "the second scope's effects", func() bool { return r.count(`select count(*) from effects`) == 40 })
	stop()
}

// F6: the position passes over offsets that hold nothing, and is written even when nothing follows
// them.
func TestF6PositionPassesOverHoles(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.log.Skip(0, 3)
	r.log.Append(0, "a", id("a"))
	r.log.Skip(0, 2)
	r.log.Append(0, "b", id("b"))
	r.log.Skip(0, 4)
	stop := r.start(queued, testConfig())
	r.reaches(0, 11)
	stop()
	r.once("a", "b")
	stop = r.start(queued, testConfig())
	r.log.Append(0, "c", id("c"))
	r.reaches(0, 12)
	stop()
	r.once("a", "b", "c")
}

// If a user's function panics, its message counts as one without an id; no other message is
// affected.
func TestKeyFunctionThatPanics(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.log.Append(0, "bad", id("bad"))
	r.log.Append(0, "good", id("good"))
	cfg := testConfig()
	cfg.Tenant = func(m *consumer.Message) string {
		if string(m.Value) == "bad" {
			panic("no tenant")
		}
		return ""
	}
	stop := r.start(queued, cfg)
	r.reaches(0, 2)
	stop()
	r.once("good")
	if got := fmt.Sprint(r.reasons()); got != "map[0:no-key]" {
		t.Errorf("parked: %s", got)
	}
}
