package consumer

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// readDoneSQL reads what is done above the position. In: cursor, run, position. Out: one row for
// each message. By the primary key.
const readDoneSQL = `
select "offset", hash, unproven
  from onlyonce.done
 where cursor_id = $1 and run = $2 and "offset" >= $3`

// readCursorSQL reads a cursor's position and owner. In: scope, topic, partition. Out: at most one
// row, by the unique (scope, topic, partition). The last two columns are the scope's class of
// horizon, and the one before if its ring has to be asked too. A change of the class raises the
// epochs of the scope's cursors, so what is read with an epoch holds for as long as that does
// (K10).
const readCursorSQL = `
select id,
       run,
       epoch,
       nonce,
       group_id,
       cluster_id,
       topic_id,
       clean,
       next_offset,
       anchor_offset,
       anchor_epoch,
       anchor_hash,
       coalesce(leader_epoch, -1),
       coalesce(run_epoch, -1),
       retired_at is not null,
       coalesce(extract(epoch from longest) * 1000, 0)::bigint,
       replay_no,
       replay_until,
       replay_resume,
       replay_resend,
       redo_until,
       redo_topic_id,
       done_until,
       array(select a."offset"
               from onlyonce.attempts a
              where a.cursor_id = id and a."offset" >= next_offset and a.attempts > 0 order by a."offset"),
       coalesce((select s.class from onlyonce.scopes s where s.scope = $1), 'standard'),
       onlyonce.class_before($1)
  from onlyonce.positions
 where scope = $1 and topic = $2 and partition = $3`

// anchor is the last record seen below a position. At the next assignment it must still be there.
type anchor struct {
	offset int64
	epoch  int32
	hash   []byte
}

func anchorOf(m *Message) *anchor {
	kind := "create"
	if m.LogAppendTime {
		kind = "append"
	}
	fields := []string{
		strconv.FormatInt(m.Offset, 10),
		kind,
		strconv.FormatInt(m.Time.UnixMilli(), 10),
		nullable(m.Key),
		nullable(m.Value),
	}
	for _, h := range m.Headers {
		fields = append(fields, h.Name, nullable(h.Value))
	}
	sum := codec.Hash("onlyonce/anchor/1", fields...)
	return &anchor{offset: m.Offset, epoch: m.LeaderEpoch, hash: sum[:]}
}

// nullable returns a form in which nil and empty differ, because they differ in Kafka.
func nullable(b []byte) string {
	if b == nil {
		return "n"
	}
	return "v" + string(b)
}

// storedHash returns the form of a record's hash in onlyonce.done.
func storedHash(hash []byte) int64 { return int64(binary.BigEndian.Uint64(hash)) } //nolint:gosec // all bits count

func (a *anchor) matches(m *Message) bool {
	return bytes.Equal(a.hash, anchorOf(m).hash)
}

// columns returns the anchor's three columns.
func (a *anchor) columns() (offset *int64, epoch *int32, hash []byte) {
	if a == nil {
		return nil, nil, nil
	}
	return &a.offset, &a.epoch, a.hash
}

// cursor is a row of onlyonce.positions.
type cursor struct {
	id          int64
	run         int32
	epoch       int64
	nonce       pgtype.UUID // null: never owned
	groupID     *string
	clusterID   *string
	topicID     pgtype.UUID // null: not known
	clean       bool
	position    int64
	anchor      *anchor
	retired     bool
	longest     time.Duration // how long a transaction of the last owner may last; 0: not known
	classes     []string      // in whose rings its scope claims, in that order
	leaderEpoch int32         // no batch below next exceeded it when it was read; -1: not known
	// runEpoch is the same for the start of the run; in a replay, for the position where it
	// continues afterwards.
	runEpoch int32
	suspects []int64 // messages that were alone, with counted attempts: offsets, in order

	replayNo     int32
	replayUntil  *int64 // nil: no replay is under way
	replayResume int64  // where the cursor continues after it
	replayResend bool
	// redoUntil is as ownership.redoUntil. Nil means that nothing ahead of the position was handled
	// before.
	redoUntil   *int64
	redoTopicID pgtype.UUID // the topic that redoUntil is about; null: not known

	doneUntil *int64 // end of what is done above the position; nil: nothing is
}

// redoOffset returns the offset below which messages of a topic may have been handled before; 0:
// none.
func (c *cursor) redoOffset(topic [16]byte) int64 {
	ofAnother := c.redoTopicID.Valid && topic != [16]byte{} && c.redoTopicID.Bytes != topic
	if c.redoUntil == nil || ofAnother {
		return 0
	}
	return *c.redoUntil
}

