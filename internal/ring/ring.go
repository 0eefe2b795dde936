package ring

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/watch"
)

// Ring is what differs from one ring to another. Its names are constants of this module: they
// become part of SQL text, because TRUNCATE takes no parameters.
type Ring struct {
	// Name is the key in onlyonce.rings. The lease is ring/<Name>.
	Name string
	// Sequence is the qualified name of the sequence that holds the ring's version.
	Sequence string
	// Tables are the qualified names of the segments, by slot.
	Tables []string
	// With are the qualified names of tables, by slot, each of which is emptied together with its
	// segment. Defaults to none.
	With []string
	// Horizon says that onlyonce.rings.horizon replaces Config.Retention, and a seventh of it
	// replaces Config.MaxAge. If the horizon is null, nothing is announced or retired.
	Horizon bool
	// Rare says that most databases have nothing in the ring, so that a rotator looks less often.
	Rare bool
	// Needed is a query that returns why a segment must not be emptied, in one row of one column,
	// or null if it may be. In it, SEGMENT is replaced by the segment's table and SLOT by its slot.
	// It runs twice: before the segment is retired, and with the table locked. The second run
	// decides.
	Needed string
	// Repair is a statement that the rotator runs at each look. Defaults to none.
	Repair string
	// Carry is a statement that writes rows of the oldest segment which must outlast it into the
	// current one, before the segment is retired: SEGMENT is replaced as in Needed, CURRENT by the
	// current segment's table. It reads a portion of what one lane of the outbox has to send; see
	// clockCarry for its parameters. Defaults to none.
	Carry string
	// Reads are the qualified names of the other tables that Needed and Carry read.
	Reads []string
	// Keep is a statement that records what must outlast a segment. It runs in the transaction that
	// empties the segment, after the segment is locked and known not to be needed. SEGMENT is
	// replaced as in Needed. Defaults to none.
	Keep string
	// Notes are the qualified names of the tables that Keep and Repair insert into and update.
	Notes []string
}

// rights returns the arguments of rightsSQL.
func (r Ring) rights() []any {
	carries := []string{}
	if r.Carry != "" {
		carries = r.Tables
	}
	return []any{
		slices.Concat(r.Tables, r.With),
		r.Sequence,
		append([]string{}, r.Reads...),
		append([]string{}, r.Notes...),
		carries,
	}
}

// segments returns the names of n tables, which end with their slots.
func segments(prefix string, n int) (names []string) {
	for slot := range n {
		names = append(names, prefix+strconv.Itoa(slot))
	}
	return names
}

// Lease is the name of the lease that a rotator of the ring holds.
func (r Ring) Lease() names.Lease { return names.Rotator(r.Name) }

// Errors.
var (
	// ErrConfig is wrapped by every error about a configuration.
	ErrConfig = errors.New("ring")
	// ErrRights means that the database role must not rotate, and names what it lacks. It is
	// reported once.
	ErrRights = errors.New("ring: the role may not rotate")
	// ErrClock means that the database's clock went back to before a segment was opened. Nothing is
	// rotated until it has caught up. It is reported once.
	ErrClock = errors.New("ring: the database's clock went back: rotation is halted")
	// ErrMoved means that the ring's row was changed while this rotator held the lease: by hand, or
	// by a step of its own whose answer never came.
	ErrMoved = errors.New("ring: the row in onlyonce.rings was changed by another process")
	// ErrSchema means that the ring in the database is not the one that this code knows.
	ErrSchema = errors.New("ring: the schema does not fit this version of onlyonce")
)

// Action is what a step did, or why it did nothing.
type Action string

// Actions that changed the ring.
const (
	Announced Action = "announced" // another segment is inserted into
	Closed    Action = "closed"    // the segment is not inserted into any more
	Carried   Action = "carried"   // a portion of what must outlast it was written into the current one
	Retired   Action = "retired"   // the segment is about to be emptied
	Truncated Action = "truncated" // it is empty, and free
	Repaired  Action = "repaired"  // sequence and version are equal again
)

// Actions that changed nothing. Each is worth asking again later.
const (
	Idle    Action = "idle"    // nothing is due
	Standby Action = "standby" // another rotator has the lease, or this one has reported a fault
	Waiting Action = "waiting" // for transactions that may have read the row before it changed
	Busy    Action = "busy"    // another session reads the segment to be emptied, or takes the lease
	Needed  Action = "needed"  // the oldest segment's retention has passed, and it is still needed
	Full    Action = "full"    // no free slot for the next segment: the current one keeps growing
)

// StepResult is the result of one step.
type StepResult struct {
	Action Action
	Slot   int16  // the segment concerned; meaningless with Standby, Idle and Repaired
	Why    string // with Busy, Needed and Full
}

// Changed reports whether the ring was changed, so that another step may be due at once.
func (o StepResult) Changed() bool {
	switch o.Action {
	case Announced, Closed, Carried, Retired, Truncated, Repaired:
		return true
	}
	return false
}

