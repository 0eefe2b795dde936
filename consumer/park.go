package consumer

import (
	"errors"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/guard"
)

// parkSQL sets a message aside, whole. Part of the transaction that moves the position over it, which has claimed its
// key: a copy of a parked message is a duplicate.
const parkSQL = `
insert into onlyonce.parked (kind, reason, error, attempts, tenant, scope, key, topic, partition, "offset", record_time,
                             record_key, header_names, header_values, body)
values ('message', $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)`

// Reasons for parking; a duplicate is skipped and not parked.
const (
	reasonDuplicate = "duplicate"
	reasonPermanent = "permanent" // the handler said that no retry will help
	reasonExhausted = "exhausted" // its attempts are used up
	reasonCrashed   = "crashed"   // its attempts ended without an answer: they took the process with them
	reasonConflict  = "conflict"  // its id was used before for another payload
	reasonNoKey     = "no-key"    // it has no id
)

// verdict is what becomes of a message instead of being handled.
type verdict struct {
	reason   string
	err      error
	attempts int
}

var errConflict = errors.New("the id was used before for a message with another payload")

func (w *worker) park(tx *guard.Tx, m *Message, v *verdict) {
	var key pgtype.UUID
	if m.id != "" {
		key = pgtype.UUID{Bytes: m.key(w.c.cfg.Scope).Hash(), Valid: true}
	}
	names := make([][]byte, len(m.Headers))
	values := make([][]byte, len(m.Headers))
	for i, h := range m.Headers {
		names[i], values[i] = []byte(h.Name), h.Value
	}
	tx.Engine(stepPark, parkSQL, v.reason, plain(v.err.Error()), v.attempts, plain(m.tenant), w.c.cfg.Scope, key,
		m.Topic, m.Partition, m.Offset, m.Time, m.Key, names, values, m.Value)
}
