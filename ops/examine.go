package ops

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/migrations"
)

// Levels of findings, from good to bad.
const (
	levelOK   = "ok"
	levelInfo = "info" // nothing is wrong, but worth knowing
	levelWarn = "warn"
	levelFail = "fail"
)

// Finding is the result of one check.
type Finding struct {
	Check string `json:"check" doc:"name of the check, for example \"outbox\""`
	Level string `json:"level" doc:"ok, info, warn or fail"`
	Text  string `json:"text" doc:"the finding, in a sentence"`
	// what to do, usually a command of the program onlyonce. Words in capitals are placeholders for
	// values. It is empty if there is nothing to do
	Remedy string `json:"change" doc:"above"`
}

// Examination is the result of [Examine].
type Examination struct {
	SchemaVersion int       `json:"schema_version"`
	Fail          int       `json:"fail" doc:"how many findings are fail"`
	Warn          int       `json:"warn" doc:"findings of warn"`
	Findings      []Finding `json:"findings"`
}

// ExamineQuestion is the input of [Examine]. An operator must declare its durations, because a
// database does not contain them.
type ExamineQuestion struct {
	// CopiesWithin is how long after the original a copy may be produced. Defaults to undeclared,
	// which is a warning.
	CopiesWithin *time.Duration

	// RelayRetries is how long relays retry a call, if they produce to topics that are consumed
	// here. Defaults to undeclared.
	RelayRetries *time.Duration

	// WebhookRetention is how long after an event senders of webhooks may deliver it again.
	// Defaults to 7 days.
	WebhookRetention *time.Duration

	// CountLimit bounds the counting of pending calls. Defaults to 5 seconds.
	CountLimit time.Duration

	clock func() time.Time // of this machine; nil: time.Now
}

// Examine looks for problems of a database, on one snapshot, and suggests remedies. It only reads.
// On a standby it sees that server's transactions and not the primary's.
//
// It checks the version of the schema, the server's settings and its free connections, how this
// process connects, the rights of roles, the clocks, how long keys are remembered, whether the
// rings of keys rotate and the causes of delays, open transactions, strangers' advisory locks,
// replication slots, sequences that a move left behind, publications, lanes of
// another database cluster, sinks that no relay lists, streams without a reader, present faults of
// consumers, and work that waits for an operator.
//
// It reads rows of segments, lanes, streams and rings, rows of the server's own views, the ids of
// each endpoint's oldest webhook, at most 10,000 open requests, and onlyonce.leases and
// onlyonce.parked as a whole, without bodies.
func Examine(ctx context.Context, db DB, q ExamineQuestion) (*Examination, error) {
	d := &examiner{ask: &q}
	r := &Examination{}
	err := reports.Snapshot(ctx, db, func(tx pgx.Tx) (err error) {
		r.SchemaVersion, err = d.examine(ctx, tx)
		return err
	})
	if err != nil {
		return nil, err
	}
	r.Fail = d.count(levelFail)
	r.Warn = d.count(levelWarn)
	r.Findings = d.findings
	return r, nil
}

// examiner collects findings. Rules see only what was read, so that each is a function of a
// database's state.
type examiner struct {
	ask      *ExamineQuestion
	findings []Finding
	inUse    *inUse // once it was read
}

func (d *examiner) add(level, check, remedy, format string, args ...any) {
	d.findings = append(d.findings, Finding{
		Check:  check,
		Level:  level,
		Text:   fmt.Sprintf(format, args...),
		Remedy: remedy,
	})
}

func (d *examiner) ok(check, format string, args ...any) { d.add(levelOK, check, "", format, args...) }

// unless adds that a check is fine if it has found nothing.
func (d *examiner) unless(check, format string, args ...any) {
	if !slices.ContainsFunc(d.findings, func(f Finding) bool { return f.Check == check }) {
		d.ok(check, format, args...)
	}
}

// count is how many findings have a level.
func (d *examiner) count(level string) (n int) {
	for _, f := range d.findings {
		if f.Level == level {
			n++
		}
	}
	return n
}

// limit returns how long pending calls may be counted.
func (d *examiner) limit() time.Duration {
	return cmp.Or(d.ask.CountLimit, reports.CountLimit)
}

// now is this machine's time.
func (d *examiner) now() time.Time {
	if d.ask.clock == nil {
		return time.Now()
	}
	return d.ask.clock()
}

// examine makes all findings.
func (d *examiner) examine(ctx context.Context, tx pgx.Tx) (version int, err error) {
	if version, err = migrations.Version(ctx, tx); err != nil {
		return 0, err
	}
	if version > migrations.Latest {
		d.add(levelInfo, "schema",
			"deploy programs of the version that migrated it",
			"version %d, which is newer than this program's, %d: both work beside each other",
			version,
			migrations.Latest)
	} else {
		d.ok("schema", "version %d", version)
	}
	for _, look := range []func(context.Context, pgx.Tx) error{
		d.server, d.address, d.connections, d.roles, d.clocks, d.memory, d.rings, d.obstacles,
		d.history, d.outbox, d.events, d.faults, d.operators,
	} {
		if err := look(ctx, tx); err != nil {
			return 0, err
		}
	}
	return version, nil
}
