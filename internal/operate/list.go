package operate

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// List is the description of a report that is a list. Its fields are those of the filter. Its
// columns are the fields of a row with the tag "col", which may end with how the value is shown:
// ",ago" or ",size". With the tag "by", a column shows what that method of the row returns.
type List struct {
	Name, Summary, Help string
	Fields              []Field
	Row                 reflect.Type
	None                string // if there are no rows
	After               string // the next command

	filter func() any
	read   func(ctx context.Context, db ops.DB, filter any) (rows any, more bool, err error)
	sums   func(ctx context.Context, db ops.DB, filter any, limit time.Duration) (any, error)
}

// listing is a List with its types: F is the filter, T a row.
type listing[F, T any] struct {
	List
	without string // fields of the filter that the list does not have
	read    func(ctx context.Context, tx pgx.Tx, f F) ([]T, bool, error)
	// sums counts what the filter picks, for at most so long; nil: that is not counted.
	sums func(ctx context.Context, db ops.DB, f F, limit time.Duration) (any, error)
}

func (l listing[F, T]) list() *List {
	of := l.List
	of.Fields, of.Row = fieldsWithout(reflect.TypeFor[F](), l.without), reflect.TypeFor[T]()
	of.filter = func() any { return new(F) }
	of.read = func(ctx context.Context, db ops.DB, filter any) (all any, more bool, err error) {
		err = reports.Snapshot(ctx, db, func(tx pgx.Tx) error {
			all, more, err = l.read(ctx, tx, *filter.(*F))
			return err
		})
		return all, more, refused(err)
	}
	if l.sums != nil {
		of.sums = func(ctx context.Context, db ops.DB, filter any, limit time.Duration) (any, error) {
			return l.sums(ctx, db, *filter.(*F), limit)
		}
	}
	return &of
}

// Question is one list with its filter.
type Question struct {
	*List
	Filter any // a pointer to it
}

// Rows are what a list has returned.
type Rows struct {
	All   any // a slice of Row
	More  bool
	Limit int
}

// Begin returns the list with an empty filter.
func (l *List) Begin() *Question { return &Question{l, l.filter()} }

// Set reads the text of a field of the filter.
func (q *Question) Set(name, text string) error {
	return (&Form{q.Fields, reflect.ValueOf(q.Filter).Elem()}).Set(name, text)
}

// Read reads the rows. count bounds how long it may search, where the filter has such a bound.
func (q *Question) Read(ctx context.Context, db ops.DB, count time.Duration) (r Rows, err error) {
	of := reflect.ValueOf(q.Filter).Elem()
	if f := of.FieldByName("CountLimit"); f.IsValid() {
		f.SetInt(int64(count))
	}
	r.All, r.More, err = q.read(ctx, db, q.Filter)
	if f := of.FieldByName("Limit"); f.IsValid() {
		if r.Limit = int(f.Int()); r.Limit == 0 {
			r.Limit = reports.DefaultLimit
		}
	}
	return r, err
}

// Sums counts what the filter picks, for at most so long. It is nil if the list does not count.
func (q *Question) Sums(ctx context.Context, db ops.DB, limit time.Duration) (any, error) {
	if q.sums == nil {
		return nil, nil
	}
	return q.sums(ctx, db, q.Filter, limit)
}

// Each calls f with a pointer to each row.
func (r Rows) Each(f func(row any) error) error {
	all := reflect.ValueOf(r.All)
	for i := range all.Len() {
		if err := f(all.Index(i).Addr().Interface()); err != nil {
			return err
		}
	}
	return nil
}

