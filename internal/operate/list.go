package operate

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
)

// List is the description of a report that is a list: F is its filter, T a row.
type List[F, T any] struct {
	Name, Summary, Help string
	Columns             Columns[T]
	None                string // if there are no rows
	After               string // the next command

	fields func(f *F) []Field
	read   func(ctx context.Context, tx pgx.Tx, f F) (rows []T, more bool, err error)
	// within bounds how long it may search; nil: it needs no bound.
	within func(f *F, limit time.Duration)
	// sums counts what the filter picks, for at most so long; nil: that is not counted.
	sums func(ctx context.Context, db ops.DB, f *F, limit time.Duration) (*reports.ParkedTotals, error)
	// page makes the filter begin behind a row, before or after its id, and next is how the page
	// behind the last row is asked for. Nil: the list has no pages.
	page func(f *F, way string, id int64)
	next func(f *F, last *T) (way string, id int64)
}

// Question is one list with its filter.
type Question[F, T any] struct {
	*List[F, T]
	Form
	Filter *F
}

// Rows are what a list has returned.
type Rows[T any] struct {
	All  []T
	More bool // the limit was reached
}

// Fields are those of the filter.
func (l *List[F, T]) Fields() []Field { return l.fields(new(F)) }

// Begin returns the list with an empty filter.
func (l *List[F, T]) Begin() *Question[F, T] {
	filter := new(F)
	return &Question[F, T]{l, l.fields(filter), filter}
}

// Read reads the rows. count bounds how long it may search, where the list needs such a bound.
func (q *Question[F, T]) Read(ctx context.Context, db ops.DB, count time.Duration) (r Rows[T], err error) {
	if q.within != nil {
		q.within(q.Filter, count)
	}
	err = reports.Snapshot(ctx, db, func(tx pgx.Tx) error {
		r.All, r.More, err = q.read(ctx, tx, *q.Filter)
		return err
	})
	return r, refused(err)
}

// Sums counts what the filter picks, for at most so long. It is nil if the list does not count.
func (q *Question[F, T]) Sums(ctx context.Context, db ops.DB, limit time.Duration) (*reports.ParkedTotals, error) {
	if q.sums == nil {
		return nil, nil
	}
	return q.sums(ctx, db, q.Filter, limit)
}

// Page begins the list behind the row with an id, which way is "before" or "after".
func (q *Question[F, T]) Page(way string, id int64) {
	if q.page != nil {
		q.page(q.Filter, way, id)
	}
}

// Next is how the page behind these rows is asked for; way is empty if the list has no pages.
func (q *Question[F, T]) Next(r Rows[T]) (way string, id int64) {
	if q.next == nil {
		return "", 0
	}
	return q.next(q.Filter, &r.All[len(r.All)-1])
}

// Synopsis is how the program's command is called.
func (l *List[F, T]) Synopsis() string {
	s := "[-postgres URL]"
	for _, f := range l.Fields() {
		s += " [" + strings.TrimSpace("-"+f.Name+" "+f.Arg) + "]"
	}
	return s + " [-json]"
}

