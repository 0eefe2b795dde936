package ops

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
)

// pickSQL picks parked messages, calls or events, oldest first. In: ids (null: any), scope, topic,
// partition, reason (each may be null: any), states, how many rows, kinds, sink and name (null:
// any), whether to include calls that were erased or have no key, whether the remote may have
// applied the call (null: any), what the error begins with (null: any), and up to and above which
// id (null: any), and whether to pick only those that may get a new key. Rows of
// reason conflict are picked only if the reason or the ids name them. By the primary key, or by the
// index parked_position if a scope is given. No bodies.
const pickSQL = reports.ParkedRow + `p.kind = any ($8::text[]) and p.settled_at is null and p.state = any ($6::text[])
   and ($1::bigint[] is null or p.id = any ($1))
   and ($2::text is null or p.scope = $2)
   and ($3::text is null or p.topic = $3)
   and ($4::integer is null or p.partition = $4)
   and case when $5::text is not null then p.reason = $5 else $1::bigint[] is not null or p.reason <> 'conflict' end
   and ($9::text is null or p.sink = $9) and ($10::text is null or p.call_name = $10)
   and (p.kind <> 'call' or $11::boolean or p.erased_at is null and p.key is not null) and ($12::boolean is null or ` +
	parked.CallOpen + ` = $12)
   and ($13::text is null or starts_with(p.error, $13))
   and ($14::bigint is null or p.id <= $14)
   and p.id > coalesce($15::bigint, 0)
   and (not $16::boolean or p.reason in ('rejected', 'conflict'))
 order by p.id limit $7`

// missingStreamSQL finds a stream that events are to be appended to and that is not there. In: ids.
// One row: null if there is none.
const missingStreamSQL = `
select min(p.topic) from onlyonce.parked p
 where p.id = any ($1) and p."offset" is null and not exists (select from onlyonce.streams t where t.topic = p.topic)`

// oneSQL reads why a row cannot be picked. In: id. One row, or none. By the primary key.
const oneSQL = `
select p.kind,
       p.state,
       p.reason,
       p.key::text as key,
       p.erased_at is not null as erased,
       ` + parked.CallOpen + ` as open
  from onlyonce.parked p where p.id = $1`

// oneRow is a row that could not be picked.
type oneRow struct {
	Kind, State, Reason string
	Key                 *string
	Erased, Open        bool
}

// selection is the parked rows that a decision is about, and what is known of them.
type selection struct {
	ParkedInput
	discard bool

	ids  []int64 // that were picked first, nil before
	upTo *int64  // the greatest id that may be picked; nil: any
	from *int64  // only greater ids are picked; nil: any
	more bool    // there were more
}

func (q *selection) chosen() *selection { return q }

// check refuses fields that do not go together.
func (q *selection) check() error {
	for _, f := range []struct {
		name, value string
		choices     []string
	}{
		{"`Kind`", q.Kind, []string{parked.Message, parked.Call, parked.Event}},
		{"`State`", q.State, []string{parked.Waiting, parked.Retrying, parked.Blocked, parked.Reconcile}},
		{"`Reason`", q.Reason, parked.Reasons},
		{"`Scope`", q.Scope, nil},
		{"`Topic`", q.Topic, nil},
		{"`Sink`", q.Sink, nil},
		{"`Name`", q.Name, nil},
		{"`ErrorPrefix`", q.ErrorPrefix, nil},
	} {
		if f.value == "" {
			continue
		}
		if err := checkText(f.name, f.value); err != nil {
			return err
		}
		if f.choices != nil && !slices.Contains(f.choices, f.value) {
			return failf(ErrInvalid, "%s: %q is none of %q", f.name, f.value, f.choices)
		}
	}
	filtered := q.Topic != "" ||
		q.Partition != nil ||
		q.Reason != "" ||
		q.Limit != 0 ||
		q.Sink != "" ||
		q.Name != "" ||
		q.State != "" ||
		q.ErrorPrefix != ""
	if err := q.checkCalls(); err != nil && (q.ID == 0 || !filtered) {
		return err
	}
	oneByOne := q.ID != 0 || q.Limit != 0 || q.NewKey
	negative := q.ID < 0 || q.Limit < 0 || q.Partition != nil && *q.Partition < 0
	unnamed := q.ID == 0 && q.Scope == "" && q.Sink == ""
	switch {
	case q.All && oneByOne:
		return failf(ErrInvalid, "`All` goes with none of `ID`, `Limit` and `NewKey`")
	case negative || q.Limit > reports.MostLimit:
		return failf(ErrInvalid, "`ID` and `Partition` must not be negative, and `Limit` not be above %d",
			reports.MostLimit)
	case q.ID != 0 && (q.Scope != "" || filtered):
		return failf(ErrInvalid, "`ID` picks one row: it goes with none of `Scope`, `Topic`, `Partition`, "+
			"`Sink`, `Name`, `State`, `Reason`, `ErrorPrefix` and `Limit`")
	case unnamed && q.Kind == parked.Call:
		return failf(ErrInvalid, "missing: `ID`, `Sink` or `Scope`")
	case unnamed:
		return failf(ErrInvalid, "missing: `ID` or `Scope`")
	case q.Partition != nil && q.Topic == "":
		return failf(ErrInvalid, "`Partition` needs `Topic`")
	}
	return nil
}

