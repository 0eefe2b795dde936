package consumer

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/guard"
)

// parkSQL sets a message aside, whole. Part of the transaction that moves the position over it, which has claimed its
// key: a copy of a parked message is a duplicate.
const parkSQL = `
insert into onlyonce.parked (kind, state, reason, error, attempts, tenant, scope, key, topic, partition, "offset", record_time,
                             record_key, header_names, header_values, body, order_key, next_attempt_at, cluster_id, topic_id,
                             log_append_time, replay_no, replay_resend, event_id)
values ($23, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16,
        case when $1 = 'retrying' then clock_timestamp() + make_interval(secs => $17) end, $18, $19, $20, $21, $22, $24)`

// Reasons for parking; a duplicate is skipped and not parked.
const (
	reasonDuplicate = "duplicate"
	reasonFailed    = "failed"    // an attempt failed; it is tried again from here
	reasonPermanent = "permanent" // the handler said that no retry will help
	reasonExhausted = "exhausted" // its attempts are used up
	reasonCrashed   = "crashed"   // its attempts ended without an answer: they took the process with them
	reasonBehind    = "behind"    // an earlier message of its ordering key is parked
	reasonConflict  = "conflict"  // its id was used before for another payload
	reasonNoKey     = "no-key"    // it has no id

	reasonUnparkable = "it cannot be parked" // of no row: the partition halts
)

// States of a parked row that the engine writes.
const (
	stateWaiting  = "waiting"  // for an operator
	stateRetrying = "retrying" // tried again when it is due
	stateBlocked  = "blocked"  // behind another row of its ordering key
)

// verdict is what becomes of a message instead of being handled.
type verdict struct {
	reason   string
	err      error
	attempts int
	wait     time.Duration // until the next attempt, of one that is tried again
	order    pgtype.UUID   // the ordering key that it waits for, of one that is behind
}

func (v *verdict) state() string {
	switch v.reason {
	case reasonFailed:
		return stateRetrying
	case reasonBehind:
		return stateBlocked
	}
	return stateWaiting
}

func (e *engine) park(tx *guard.Tx, m *Message, v *verdict) {
	var key pgtype.UUID
	if m.id != "" {
		key = uuidOrNull(m.ordinary()) // of one parked in a replay too: copies outside of it must find it (K7)
	}
	names := make([][]byte, len(m.Headers))
	values := make([][]byte, len(m.Headers))
	for i, h := range m.Headers {
		names[i], values[i] = []byte(h.Name), h.Value
	}
	tx.Engine(stepPark, parkSQL, v.state(), v.reason, plain(v.err.Error()), v.attempts, plain(m.tenant), m.scope, key,
		m.Topic, m.Partition, m.Offset, storable(m.Time), m.Key, names, values, m.Value, m.order, v.wait.Seconds(),
		m.cluster, uuidOrNull(m.topicID), m.LogAppendTime, m.replay, m.resend, e.c.kind(), pgtype.Text{String: m.EventID, Valid: e.c.events})
}

// Bounds of what is stored of a producer's clock, which may say anything: PostgreSQL refuses years behind 294276, and JSON those behind 9999.
var (
	firstTime = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	lastTime  = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

// storable is the time nearest to t that can be stored: a message that cannot be parked would hold up its partition for ever.
func storable(t time.Time) time.Time {
	switch {
	case t.Before(firstTime):
		return firstTime
	case t.After(lastTime):
		return lastTime
	}
	return t
}

// plain makes text that PostgreSQL stores: valid UTF-8 without NUL, and not longer than what helps.
func plain(s string) string {
	return codec.TextUpTo(s, 8<<10)
}