// Table makes a table of rows, a slice of structs or of pointers to structs.
func Table(rows any) (columns []string, cells [][]string) {
	all := reflect.ValueOf(rows)
	of, _ := elem(all.Type())
	fields := slices.DeleteFunc(reflect.VisibleFields(of), func(f reflect.StructField) bool { return f.Tag.Get("col") == "" })
	for _, f := range fields {
		name, _, _ := strings.Cut(f.Tag.Get("col"), ",")
		columns = append(columns, name)
	}
	for i := range all.Len() {
		row := all.Index(i)
		if row.Kind() != reflect.Pointer {
			row = row.Addr()
		}
		var line []string
		for _, f := range fields {
			_, how, _ := strings.Cut(f.Tag.Get("col"), ",")
			if method := f.Tag.Get("by"); method != "" {
				line = append(line, row.MethodByName(method).Call(nil)[0].String())
				continue
			}
			line = append(line, cell(row.Elem().FieldByIndex(f.Index), how))
		}
		cells = append(cells, line)
	}
	for i, f := range slices.Backward(fields) {
		if strings.HasSuffix(f.Tag.Get("col"), ",optional") && !slices.ContainsFunc(cells, func(line []string) bool { return line[i] != "" }) {
			columns = slices.Delete(columns, i, i+1)
			for l := range cells {
				cells[l] = slices.Delete(cells[l], i, i+1)
			}
		}
	}
	return columns, cells
}

// table adds rows to the table of what is said, the first limit of them, 0: all.
func (s *Said) table(rows any, limit int) {
	s.Columns, s.Rows = Table(rows)
	if n := len(s.Rows) - limit; limit > 0 && n > 0 {
		s.Rows = s.Rows[:limit]
		s.say("and %d more", n)
	}
}

// Labelled is a value of a row that is shown whole.
type Labelled struct{ Name, Value string }

// Whole is everything of a row, a pointer to a struct: its fields with the tag "show", in their
// order, but for those without a value. The tag is the name; after "=" stands the method of the row
// that returns the value. A list has a line for each element, and text for each line of it.
func Whole(row any) (all []Labelled) {
	v := reflect.ValueOf(row)
	add := func(name, text string) {
		for line := range strings.Lines(text) {
			all = append(all, Labelled{name, strings.TrimRight(line, "\r\n")})
		}
	}
	for _, f := range reflect.VisibleFields(v.Elem().Type()) {
		name, method, is := strings.Cut(f.Tag.Get("show"), "=")
		of := v.Elem().FieldByIndex(f.Index)
		switch part, many := elem(of.Type()); {
		case name == "":
		case is:
			add(name, v.MethodByName(method).Call(nil)[0].String())
		case many:
			for i := range of.Len() {
				add(name, fmt.Sprint(of.Index(i).Interface()))
			}
		case of.Kind() == reflect.Pointer && part.Kind() == reflect.Struct && part != reflect.TypeFor[time.Time]():
			if !of.IsNil() {
				all = append(all, Whole(of.Interface())...)
			}
		case of.Kind() == reflect.Slice && of.IsNil():
		default:
			add(name, cell(of, ""))
		}
	}
	return all
}

// cell shows a value, "" if there is none.
func cell(v reflect.Value, how string) string {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return ""
		}
		v = v.Elem()
	}
	switch of := v.Interface().(type) {
	case time.Time:
		if how == "ago" {
			return show.Ago(time.Since(of).Seconds())
		}
		return show.Instant(of)
	case []string:
		return strings.Join(of, ", ")
	case bool:
		return map[bool]string{true: "yes", false: "no"}[of]
	}
	switch how {
	case "size":
		return show.Size(float64(v.Int()))
	case "age":
		return show.Ago(v.Float())
	case "since":
		return show.Ago(v.Float()) + " ago"
	}
	return fmt.Sprint(v.Interface())
}

