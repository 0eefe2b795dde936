package ui

import (
	"context"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
)

// blockedAfter is for how many seconds a message holds up the position before a page says so.
const blockedAfter = 1

// partition is a cursor and what its owner reports of it.
type partition struct {
	ops.Cursor
	Owner   *ops.Owner          // nil: no living process owns it
	Owned   *ops.OwnedPartition // as the owner sees it
	HasLost bool                // the owner has it without a cursor
}

// consumers shows the partitions of all consumers, or of one.
func (v *visit) consumers() error {
	s, state := v.db.live.status.get(v.ctx, v.db)
	data := map[string]any{"Status": s}
	if s != nil {
		data["Partitions"] = partitionsOf(s.StatusReport, v.Query("scope"), v.Query("topic"))
	}
	v.show(page{File: "consumers", Title: "Consumers", Section: "/consumers", Live: true, State: state, Status: unanswered(s == nil), Data: data})
	return nil
}

// partitionsOf joins the cursors with what living processes report.
func partitionsOf(r *ops.StatusReport, scope, topic string) []partition {
	type at struct {
		scope, topic string
		partition    int32
	}
	known := map[at]int{}
	var all []partition
	wanted := func(s, t string) bool { return (scope == "" || s == scope) && (topic == "" || t == topic) }
	for i := range r.Cursors {
		c := r.Cursors[i]
		if wanted(c.Scope, c.Topic) {
			known[at{c.Scope, c.Topic, c.Partition}] = len(all)
			all = append(all, partition{Cursor: c})
		}
	}
	for i := range r.Owners {
		o := &r.Owners[i]
		for j := range o.Partitions {
			p := &o.Partitions[j]
			if o.Silent() || !wanted(o.Scope, p.Topic) {
				continue
			}
			k, is := known[at{o.Scope, p.Topic, p.Partition}]
			if !is { // for example, it was halted before it had a cursor
				k = len(all)
				all = append(all, partition{Cursor: ops.Cursor{Scope: o.Scope, Topic: p.Topic, Partition: p.Partition, Position: p.Position}, HasLost: true})
			}
			all[k].Owner, all[k].Owned = o, p
		}
	}
	return all
}

// Tags are the states of the partition.
func (p *partition) Tags() []string {
	var tags []string
	if p.Owned != nil && p.Owned.Halted != "" {
		tags = append(tags, "halted")
	}
	if p.Owned != nil && p.Owned.WaitingFor > 0 {
		tags = append(tags, "waiting")
	}
	if p.Owned != nil && p.Owned.BlockedBy != nil && p.Owned.BlockedBy.For >= blockedAfter {
		tags = append(tags, "blocked")
	}
	if p.Paused != nil {
		tags = append(tags, "paused")
	}
	if p.ReplayUntil != nil {
		tags = append(tags, "replaying")
	}
	if p.RetiredAt != nil {
		tags = append(tags, "retired")
	}
	if p.Owned == nil && p.RetiredAt == nil {
		tags = append(tags, "no owner")
	}
	return tags
}

// place reads a partition from the address or a form.
func (v *visit) place() ops.CursorName {
	at := ops.CursorName{Scope: v.r.FormValue("scope"), Topic: v.r.FormValue("topic")}
	if n, err := strconv.ParseInt(v.r.FormValue("partition"), 10, 32); err == nil {
		at.Partition = int32(n)
	} else if at.Topic != "" {
		at.Partition = -1 // refused
	}
	return at
}

// cursor shows one partition.
func (v *visit) cursor() error {
	at := v.place()
	if at.Scope == "" || at.Topic == "" || at.Partition < 0 {
		return errMissing
	}
	s, state := v.db.live.status.get(v.ctx, v.db)
	if s == nil {
		v.show(page{File: "cursor", Title: "Cursor", Section: "/consumers", Live: true, State: state, Status: unanswered(true)})
		return nil
	}
	var found *partition
	all := partitionsOf(s.StatusReport, at.Scope, at.Topic)
	for i := range all {
		if all[i].Partition == at.Partition {
			found = &all[i]
		}
	}
	if found == nil {
		return errMissing
	}
	v.show(page{File: "cursor", Title: at.Topic + "/" + strconv.Itoa(int(at.Partition)), Section: "/consumers", Live: true, State: state, Data: found})
	return nil
}

// requests shows requests of the HTTP layer, and operations that were answered 202.
func (v *visit) requests() error {
	f := reports.RequestFilter{All: v.Query("all") != "", Tenant: v.Query("tenant"), Scope: v.Query("scope"), Limit: perPage}
	id := strings.TrimSpace(v.Query("id"))
	if id != "" {
		parsed, err := uuid.Parse(id)
		if err != nil {
			return &ops.Error{Kind: ops.ErrInvalid, Reason: "the id is no UUID", Remedy: "take it from this list, or from the client of an operation"}
		}
		id = parsed.String()
	}
	f.ID = id
	var rows []ops.Request
	var operations []reports.Operation
	var more, moreOperations bool
	err := v.ask(func(ctx context.Context, db ops.DB) (err error) {
		err = reports.Snapshot(ctx, db, func(tx pgx.Tx) (err error) {
			rows, more, err = reports.Requests[ops.Request](ctx, tx, f)
			return err
		})
		if err != nil || f.Scope != "" {
			return err
		}
		operations, moreOperations, err = reports.OperationList(ctx, db, reports.OperationFilter{All: f.All, Tenant: f.Tenant, ID: id, Limit: perPage})
		return err
	})
	if err != nil {
		return err
	}
	v.show(page{File: "requests", Title: "Requests", Section: "/requests", Data: map[string]any{"Rows": rows, "More": more, "Filter": f,
		"Operations": operations, "MoreOperations": moreOperations}})
	return nil
}
