package ops

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
)

// sinkSQL reads a sink. In: name. One row, or none. By the primary key.
const sinkSQL = `select name, paused_at, paused_by, pause_reason from onlyonce.sinks where name = $1`

// lockSinkSQL locks a sink against other pauses and resumes; lanes may refer to it meanwhile. In:
// name.
const lockSinkSQL = `select name from onlyonce.sinks where name = $1 for no key update`

// pauseSinkSQL and resumeSinkSQL set and end a pause. In: name; reason and actor (null: the role of
// the connection). By the primary key, under the lock on the row.
const (
	pauseSinkSQL = `
insert into onlyonce.sinks (name, paused_at, paused_by, pause_reason)
  values ($1, clock_timestamp(), coalesce($3::text, current_user), $2::text)
on conflict (name) do update
  set paused_at = excluded.paused_at, paused_by = excluded.paused_by, pause_reason = excluded.pause_reason`
	resumeSinkSQL = `update onlyonce.sinks set paused_at = null, paused_by = null, pause_reason = null where name = $1`
)

// Sink is a sink and its pause.
type Sink struct {
	Audited

	Name        string     `json:"sink"`
	PausedAt    *time.Time `json:"paused_at" doc:"nil: it is not paused"`
	PausedBy    *string    `json:"paused_by"`
	PauseReason *string    `json:"pause_reason"`
}

// paused describes the pause: since when, by which actor and why.
func (s *Sink) paused() string {
	return reports.PauseText(s.PausedAt, s.PausedBy, s.PauseReason)
}

// PauseSinkInput is the input of [PauseSink].
type PauseSinkInput struct {
	// Sink is the name of the sink. It must not be empty.
	Sink string

	// Unlisted pauses the sink although no relay has listed it yet. Its first relay then does not
	// start calls. Defaults to false.
	Unlisted bool
}

// PauseSink stops calls to a sink until [ResumeSink]: relays start no more. The pause outlasts
// restarts. Running calls end, and applications can still enqueue. Keys age meanwhile: if the
// remote may have forgotten the key of an earlier call without a final answer, the call goes to
// state reconcile.
//
// It returns the sink as it was. Errors are of kind ErrNotFound for a sink that no relay has
// listed, unless Unlisted is set, and ErrNothing if it is paused already.
func PauseSink(ctx context.Context, db DB, by By, in PauseSinkInput) (*Sink, error) {
	k := kind{action: "outbox pause", subject: "the sink", look: "onlyonce outbox status"}
	return decide(ctx, db, k, by, &sinkStop{sink: in.Sink, unlisted: in.Unlisted}, nil)
}

// ResumeSink ends the pause of a sink. Relays continue within two seconds. It returns the sink as
// it was. Errors are of kind ErrNotFound for a sink that no relay has listed, and ErrNothing if it
// is not paused.
func ResumeSink(ctx context.Context, db DB, by By, sink string) (*Sink, error) {
	k := kind{action: "outbox resume", subject: "the sink", look: "onlyonce outbox status"}
	return decide(ctx, db, k, by, &sinkStop{sink: sink, resume: true}, nil)
}

type sinkStop struct {
	sink     string
	resume   bool
	unlisted bool
}

func (q *sinkStop) check() error { return checkText("`Sink`", q.sink) }

func (q *sinkStop) lock(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, lockSinkSQL, q.sink)
	return err
}

func (q *sinkStop) read(ctx context.Context, tx pgx.Tx) (*Sink, error) {
	rows, err := reports.Collect[Sink](ctx, tx, sinkSQL, q.sink)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 && q.unlisted {
		return &Sink{Name: q.sink}, nil
	}
	if len(rows) == 0 {
		err := unknownSink(ctx, tx, q.sink)
		var unknown *Error
		if !q.resume && errors.As(err, &unknown) {
			unknown.Reason += "; `Unlisted` pauses it ahead of its first relay"
		}
		return nil, err
	}
	s := &rows[0]
	switch {
	case !q.resume && s.PausedAt != nil:
		return nil, failf(ErrNothing, "Sink %s was paused already, %s: nothing was changed.", s.Name, s.paused())
	case q.resume && s.PausedAt == nil:
		return nil, failf(ErrNothing, "Sink %s is not paused: nothing was changed.", s.Name)
	}
	return s, nil
}

// differs returns false: if a pause came or went meanwhile, nothing is left to do, and read reports
// that.
func (q *sinkStop) differs(_, _ *Sink) bool { return false }

func (q *sinkStop) do(ctx context.Context, tx pgx.Tx, by By, now *Sink) (*Sink, error) {
	var err error
	if q.resume {
		_, err = tx.Exec(ctx, resumeSinkSQL, q.sink)
	} else {
		_, err = tx.Exec(ctx, pauseSinkSQL, q.sink, by.Reason, by.actor())
	}
	return now, err
}

// unknownSink names the sinks there are.
func unknownSink(ctx context.Context, tx pgx.Tx, name string) error {
	err := reports.UnknownSink(ctx, tx, name)
	if r, is := errors.AsType[*reports.Refusal](err); is {
		return failf(ErrNotFound, "%s", r.Reason)
	}
	return err
}
