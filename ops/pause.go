package ops

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/cursor"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
)

// pausesSQL reads the pauses that hold a partition, or a scope as a whole, and those of single
// partitions of that scope. In: scope. By the primary key.
const pausesSQL = `
select scope,
       topic,
       partition,
       paused_at,
       actor,
       reason
  from onlyonce.pauses where scope = $1 order by topic, partition`

// knownSQL counts the cursors that a pause is about. In: scope, topic, partition (each of the
// latter may be null: any).
const knownSQL = `
select count(*) from onlyonce.cursors
 where scope = $1
   and ($2::text is null or topic = $2)
   and ($3::integer is null or partition = $3)
   and retired_at is null`

// Pause is a pause of a partition, a whole topic or a whole scope.
type Pause struct {
	Scope     string    `json:"scope"`
	Topic     string    `json:"topic" doc:"empty: the whole scope"`
	Partition int32     `json:"partition" doc:"-1: the whole topic or scope"`
	PausedAt  time.Time `json:"paused_at"`
	Actor     string    `json:"actor"`
	Reason    string    `json:"reason"`
}

// String names the paused partition, topic or scope.
func (p *Pause) String() string {
	if p.Topic == "" {
		return fmt.Sprintf("scope %s as a whole", p.Scope)
	}
	if p.Partition < 0 {
		return fmt.Sprintf("topic %s of scope %s as a whole", p.Topic, p.Scope)
	}
	return fmt.Sprintf("scope %s, topic %s, partition %d", p.Scope, p.Topic, p.Partition)
}

// CursorName is a partition of a scope, a whole topic of it, or the whole scope.
type CursorName struct {
	// Scope is the scope of the consumer. Required.
	Scope string

	// Topic is the topic of the partition. If it is empty, the whole scope is meant, and
	// Partition is ignored.
	Topic string

	// Partition is the number of the partition. -1 is the whole topic, where the function says so.
	Partition int32
}

func (p *CursorName) check() error {
	if err := checkText("the scope", p.Scope); err != nil {
		return err
	}
	if p.Topic == "" {
		return nil
	}
	if p.Partition < -1 {
		return failf(ErrInvalid, "the partition must not be negative, but for -1: the whole topic")
	}
	return checkText("the topic", p.Topic)
}

// parts are the topic and the partition, nil for all.
func (p *CursorName) parts() (topic *string, partition *int32) {
	if p.Topic == "" {
		return nil, nil
	}
	if p.Partition < 0 {
		return &p.Topic, nil
	}
	return &p.Topic, &p.Partition
}

// key is the primary key of the pause: empty and -1 for the whole scope, -1 for the whole topic.
func (p *CursorName) key() (topic string, partition int32) {
	if p.Topic == "" {
		return "", -1
	}
	return p.Topic, p.Partition
}

// Paused is the result of [PauseCursor] or [ResumeCursor].
type Paused struct {
	Audited

	Scope     string  `json:"scope"`
	Topic     *string `json:"topic" doc:"nil: the whole scope"`
	Partition *int32  `json:"partition" doc:"nil: the whole topic or scope"`
	Cursors   int64   `json:"cursors" doc:"in use, that this is about"`
	Was       *Pause  `json:"was" doc:"the pause that was ended; nil if one was made"`
	Others    []Pause `json:"-"` // the other pauses of the scope
}

// PauseCursor pauses a partition, a whole topic or a whole scope, until [ResumeCursor]. It outlasts
// restarts. The owner of a partition notices within two seconds: it finishes its current batch,
// keeps the partition, and does not try its parked messages meanwhile. A partition without a cursor
// is paused before it begins, also by a pause of its topic or scope.
//
// The error is of kind ErrNothing if it is paused already.
func PauseCursor(ctx context.Context, db DB, by By, at CursorName) (*Paused, error) {
	k := kind{action: "cursor pause", subject: "the pauses", look: "onlyonce cursor show"}
	return decide(ctx, db, k, by, &pausing{CursorName: at}, nil)
}

// ResumeCursor ends the pause of a partition, topic or scope; work continues within two seconds. It
// ends only the pause of exactly that: pauses of the scope, of its topics and of single partitions
// are independent.
//
// The error is of kind ErrNothing if it is not paused itself.
func ResumeCursor(ctx context.Context, db DB, by By, at CursorName) (*Paused, error) {
	k := kind{action: "cursor resume", subject: "the pauses", look: "onlyonce cursor show"}
	return decide(ctx, db, k, by, &pausing{CursorName: at, resume: true}, nil)
}

type pausing struct {
	CursorName
	resume bool
}

// lock takes none: the primary key decides.
func (q *pausing) lock(context.Context, pgx.Tx) error { return nil }

func (q *pausing) read(ctx context.Context, tx pgx.Tx) (*Paused, error) {
	d := &Paused{Scope: q.Scope}
	d.Topic, d.Partition = q.parts()
	pauses, err := reports.Collect[Pause](ctx, tx, pausesSQL, q.Scope)
	if err != nil {
		return nil, err
	}
	topic, partition := q.key()
	var whole *Pause
	for i := range pauses {
		p := &pauses[i]
		covers := p.Partition < 0 && (p.Topic == "" || p.Topic == topic)
		if covers && partition >= 0 {
			whole = p
		}
		if p.Topic == topic && p.Partition == partition {
			d.Was = p
		} else {
			d.Others = append(d.Others, *p)
		}
	}
	partsPaused := partition < 0 && len(pauses) > 0
	switch {
	case !q.resume && d.Was != nil:
		return nil, failf(ErrNothing, "%s was paused already, at %s by %s (%s): nothing was changed.",
			d.Was.String(), show.Instant(d.Was.PausedAt), d.Was.Actor, d.Was.Reason)
	case q.resume && d.Was == nil && whole != nil:
		andTopic := ""
		if whole.Topic == "" {
			andTopic = " and `Topic`"
		}
		return nil, failf(ErrNothing, "It is not paused itself, but %s is, since %s by %s (%s): nothing was "+
			"changed; to end that, leave out `Partition`%s.",
			whole.String(), show.Instant(whole.PausedAt), whole.Actor, whole.Reason, andTopic)
	case q.resume && d.Was == nil && partsPaused:
		return nil, failf(ErrNothing, "It is not paused as a whole: nothing was changed. Paused is %s: give "+
			"its `Topic` and `Partition`.", pauses[0].String())
	case q.resume && d.Was == nil:
		return nil, failf(ErrNothing, "It is not paused: nothing was changed.")
	}
	return d, tx.QueryRow(ctx, knownSQL, q.Scope, d.Topic, d.Partition).Scan(&d.Cursors)
}

// differs returns false: if a pause came or went meanwhile, nothing is left to do, and read reports
// that.
func (q *pausing) differs(_, _ *Paused) bool { return false }

func (q *pausing) do(ctx context.Context, tx pgx.Tx, by By, now *Paused) (*Paused, error) {
	topic, partition := q.key()
	var at time.Time
	var err error
	if q.resume {
		err = tx.QueryRow(ctx, cursor.ResumeSQL, q.Scope, topic, partition).Scan(&at)
	} else {
		err = tx.QueryRow(ctx, cursor.PauseSQL, q.Scope, topic, partition, by.Reason, by.actor()).Scan(&at)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, failf(ErrNothing, "Another operator did it at this moment: nothing was changed.")
	}
	return now, err
}
