package consumer

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// applier makes messages of the log take effect, one transaction after another. It repeats and
// divides transactions that fail, and parks messages that cannot be applied. The worker of a
// partition is one; if transactions run side by side, each slot is one.
type applier struct {
	engine

	// fenceOf returns the fence of messages, with which the position moves to next if there is one
	// transaction at a time.
	fenceOf    func(msgs []*Message, next int64) fence
	sideBySide bool // other appliers work on the same partition
	troubled   bool // it has reported that an attempt failed, and nothing was committed since
}

// haltBlocked halts the partition because of a message. If others are handled beside it, the detail
// names its offset and the hash of its ordering key, because the position may be below it (C6).
func (ap *applier) haltBlocked(m *Message, detail string, args ...any) *HaltError {
	if ap.sideBySide {
		detail = "%s: " + detail
		args = append([]any{messageName(m.Offset, m.inOrder)}, args...)
	}
	h := ap.haltErrorAt(ap.state.position.Load(), HaltBlocked, detail, args...)
	h.blockedAt = m.Offset
	return h
}

// haltPosition is where the position will be when the partition has halted because of a message.
// Slots first handle everything below the message.
func (ap *applier) haltPosition(m *Message) int64 {
	if ap.sideBySide {
		return m.Offset
	}
	return ap.state.position.Load()
}

// messageName describes a message without its payload.
func messageName(offset int64, key orderHash) string {
	if !key.Valid {
		return fmt.Sprintf("offset %d", offset)
	}
	return fmt.Sprintf("offset %d, ordering key %s", offset, keyHash(key))
}

// keyHash returns the hash of an ordering key, as it is shown.
func keyHash(key orderHash) string {
	if !key.Valid {
		return ""
	}
	return hex.EncodeToString(key.Bytes[:])
}

// stop are the contexts that end the work on a partition. taking ends first: nothing more is begun.
// working ends when a drain has lasted too long: the transaction under way is given up.
type stop struct{ taking, working context.Context }

// drainContext returns the context of the current batch. It outlives ctx by at most drain. The
// caller calls the function when the work is over, on each path.
func drainContext(ctx context.Context, drain time.Duration) (context.Context, context.CancelFunc) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.AfterFunc(drain, cancel)
		context.AfterFunc(work, func() { t.Stop() })
	})
	return work, func() {
		stop()
		cancel()
	}
}

// reportLogRetry is reportRetry for failures that keep the partition's log from continuing.
func (ap *applier) reportLogRetry(r RetryEvent, b backoff.BackOff) time.Duration {
	ap.state.setTrouble(&ap.state.logTrouble, r.Err)
	ap.troubled = true
	return ap.reportRetry(r, b)
}