// checkCalls refuses fields that are for calls only, and those that are not for calls.
func (q *selection) checkCalls() error {
	calls := q.Kind == parked.Call
	messages := q.Kind != "" && !calls
	switch {
	case !calls && (q.Sink != "" || q.Name != ""):
		return failf(ErrInvalid, "`Sink` and `Name` pick calls: add `Kind` call")
	case messages && q.asserts(), q.ID == 0 && !calls && q.asserts():
		return failf(ErrInvalid, "`VerifiedApplied`, `VerifiedNotApplied` and `NewKey` are for calls: add `Kind` call")
	case calls && (q.Topic != "" || q.Partition != nil):
		return failf(ErrInvalid, "`Topic` and `Partition` pick messages and events, and do not go with `Kind` call")
	case q.VerifiedApplied && (q.VerifiedNotApplied || q.NewKey):
		return failf(ErrInvalid, "`VerifiedApplied` goes with neither `VerifiedNotApplied` nor `NewKey`: "+
			"what was applied is not sent again")
	}
	return nil
}

// asserts reports whether the operator sets fields that are for calls only.
func (q *selection) asserts() bool { return q.VerifiedApplied || q.VerifiedNotApplied || q.NewKey }

// verifies reports whether the operator says what became of open calls.
func (q *selection) verifies() bool { return q.VerifiedApplied || q.VerifiedNotApplied }

// open is whether calls that the remote may have applied are picked, or the others; nil: both.
func (q *selection) open() *bool {
	switch {
	case q.verifies():
		return new(true)
	case q.NewKey:
		return new(false)
	}
	return nil
}

// decision is what the operator decides about calls.
func (q *selection) decision() parked.Decision {
	switch {
	case q.discard:
		return parked.GiveUp
	case q.VerifiedApplied:
		return parked.VerifiedApplied
	case q.VerifiedNotApplied && q.NewKey:
		return parked.AnotherKeyVerified
	case q.VerifiedNotApplied:
		return parked.VerifiedNotApplied
	case q.NewKey:
		return parked.AnotherKey
	}
	return parked.SendAgain
}

// states are those of the rows that can be picked.
func (q *selection) states() []string {
	all := []string{parked.Waiting}
	switch calls := q.kindOf() == parked.Call; {
	case q.discard && calls:
		all = []string{parked.Waiting, parked.Blocked, parked.Retrying, parked.Reconcile}
	case q.discard:
		all = []string{parked.Waiting, parked.Blocked, parked.Retrying}
	case calls && q.verifies():
		all = []string{parked.Waiting, parked.Reconcile}
	case calls && !q.NewKey, !calls && q.ID != 0: // a message that is being retried becomes due now if its ID is given
		all = []string{parked.Waiting, parked.Retrying}
	}
	if q.State != "" {
		all = slices.DeleteFunc(all, func(s string) bool { return s != q.State })
	}
	return all
}

// redriveCalls makes calls due again, or resolves them. It returns how many.
func (q *selection) redriveCalls(ctx context.Context, tx pgx.Tx, now *ParkedChange) (changed int64, err error) {
	if q.VerifiedApplied {
		tag, err := tx.Exec(ctx, parked.ResolveCallsSQL, now.IDs)
		return tag.RowsAffected(), err
	}
	keys := make([]*string, len(now.Rows))
	if q.NewKey {
		now.Keys = slices.Grow(now.Keys, len(keys))[:len(keys)]
		for i, r := range now.Rows {
			k := &now.Keys[i]
			var logged int64
			if r.Offset != nil {
				logged = *r.Offset
			}
			k.ID = r.ID
			k.OldKey = *r.Key
			k.NewKey = parked.NewKey(*r.Key, logged, int64(r.Redrives))
			keys[i] = &k.NewKey
		}
	}
	tag, err := tx.Exec(ctx, parked.RedriveCallsSQL, now.IDs, keys, q.VerifiedNotApplied)
	return tag.RowsAffected(), err
}

