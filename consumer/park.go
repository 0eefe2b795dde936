package consumer

import (
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// park writes a message, whole, in the transaction that passes over it (D3).
func (e *engine) park(tx *guard.Tx, m *Message, v *disposition) {
	var key pgtype.UUID
	if m.id != "" {
		// Also if it is parked in a replay: copies outside of the replay must find it (K7).
		key = uuidOrNull(m.hashOutsideReplay())
	}
	names := make([][]byte, len(m.Headers))
	values := make([][]byte, len(m.Headers))
	for i, h := range m.Headers {
		names[i], values[i] = []byte(h.Name), h.Value
	}
	value := m.Value
	sealed := e.c.cfg.Sealer != nil && m.Value != nil
	if sealed {
		var err error
		if value, err = e.c.cfg.Sealer.Seal(
			parked.MessagePlace(m.scope, m.Topic, m.Partition, m.Offset),
			m.Value,
		); err != nil {
			tx.Fail(stepPark, err)
			return
		}
	}
	tx.Engine(
		stepPark,
		parked.InsertMessageSQL,
		v.parkedState(),
		v.reason,
		storableText(v.err.Error()),
		v.attempts,
		storableText(m.tenant),
		m.scope,
		key,
		m.Topic,
		m.Partition,
		m.Offset,
		storableTime(m.Time),
		m.Key,
		names,
		values,
		value,
		m.orderKey,
		v.wait.Seconds(),
		m.clusterID,
		uuidOrNull(m.topicID),
		m.LogAppendTime,
		m.replay,
		m.resend,
		e.c.parkedKind(),
		pgtype.Text{String: m.eventID, Valid: e.c.events},
		sealed,
	)
}

// parkingID returns ParkedEvent.ID. The cursor's run tells a message from one that was parked at
// its offset before an operator set the position, for example because the topic was created again;
// redrives tells it from the times before.
func (e *engine) parkingID(m *Message, reason string, redrives int) string {
	sum := codec.Hash(
		"onlyonce/parking/1",
		m.Topic,
		strconv.Itoa(int(m.Partition)),
		strconv.FormatInt(m.Offset, 10),
		reason,
		strconv.Itoa(int(e.cur.run)),
		strconv.Itoa(redrives),
	)
	return fmt.Sprintf("%s/%d/%d %s %x", m.Topic, m.Partition, m.Offset, reason, sum[:8])
}

// Bounds for a producer's timestamps, which may be anything. PostgreSQL refuses years after 294276,
// and JSON those after 9999.
var (
	firstTime = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	lastTime  = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

// storableTime returns the time nearest to t that can be stored. Without it, a message with a wrong
// timestamp could not be parked, and would hold up its partition for ever.
func storableTime(t time.Time) time.Time {
	switch {
	case t.Before(firstTime):
		return firstTime
	case t.After(lastTime):
		return lastTime
	}
	return t
}

// storableText returns s as text that PostgreSQL stores: valid UTF-8 without NUL, and cut to a
// useful length.
func storableText(s string) string {
	return codec.TextUpTo(s, 8<<10)
}
