package consumer

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// Reasons of a verdict that no row has; the others are in package parked.
const (
	reasonDuplicate  = "duplicate"           // the message is skipped, not parked
	reasonUnparkable = "it cannot be parked" // the partition halts
)

// verdict is what becomes of a message that is not applied.
type verdict struct {
	reason   string
	err      error
	attempts int
	wait     time.Duration // until the next attempt, if the message is retried
	order    pgtype.UUID   // the ordering key of an earlier parked message that it waits for
}

func (v *verdict) state() string {
	switch v.reason {
	case parked.Failed:
		return parked.Retrying
	case parked.Behind:
		return parked.Blocked
	}
	return parked.Waiting
}

func (e *engine) park(tx *guard.Tx, m *Message, v *verdict) {
	var key pgtype.UUID
	if m.id != "" {
		// Also if it is parked in a replay: copies outside of the replay must find it (K7).
		key = uuidOrNull(m.ordinary())
	}
	names := make([][]byte, len(m.Headers))
	values := make([][]byte, len(m.Headers))
	for i, h := range m.Headers {
		names[i], values[i] = []byte(h.Name), h.Value
	}
	tx.Engine(stepPark, parked.InsertMessageSQL, v.state(), v.reason, plain(v.err.Error()), v.attempts, plain(m.tenant), m.scope, key,
		m.Topic, m.Partition, m.Offset, storable(m.Time), m.Key, names, values, m.Value, m.order, v.wait.Seconds(),
		m.cluster, uuidOrNull(m.topicID), m.LogAppendTime, m.replay, m.resend, e.c.kind(), pgtype.Text{String: m.EventID, Valid: e.c.events})
}

// Bounds for a producer's timestamps, which may be anything. PostgreSQL refuses years after 294276,
// and JSON those after 9999.
var (
	firstTime = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	lastTime  = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

// storable returns the time nearest to t that can be stored. Without it, a message with a wrong
// timestamp could not be parked, and would hold up its partition for ever.
func storable(t time.Time) time.Time {
	switch {
	case t.Before(firstTime):
		return firstTime
	case t.After(lastTime):
		return lastTime
	}
	return t
}

// plain returns s as text that PostgreSQL stores: valid UTF-8 without NUL, and cut to a useful
// length.
func plain(s string) string {
	return codec.TextUpTo(s, 8<<10)
}