// AuditList, CursorList, CallList, EventList, RequestList and OperationList are the lists.
var (
	AuditList = &List[reports.AuditFilter, reports.AuditRow]{
		Name:    "audit list",
		Summary: "list decisions: who changed what, and why",
		Help: `
Lists the decisions that operators made with this program, with the console or with package ops,
newest first. ID is the audit row that a decision prints. With -json also what was changed. It
changes nothing.

Example:
  onlyonce audit list -action "parked redrive"`,
		None:    "No matching decisions.",
		Columns: AuditColumns,
		fields:  auditFields,
		page: func(f *reports.AuditFilter, way string, id int64) {
			if way == "before" {
				f.Before = id
			}
		},
		next: func(_ *reports.AuditFilter, last *reports.AuditRow) (way string, id int64) { return "before", last.ID },
		read: within(reports.AuditRows),
	}

	CursorList = &List[reports.CursorFilter, ops.Cursor]{
		Name:    "cursor show",
		Summary: "show positions and who owns them",
		Help: `
Shows the cursors, all of them or those that the flags pick. It changes nothing.

POSITION is the next offset that will be handled. START is where the cursor began and why
(committed: Kafka's offset was taken over; earliest; latest; time: the first message of a time;
adopted: by an operator). RUN rises each time an operator sets the position. GROUP, CLUSTER and
TOPIC ID say whose it is; "-" means that the next owner stamps its own. ANCHOR is the last record
that was seen below the position, which must still be in the log when the next owner comes. EPOCH
rises with each owner. CLEAN: the last owner released the cursor properly. ATTEMPTS are those at a
message that is handled alone, with its offset. STATE is usually empty, or one or more of: retired
(no consumer works on it), paused, and "replay N to OFFSET" (replay number N is under way up to
there; then the work continues where it was interrupted).`,
		None:    "no cursor matches",
		Columns: CursorColumns,
		fields:  cursorFilterFields,
		read: func(ctx context.Context, tx pgx.Tx, f reports.CursorFilter) ([]ops.Cursor, bool, error) {
			rows, err := reports.Cursors[ops.Cursor](ctx, tx, f)
			return rows, false, err
		},
	}

	CallList = &List[reports.CallFilter, reports.PendingCall]{
		Name:    "outbox list",
		Summary: "list calls that are to be sent, oldest first",
		Help: `
Lists the calls of the log that are to be sent, oldest first. KEY is the idempotency key that the
remote sees, AGE the time since the call was enqueued. Bodies and headers are not shown. Calls that
have failed are parked: "onlyonce parked list -kind call" lists them. It changes nothing.

STATE is empty, or "no relay" if no relay has ever listed the sink, or the time before which the call is not sent.

Example:
  onlyonce outbox list -sink payments`,
		None:    "No matching calls are to be sent.",
		After:   "One call whole: onlyonce outbox show KEY",
		Columns: CallColumns,
		fields:  callFields,
		read:    within(reports.PendingCallList),
	}

	EventList = &List[reports.EventFilter, reports.Event]{
		Name:    "events list",
		Summary: "list events, such as webhooks that were received",
		Help: `
Lists events of the event log, newest first; those of the webhook endpoint E are in the stream
webhook.E. With -behind, those that the consumer of a scope has not handled, oldest first. Bodies
and headers are not shown. It changes nothing.

STATE is handled (by all consumers; it may be parked, see "onlyonce parked list -kind event"),
"before SCOPE" (the consumer of that scope has not handled it), or unread (no consumer has begun to
read it). -id looks for one event by its id, or for a webhook by its sender's id, in the whole log,
for at most 5 s.

Examples:
  onlyonce events list -topic webhook.stripe
  onlyonce events list -id evt_1
  onlyonce events list -behind stock`,
		None:    "No matching events.",
		After:   "One event whole: onlyonce events show -topic T -partition N -offset O",
		Columns: EventColumns,
		fields:  eventFields,
		within:  func(f *reports.EventFilter, limit time.Duration) { f.CountLimit = limit },
		read:    within(reports.EventList),
	}

	RequestList = &List[reports.RequestFilter, ops.Request]{
		Name:    "request list",
		Summary: "list HTTP requests that are not completed",
		Help: `
Lists requests of the HTTP layer that are not completed: those in lease mode, because one in
transactional mode is not visible before its COMMIT. With -all completed ones too, until they are
purged. Keys, fingerprints and answers are not shown: ID is the stored form of the key. It changes
nothing.

States: running; left, by a process that died or a handler that answered 5xx, until the client comes
back; abandoned, for an operator, because its steps had their effect and no client has come back for
as long as its answer would be kept: the next copy of it continues, or "onlyonce request close" ends
it; reconcile, for an operator, because a step's outcome is unknown and the provider may have
forgotten its key ("onlyonce request resolve"); completed.

Example:
  onlyonce request list -tenant acct_17`,
		None:    "No requests.",
		Columns: RequestColumns,
		fields:  requestFilterFields,
		read:    reports.Requests[ops.Request],
	}

	OperationList = &List[reports.OperationFilter, reports.Operation]{
		Name:    "operation list",
		Summary: "list operations that were answered 202 and have not ended",
		Help: `
Lists operations of the HTTP layer that have not ended. With -all ended ones too, until they are
purged. Results are not shown. It changes nothing.

States: running, also while it waits to begin; suspended, if its work is parked and waits for an
operator ("onlyonce parked show"); succeeded; failed; cancelled.

Example:
  onlyonce operation list -tenant acct_17`,
		None:    "No operations.",
		Columns: OperationColumns,
		fields:  operationFields,
		read:    within(reports.OperationList),
	}
)

func auditFields(f *reports.AuditFilter) []Field {
	return []Field{
		At(&f.Actor, "actor", "A", "only decisions of the actor A"),
		At(&f.Action, "action", "COMMAND", "only decisions by the COMMAND, such as \"parked redrive\""),
		At(&f.Limit, "limit", "N", "at most N decisions (default 100)").Between(1, 10_000),
	}
}

func cursorFilterFields(f *reports.CursorFilter) []Field {
	return []Field{
		At(&f.Scope, "scope", "S", "the scope S of the consumer"),
		At(&f.Topic, "topic", "T", "the topic T"),
		At(&f.Partition, "partition", "N", "the partition N"),
	}
}

func callFields(f *reports.CallFilter) []Field {
	return []Field{
		At(&f.Sink, "sink", "S", "only calls to the sink S"),
		At(&f.Scope, "scope", "S", "only calls of the scope S"),
		At(&f.Name, "name", "N", "only calls of the name N"),
		At(&f.Limit, "limit", "N", "at most N calls, from 1 to 10000 (default 100)").Between(1, 10_000),
	}
}

func eventFields(f *reports.EventFilter) []Field {
	return []Field{
		At(&f.Topic, "topic", "T", "only events of the stream T"),
		At(&f.Partition, "partition", "N", "with -topic: only events of the partition N").Between(0, 32_767),
		At(&f.ID, "id", "ID", "only events of this ID, or whose id ends with /ID"),
		At(&f.Behind, "behind", "SCOPE", "only events that the consumer of SCOPE has not handled, oldest first"),
		At(&f.Limit, "limit", "N", "at most N events, from 1 to 10000 (default 100)").Between(1, 10_000),
	}
}

func requestFilterFields(f *reports.RequestFilter) []Field {
	return []Field{
		Option(&f.All, "all", "completed ones too"),
		At(&f.Tenant, "tenant", "T", "only those of the tenant T"),
		At(&f.Scope, "scope", "S", "only those of the scope S, such as \"http POST /v1/charges\""),
		At(&f.ID, "id", "ID", "only the request whose id is the UUID ID"),
		At(&f.Limit, "limit", "N", "at most N requests (default 100)").Between(1, 10_000),
	}
}

func operationFields(f *reports.OperationFilter) []Field {
	return []Field{
		Option(&f.All, "all", "those that have ended too"),
		At(&f.Tenant, "tenant", "T", "only those of the tenant T"),
		At(&f.Name, "name", "NAME", "only those of the operation NAME, such as \"export\""),
		At(&f.ID, "id", "ID", "only the operation whose id is the UUID ID"),
		At(&f.Limit, "limit", "N", "at most N operations (default 100)").Between(1, 10_000),
	}
}
