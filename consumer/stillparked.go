package consumer

import (
	"bytes"
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/guard"
)

// stillParkedSQL reads the messages at these offsets that are parked and not settled. In: kind,
// scope, topic, partition, offsets. Out: one row of arrays, empty if there are none. By the index
// parked_position.
const stillParkedSQL = `
select coalesce(array_agg(p."offset"), '{}'), array_agg(p.topic_id), array_agg(p.record_time), array_agg(p.record_key), array_agg(p.body), array_agg(p.sealed)
  from onlyonce.parked p
 where p.kind = $1 and p.settled_at is null and p.scope = $2 and p.topic = $3 and p.partition = $4 and p."offset" = any($5::bigint[])`

// skipStillParked takes messages out of a plan that are read again, and whose first handling is
// still to come, because they are parked. It is the one check for all that sets a position back:
// `onlyonce replay`, `onlyonce cursor adopt`, and commits that the database has lost (K7).
//
// What is parked stays so only until its row is settled: a row that a transaction of the retrier is
// about to settle counts as parked here. The row is of another message if the log was written anew
// since.
func (e *engine) skipStillParked(ctx context.Context, tx *guard.Tx, p *plan, dispositions []*disposition) {
	if p.alreadyParked {
		return
	}
	at := map[int64]int{}
	offsets := make([]int64, 0, len(p.msgs))
	for i, m := range p.msgs {
		if m.mayRepeat || m.replay > 0 {
			at[m.Offset] = i
			offsets = append(offsets, m.Offset)
		}
	}
	if len(offsets) == 0 {
		return
	}
	var found []int64
	var topics []pgtype.UUID
	var times []time.Time
	var keys, values [][]byte
	var sealed []bool
	err := tx.EngineRow(ctx, stepClaim, stillParkedSQL, e.c.parkedKind(), e.c.cfg.Scope, e.id.Topic, e.id.Partition, codec.Bigints(offsets)).
		Scan(&found, &topics, &times, &keys, &values, &sealed)
	if err != nil {
		tx.Fail(stepClaim, err)
		return
	}
	for n, offset := range found {
		i := at[offset]
		row := &Message{Topic: e.id.Topic, Partition: e.id.Partition, Offset: offset, Time: times[n], Key: keys[n], Value: values[n], topicID: topics[n].Bytes}
		closed := false
		if sealed[n] {
			value, err := e.c.open(row)
			row.Value, closed = value, err != nil // what does not open is compared by the rest
		}
		if row.isRecord(p.msgs[i], closed) {
			dispositions[i] = &disposition{reason: reasonDuplicate}
		}
	}
}

// isRecord reports whether a parked row is of this record of the log. closed: its value is not
// known.
func (m *Message) isRecord(other *Message, closed bool) bool {
	none := [16]byte{}
	if m.topicID != none && other.topicID != none && m.topicID != other.topicID {
		return false
	}
	return m.Time.Equal(storableTime(other.Time).Truncate(time.Microsecond)) && bytes.Equal(m.Key, other.Key) && (closed || bytes.Equal(m.Value, other.Value))
}