// highestPosition returns how far the partition was ever handled, as far as this database knows.
func (c *cursor) highestPosition(topic [16]byte) int64 {
	return max(c.position, c.replayResume, c.redoOffset(topic))
}

// suspected reports whether a message had counted attempts when the cursor was read.
func (c *cursor) suspected(m *Message) bool {
	_, found := slices.BinarySearch(c.suspects, m.Offset)
	return found
}

// pastReplay reports whether an offset is at or above the end of the current replay.
func (c *cursor) pastReplay(offset int64) bool {
	return c.replayUntil != nil && offset >= *c.replayUntil
}

// readCursor returns nil if there is no row.
func (c *Consumer) readCursor(ctx context.Context, topic string, partition int32) (*cursor, error) {
	var (
		r            cursor
		anchorOffset *int64
		anchorEpoch  *int32
		anchorHash   []byte
		resume       *int64
		longest      int64
		class        string
		classBefore  *string
	)
	err := c.queryRow(ctx, readCursorSQL, c.cfg.Scope, topic, partition).Scan(
		&r.id, &r.run, &r.epoch, &r.nonce, &r.groupID, &r.clusterID, &r.topicID, &r.clean,
		&r.position, &anchorOffset, &anchorEpoch, &anchorHash, &r.leaderEpoch, &r.runEpoch,
		&r.retired, &longest, &r.replayNo, &r.replayUntil, &resume, &r.replayResend, &r.redoUntil,
		&r.redoTopicID, &r.doneUntil, &r.suspects, &class, &classBefore,
	)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the cursor: %w", err)
	}
	r.classes = classesOf(class, classBefore)
	r.longest = time.Duration(longest) * time.Millisecond
	if anchorOffset != nil {
		r.anchor = &anchor{offset: *anchorOffset, epoch: *anchorEpoch, hash: anchorHash}
	}
	if resume != nil {
		r.replayResume = *resume
	}
	return &r, nil
}

func newNonce() pgtype.UUID {
	n := pgtype.UUID{Valid: true}
	rand.Read(n.Bytes[:]) // never fails (crypto/rand since Go 1.24)
	return n
}

// epochOrNull turns -1, which means that a leader epoch is not known, into null.
func epochOrNull(epoch int32) *int32 {
	if epoch < 0 {
		return nil
	}
	return &epoch
}

// uuidOrNull turns the zero id into null. Parameters have types that pgx knows without asking the
// server, because through PgBouncer (exec mode) it cannot ask.
func uuidOrNull(id [16]byte) pgtype.UUID {
	return pgtype.UUID{Bytes: id, Valid: id != [16]byte{}}
}

// doneAbove returns the offsets that are done at a position or above it, and the hashes of their
// records; and which of them are done only if the log still has that record.
func (c *Consumer) doneAbove(
	ctx context.Context,
	cur *cursor,
	pos int64,
) (done map[int64]int64, unproven map[int64]struct{}, err error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	done = map[int64]int64{}
	unproven = map[int64]struct{}{}
	var offset, hash int64
	var only bool
	rows, _ := c.pool.Query(ctx, readDoneSQL, cur.id, cur.run, pos)
	_, err = pgx.ForEachRow(rows, []any{&offset, &hash, &only}, func() error {
		done[offset] = hash
		if only {
			unproven[offset] = struct{}{}
		}
		return nil
	})
	return done, unproven, err
}

// classesOf returns the classes in whose rings a scope claims, in the order of their claims. before
// is the class that it had before, if the ring of that one has to be asked too (K10).
func classesOf(class string, before *string) []string {
	if before == nil {
		return []string{class}
	}
	return slices.DeleteFunc(ring.Classes(), func(c string) bool { return c != class && c != *before })
}

// readOwnCursor reads the cursor. It returns errMoved if an operator has taken over the cursor to
// set its position, and ErrOwnershipLost if it has another owner.
func (e *engine) readOwnCursor(ctx context.Context) (*cursor, error) {
	cur, err := e.c.readCursor(ctx, e.id.Topic, e.id.Partition)
	switch {
	case err != nil:
		return nil, err
	case cur != nil && cur.epoch == e.cur.epoch && cur.nonce == e.cur.nonce:
		return cur, nil
	case cur != nil && (cur.run != e.cur.run || cur.retired):
		return nil, errMoved
	}
	return nil, fmt.Errorf("%w: cursor %d has another owner", source.ErrOwnershipLost, e.cur.id)
}