// noneOfCalls returns why a call cannot be redriven or discarded as requested.
func (q *selection) noneOfCalls(r *oneRow) error {
	id := q.ID
	no := func(format string, args ...any) error {
		return failf(ErrRefused, "call %d %s", id, fmt.Sprintf(format, args...))
	}
	switch {
	case r.Key == nil:
		return no("has no key, and nothing was done: no relay could send it")
	case r.Erased:
		return no("was erased, and nothing was done: there is no body to send")
	}
	if _, refused := parked.CallOf(r.State, r.Reason, r.Open).Decide(q.decision()); refused != "" {
		return no("%s (state %s, reason %s). Nothing was done", refused, r.State, r.Reason)
	}
	return nil
}

// lock picks the rows, unless they were shown, and locks them.
func (q *selection) lock(ctx context.Context, tx pgx.Tx) error {
	if q.ids == nil {
		if _, err := q.read(ctx, tx); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, parked.LockSQL, q.ids)
	return err
}

// differs reports whether a row that was shown is no longer there. Rows that were parked meanwhile
// were not picked and do not count.
func (q *selection) differs(shown, now *ParkedChange) bool {
	return !q.All && !slices.Equal(shown.IDs, now.IDs)
}

func (q *selection) do(ctx context.Context, tx pgx.Tx, _ By, now *ParkedChange) (*ParkedChange, error) {
	var changed int64
	var err error
	if !q.discard && q.kindOf() == parked.Call {
		changed, err = q.redriveCalls(ctx, tx, now)
	} else {
		sql := parked.RedriveSQL
		if q.discard {
			sql = parked.DiscardSQL
		}
		var tag pgconn.CommandTag
		tag, err = tx.Exec(ctx, sql, now.IDs)
		changed = tag.RowsAffected()
		if err == nil && q.discard {
			if _, err = tx.Exec(ctx, parked.ClaimGivenUpSQL, now.IDs); err == nil {
				_, err = tx.Exec(ctx, parked.EndGivenUpSQL, now.IDs)
			}
		}
		if err == nil && !q.discard && q.kindOf() == parked.Event {
			var appended int64
			err = tx.QueryRow(ctx, parked.AppendSQL, now.IDs).Scan(&appended)
			changed += appended
		}
	}
	if err == nil && changed != int64(now.Count) {
		err = fmt.Errorf("%d of %d locked rows were changed", changed, now.Count)
	}
	return now, err
}

func (q *selection) read(ctx context.Context, tx pgx.Tx) (*ParkedChange, error) {
	limit := max(cmp.Or(q.Limit, reports.DefaultLimit), int64(len(q.ids)))
	ids := q.ids
	if ids == nil && q.ID != 0 {
		ids = []int64{q.ID}
	}
	if q.ID != 0 && q.Kind == "" {
		if err := q.learnKind(ctx, tx); err != nil {
			return nil, err
		}
	}
	rows, err := q.pick(ctx, tx, ids, q.states(), limit+1)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		if q.All && q.Shown != nil {
			return nil, failf(ErrNothing, "All %d rows changed since they were shown: nothing was changed.", len(q.ids))
		}
		return nil, q.none(ctx, tx)
	}
	d := &ParkedChange{Filter: q.filter()}
	d.Rows = rows[:min(len(rows), int(limit))]
	if err := q.allowed(ctx, tx, d.Rows); err != nil {
		return nil, err
	}
	d.Count = len(d.Rows)
	for _, r := range d.Rows {
		d.IDs = append(d.IDs, r.ID)
	}
	if q.ids == nil {
		q.ids = d.IDs
		q.more = len(rows) > int(limit)
	}
	d.More = q.more
	if q.Shown != nil {
		d.Skipped = len(q.ids) - d.Count
	}
	if q.discard {
		d.GivenUp = slices.Clone(d.Rows)
		for i := range d.GivenUp {
			d.GivenUp[i].Error = show.FirstLine(d.GivenUp[i].Error, 60) // there may be 10,000
		}
	}
	return d, nil
}

// allowed asks about each call whether it may be decided so (O6). What was picked may be: the
// conditions of pickSQL are those of parked.KnownCall.Decide. An event that is to be appended needs
// its stream.
func (q *selection) allowed(ctx context.Context, tx pgx.Tx, rows []ParkedRow) error {
	if q.kindOf() == parked.Event && !q.discard {
		return q.streams(ctx, tx, rows)
	}
	if q.kindOf() != parked.Call {
		return nil
	}
	for i := range rows {
		r := &rows[i]
		if _, refused := parked.CallOf(r.State, r.Reason, r.MayBeApplied).Decide(q.decision()); refused != "" {
			return failf(ErrRefused, "call %d %s. Nothing was done", r.ID, refused)
		}
	}
	return nil
}