// AuditList, CursorList, CallList, EventList, RequestList and OperationList are the lists.
var (
	AuditList = listing[reports.AuditFilter, reports.AuditRow]{
		List: List{
			Name:    "audit list",
			Summary: "list decisions: who changed what, and why",
			Help: `
Lists the decisions that operators made with this program, with the console or with package ops, newest first. ID is the audit row
that a decision prints. With -json also what was changed. It changes nothing.

Example:
  onlyonce audit list -action "parked redrive"`,
			None: "No matching decisions.",
		},
		read: within(reports.AuditRows),
	}.list()

	CursorList = listing[reports.CursorFilter, ops.Cursor]{
		List: List{
			Name:    "cursor show",
			Summary: "show positions and who owns them",
			Help: `
Shows the cursors, all of them or those that the flags pick. It changes nothing.

POSITION is the next offset that will be handled. START is where the cursor began and why (committed: Kafka's offset was taken over;
earliest; latest; time: the first message of a time; adopted: by an operator). RUN rises each time an operator sets the position.
GROUP, CLUSTER and TOPIC ID say whose it is; "-" means that the next owner stamps its own. ANCHOR is the last record that was seen
below the position, which must still be in the log when the next owner comes. EPOCH rises with each owner. CLEAN: the last owner
released the cursor properly. ATTEMPTS are those at a message that is handled alone, with its offset. STATE is empty as usual, or
one or more of: retired (no consumer works on it), paused, and "replay N to OFFSET" (replay number N is under way up to there; then
the work continues where it was interrupted).`,
			None: "there is no cursor that this asks for",
		},
		read: func(ctx context.Context, tx pgx.Tx, f reports.CursorFilter) ([]ops.Cursor, bool, error) {
			rows, err := reports.Cursors[ops.Cursor](ctx, tx, f)
			return rows, false, err
		},
	}.list()

	CallList = listing[reports.CallFilter, reports.PendingCall]{
		List: List{
			Name:    "outbox list",
			Summary: "list calls that are to be sent, oldest first",
			Help: `
Lists the calls of the log that are to be sent, oldest first. KEY is the idempotency key that the remote sees, AGE the time since the
call was enqueued. Bodies and headers are not shown. Calls that have failed are parked: "onlyonce parked list -kind call" lists them.
It changes nothing.

STATE is empty, or "no relay" if no relay has ever listed the sink, or the time before which the call is not sent.

Example:
  onlyonce outbox list -sink payments`,
			None:  "No matching calls are to be sent.",
			After: "One call whole: onlyonce outbox show KEY",
		},
		read: within(reports.PendingCallList),
	}.list()

	EventList = listing[reports.EventFilter, reports.Event]{
		List: List{
			Name:    "events list",
			Summary: "list events, such as webhooks that were received",
			Help: `
Lists events of the event log, newest first; those of the webhook endpoint E are in the stream webhook.E. With -behind, those that the
consumer of a scope has not handled, oldest first. Bodies and headers are not shown. It changes nothing.

STATE is handled (by all consumers; it may be parked, see "onlyonce parked list -kind event"), "before SCOPE" (the consumer of that
scope has not handled it), or unread (no consumer has begun to read it). -id looks for one event by its id, or for a webhook by its
sender's id, in the whole log, for at most 5 s.

Examples:
  onlyonce events list -topic webhook.stripe
  onlyonce events list -id evt_1
  onlyonce events list -behind stock`,
			None:  "No matching events.",
			After: "One event whole: onlyonce events show -topic T -partition N -offset O",
		},
		read: within(reports.EventList),
	}.list()

	RequestList = listing[reports.RequestFilter, ops.Request]{
		List: List{
			Name:    "request list",
			Summary: "list HTTP requests that are not completed",
			Help: `
Lists requests of the HTTP layer that are not completed: those in lease mode, because one in transactional mode is not visible before
its COMMIT. With -all completed ones too, until they are purged. Keys, fingerprints and answers are not shown: ID is the stored form
of the key. It changes nothing.

States: running; left, by a process that died or a handler that answered 5xx, until the client comes back; abandoned, for an operator,
because its steps had their effect and no client has come back for as long as its answer would be kept: the next copy of it continues,
or "onlyonce request close" ends it; reconcile, for an operator, because a step's outcome is unknown and too old to ask about
("onlyonce request resolve"); completed.

Example:
  onlyonce request list -tenant acct_17`,
			None: "No requests.",
		},
		read: reports.Requests[ops.Request],
	}.list()

	OperationList = listing[reports.OperationFilter, reports.Operation]{
		List: List{
			Name:    "operation list",
			Summary: "list operations that were answered 202 and have not ended",
			Help: `
Lists operations of the HTTP layer that have not ended. With -all ended ones too, until they are purged. Results are not shown. It
changes nothing.

States: running, also while it waits to begin; suspended, if its work is parked and waits for an operator ("onlyonce parked show");
succeeded; failed; cancelled.

Example:
  onlyonce operation list -tenant acct_17`,
			None: "No operations.",
		},
		read: within(reports.OperationList),
	}.list()
)

// Synopsis is how the program's command is called.
func (l *List) Synopsis() string {
	s := "[-postgres URL]"
	for _, f := range l.Fields {
		s += " [" + strings.TrimSpace("-"+f.Name+" "+f.Arg) + "]"
	}
	return s + " [-json]"
}