// LeaseEvent says that this rotator took, lost or released the ring's lease.
type LeaseEvent struct {
	Epoch int64
	Held  bool
	Err   error // why it was lost; nil if it was released in order
}

// Hooks are called from the goroutine that steps, outside any transaction. Nil hooks are skipped.
// The structs may get more fields.
type Hooks struct {
	// Stepped is called for every step that changed the row. It is called once for each segment
	// that is kept although its retention has passed (Needed), or that grows because no slot is
	// free (Full).
	Stepped func(StepResult)
	// Lease is called when this rotator takes, loses or releases the lease.
	Lease func(LeaseEvent)
	// Failed is called for errors that Run waits out.
	Failed func(error)
}

// Config configures a [Rotator]. The zero value of a field is the default that its comment names. A
// value out of range is an error of [New] and never adjusted.
type Config struct {
	// MaxBytes is the size at which a segment is followed by another one, in bytes: its table with
	// what is stored out of line, without its indexes. If segments are small, there are many
	// rotations, and each makes transactions above READ COMMITTED run again. If they are large,
	// space comes back late: up to MaxBytes for each slot, or more while something holds up
	// rotation. Defaults to 256 MiB.
	MaxBytes int64

	// MaxAge is the age at which a segment that is not empty is followed by another one. It bounds
	// how much longer than Retention a row may be kept in a quiet database. Defaults to 1 hour.
	MaxAge time.Duration

	// Retention is how long a segment is kept after it was closed. If a slot is needed before that
	// has passed, the current segment grows beyond MaxBytes, and Hooks.Stepped reports Full.
	// Defaults to 24 hours.
	Retention time.Duration

	// LeaseTTL is how long a dead rotator keeps others from taking over: 1 s to 1 hour. It is
	// renewed after a third of it. Defaults to 30 s.
	LeaseTTL time.Duration

	// LockTimeout is how long writers and readers of the segment may queue while the TRUNCATE waits
	// for sessions before it. It is also how long a step waits for the row or the lease. Defaults
	// to 200 ms.
	LockTimeout time.Duration

	// LockPause is how long the rotator waits before it tries a TRUNCATE again that did not get its
	// lock. It doubles with each attempt, six times at most. Defaults to 1 s.
	LockPause time.Duration

	// Timeout bounds each step: at least 1 s. It is also how long the server lets a rotator that
	// was stopped keep its locks. While the segment is locked, that is a fifth of it, because
	// writers and relays wait then. Defaults to 10 s.
	Timeout time.Duration

	// Interval is how often Run looks. Each look is one short query. Defaults to 1 s.
	Interval time.Duration

	// Watched is the process's share in watched time. Defaults to one of the rotator's own.
	Watched *watch.Clock

	Hooks Hooks
}

var qualified = regexp.MustCompile(`^onlyonce(_segments)?\.[a-z][a-z0-9_]*$`)

// withDefaults fills in the zero values and returns every fault at once.
func (c Config) withDefaults(pool *pgxpool.Pool, ring Ring) (Config, error) {
	var faults []error
	fault := func(field, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: %s: %s", ErrConfig, field, fmt.Sprintf(format, args...)))
	}
	duration := func(field string, d *time.Duration, def, least time.Duration) {
		*d = cmp.Or(*d, def)
		if *d < least {
			fault("Config."+field, "is %v: must be at least %v", *d, least)
		}
	}
	if pool == nil {
		fault("pool", "must not be nil")
	}
	if ring.Name == "" {
		fault("Ring.Name", "must not be empty")
	}
	for _, name := range slices.Concat([]string{ring.Sequence}, ring.Tables, ring.With, ring.Reads, ring.Notes) {
		if !qualified.MatchString(name) {
			fault("Ring", "%q is not the name of a relation in schema onlyonce or onlyonce_segments", name)
		}
	}
	if len(ring.Tables) == 0 {
		fault("Ring.Tables", "must not be empty")
	}
	if !strings.Contains(ring.Needed, "SEGMENT") && !strings.Contains(ring.Needed, "SLOT") {
		fault("Ring.Needed", "does not look at the segment")
	}
	c.MaxBytes = cmp.Or(c.MaxBytes, 256<<20)
	if c.MaxBytes < 0 {
		fault("Config.MaxBytes", "%d is negative", c.MaxBytes)
	}
	duration("MaxAge", &c.MaxAge, time.Hour, time.Millisecond)
	duration("Retention", &c.Retention, 24*time.Hour, time.Millisecond)
	duration("LeaseTTL", &c.LeaseTTL, 30*time.Second, time.Second)
	if c.LeaseTTL > time.Hour {
		fault("Config.LeaseTTL", "%v is above %v", c.LeaseTTL, time.Hour)
	}
	duration("LockTimeout", &c.LockTimeout, 200*time.Millisecond, time.Millisecond)
	duration("LockPause", &c.LockPause, time.Second, time.Millisecond)
	duration("Timeout", &c.Timeout, 10*time.Second, time.Second)
	duration("Interval", &c.Interval, time.Second, time.Millisecond)
	return c, errors.Join(faults...)
}