// streams refuses if an event has no stream. Without a consumer nothing would handle it there, and
// after the stream's retention it would be gone.
func (q *selection) streams(ctx context.Context, tx pgx.Tx, rows []ParkedRow) error {
	ids := make([]int64, len(rows))
	for i := range rows {
		ids[i] = rows[i].ID
	}
	var missing *string
	if err := tx.QueryRow(ctx, missingStreamSQL, ids).Scan(&missing); err != nil {
		return err
	}
	if missing != nil {
		return failf(
			ErrRefused,
			"there is no stream %q, to which the event is to be appended, and nothing "+
				"was done: start a consumer of it first, which makes the stream. An inline endpoint has none by itself",
			*missing,
		)
	}
	return nil
}

// pick reads the rows that are asked for. The ids narrow them down.
func (q *selection) pick(
	ctx context.Context,
	tx pgx.Tx,
	ids []int64,
	states []string,
	limit int64,
) ([]ParkedRow, error) {
	return reports.Collect[ParkedRow](
		ctx,
		tx,
		pickSQL,
		ids,
		reports.OrNull(q.Scope),
		reports.OrNull(q.Topic),
		q.Partition,
		reports.OrNull(q.Reason),
		states,
		limit,
		[]string{q.kindOf()},
		reports.OrNull(q.Sink),
		reports.OrNull(q.Name),
		q.discard || q.VerifiedApplied,
		q.open(),
		reports.OrNull(q.ErrorPrefix),
		q.upTo,
		q.from,
		q.NewKey && !q.VerifiedNotApplied,
	)
}

// kindOf returns the kind of the selected rows.
func (q *selection) kindOf() string { return cmp.Or(q.Kind, parked.Message) }

// learnKind reads the kind of the row that was selected by its id alone.
func (q *selection) learnKind(ctx context.Context, tx pgx.Tx) error {
	rows, err := reports.Collect[oneRow](ctx, tx, oneSQL, q.ID)
	if err == nil && len(rows) == 1 {
		q.Kind = rows[0].Kind
		if rows[0].Kind != parked.Call && q.asserts() {
			return failf(ErrRefused, "row %d is a parked %s, and nothing was done: `VerifiedApplied`, "+
				"`VerifiedNotApplied` and `NewKey` are for calls", q.ID, rows[0].Kind)
		}
	}
	return err
}

// filter returns the filter for the audit row.
func (q *selection) filter() map[string]any {
	f := map[string]any{}
	for name, s := range map[string]string{
		"scope":         q.Scope,
		"topic":         q.Topic,
		"parked_reason": q.Reason,
		"kind":          q.Kind,
		"state":         q.State,
		"sink":          q.Sink,
		"name":          q.Name,
		"error_prefix":  q.ErrorPrefix,
	} {
		if s != "" {
			f[name] = s
		}
	}
	for name, n := range map[string]int64{"id": q.ID, "limit": q.Limit} {
		if n != 0 {
			f[name] = n
		}
	}
	if q.Partition != nil {
		f["partition"] = *q.Partition
	}
	for name, is := range map[string]bool{
		"verified_applied":     q.VerifiedApplied,
		"verified_not_applied": q.VerifiedNotApplied,
		"new_key":              q.NewKey,
	} {
		if is {
			f[name] = true
		}
	}
	return f
}

// none returns why nothing was picked.
func (q *selection) none(ctx context.Context, tx pgx.Tx) error {
	if q.ID == 0 {
		return failf(ErrRefused, "no parked row that could be changed matches: `onlyonce parked list` shows "+
			"all")
	}
	rows, err := reports.Collect[oneRow](ctx, tx, oneSQL, q.ID)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return failf(ErrNotFound, "`ID`: there is no parked row %d", q.ID)
	}
	r := rows[0]
	switch {
	case r.Kind != q.kindOf():
		return failf(ErrInvalid, "`Kind`: row %d is a parked %s", q.ID, r.Kind)
	case r.State == parked.Resolved || r.State == parked.Discarded:
		return failf(ErrRefused, "row %d is settled (%s), and nothing was done", q.ID, r.State)
	case r.State == parked.Blocked:
		head, err := q.head(ctx, tx)
		if err != nil {
			return err
		}
		return failf(ErrRefused, "row %d is blocked behind another of its ordering key, and nothing was "+
			"done: redrive or discard that one first%s", q.ID, head)
	}
	if r.Kind == parked.Call {
		if err := q.noneOfCalls(&r); err != nil {
			return err
		}
	}
	return failf(ErrRefused, "row %d is in state %s, and nothing was done", q.ID, r.State)
}

// head returns the row that blocks the selected one.
func (q *selection) head(ctx context.Context, tx pgx.Tx) (string, error) {
	rows, err := (&selection{ParkedInput: ParkedInput{ParkedFilter: ParkedFilter{Kind: q.Kind}}, discard: true}).pick(
		ctx,
		tx,
		[]int64{q.ID},
		[]string{parked.Blocked},
		1,
	)
	if err != nil || len(rows) == 0 || rows[0].Head == nil {
		return "", err
	}
	return fmt.Sprintf(": -id %d", *rows[0].Head), nil
}
