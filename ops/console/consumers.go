package console

import (
	"fmt"
	"strconv"

	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// blockedAfter is how many seconds a message holds up the position before a page says so.
const blockedAfter = 1

// partition is a cursor and what its owner reports of it.
type partition struct {
	ops.Cursor
	Owner *ops.Owner          // nil: no living process owns it
	Owned *ops.OwnedPartition // as the owner sees it

	Lag       *int64   // of Owned, as LastBatch and Halt
	LastBatch *float64 // its age
	Halt      string   // its reason
	By        string   // Owner
	Tags      []string
}

func (p *partition) halted() bool { return p.Halt != "" }

// consumers shows the partitions of all consumers, or of one.
func (v *visit) consumers() error {
	s, state := v.db.live.status.get(v.ctx, v.db)
	scope := v.Query("scope")
	c := &content{Title: "Consumers", Of: scope}
	if scope != "" {
		c.Acts = append([]act{{"All consumers", v.Link("/consumers")}}, v.pausing(false, "scope", scope)...)
		c.Acts = append(c.Acts, v.replaying(scope, v.Query("topic"))...)
	}
	if s != nil {
		all := partitionsOf(s.StatusReport, scope, v.Query("topic"))
		c.Acts = append(c.Acts, v.adopting(all)...)
		c.Parts = []part{{
			ID:    "partitions",
			Table: partitions.table(v, "cursors", all),
			None:  "No consumer has a cursor in this database.",
		}}
	}
	return v.showParts("/consumers", c, page{Live: true, State: state, Status: unanswered(s == nil)})
}

// adopting are the acts that resolve the halts of several partitions of a topic at once.
func (v *visit) adopting(all []partition) (acts []act) {
	halts := map[[3]string]int{}
	order := [][3]string{}
	for i := range all {
		if of := [3]string{all[i].Scope, all[i].Topic, all[i].Halt}; all[i].halted() {
			if halts[of]++; halts[of] == 2 {
				order = append(order, of)
			}
		}
	}
	for _, of := range order {
		if v.Operates() {
			acts = append(acts, act{
				fmt.Sprintf("Adopt the %d partitions of %s that are halted: %s", halts[of], of[1], of[2]),
				v.Link("/act/adopt", "scope", of[0], "topic", of[1], "halted", of[2]),
			})
		}
	}
	return acts
}

// replaying is the act that replays a topic, or all of a scope, by time.
func (v *visit) replaying(scope, topic string) []act {
	switch {
	case !v.Operates():
		return nil
	case topic == "":
		return []act{{"Replay by time", v.Link("/act/replay", "scope", scope)}}
	}
	return []act{{"Replay " + topic + " by time", v.Link("/act/replay", "scope", scope, "topic", topic)}}
}

// pausing are the acts that pause and resume the work on what a query names.
func (v *visit) pausing(paused bool, query ...any) []act {
	switch {
	case !v.Operates():
		return nil
	case paused:
		return []act{{"Resume", v.Link("/act/resume", query...)}}
	case len(query) > 2:
		return []act{{"Pause", v.Link("/act/pause", query...)}}
	}
	return []act{
		{"Pause the scope", v.Link("/act/pause", query...)},
		{"Resume the scope", v.Link("/act/resume", query...)},
	}
}

// partitionsOf joins the cursors with what living processes report.
func partitionsOf(r *ops.StatusReport, scope, topic string) []partition {
	known := map[ops.CursorName]int{}
	var all []partition
	wanted := func(s, t string) bool { return (scope == "" || s == scope) && (topic == "" || t == topic) }
	for i := range r.Cursors {
		c := r.Cursors[i]
		if wanted(c.Scope, c.Topic) {
			known[ops.CursorName{Scope: c.Scope, Topic: c.Topic, Partition: c.Partition}] = len(all)
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
			k, is := known[ops.CursorName{Scope: o.Scope, Topic: p.Topic, Partition: p.Partition}]
			if !is { // for example, it was halted before it had a cursor
				k = len(all)
				all = append(all, partition{Cursor: ops.Cursor{
					Scope:     o.Scope,
					Topic:     p.Topic,
					Partition: p.Partition,
					Position:  p.Position,
				}})
			}
			if all[k].Owned == nil || all[k].Owned.Epoch < p.Epoch {
				all[k].Owner = o
				all[k].Owned = p
			}
		}
	}
	for i := range all {
		all[i].complete()
	}
	return all
}

// complete sets the fields that follow from what the owner reports.
func (p *partition) complete() {
	blocked := false
	if o := p.Owned; o != nil {
		p.Lag = &o.Lag
		p.LastBatch = o.LastBatchAge
		p.Halt = o.Halted
		p.By = fmt.Sprintf("%s, pid %d", p.Owner.Host, p.Owner.PID)
		blocked = o.BlockedBy != nil && o.BlockedBy.For >= blockedAfter
	}
	for _, t := range []struct {
		is   bool
		name string
	}{
		{p.halted(), "halted"},
		{p.Owned != nil && p.Owned.WaitingFor > 0, "waiting"},
		{blocked, "blocked"},
		{p.Paused != nil, "paused"},
		{p.ReplayUntil != nil, "replaying"},
		{p.RetiredAt != nil, "retired"},
		{p.Owned == nil && p.RetiredAt == nil, "no owner"},
	} {
		if t.is {
			p.Tags = append(p.Tags, t.name)
		}
	}
}

// cursor shows one partition.
func (v *visit) cursor() error {
	n, err := strconv.ParseInt(v.Query("partition"), 10, 32)
	scope := v.Query("scope")
	topic := v.Query("topic")
	if err != nil || scope == "" || topic == "" {
		return errMissing
	}
	s, state := v.db.live.status.get(v.ctx, v.db)
	if s == nil {
		return v.showParts("/consumers",
			&content{Title: "Cursor"}, page{Live: true, State: state, Status: unanswered(true)})
	}
	var p *partition
	for _, of := range partitionsOf(s.StatusReport, scope, topic) {
		if of.Partition == int32(n) {
			p = &of
		}
	}
	if p == nil {
		return errMissing
	}
	at := []any{"scope", scope, "topic", topic, "partition", p.Partition}
	c := &content{
		Title: fmt.Sprintf("%s/%d", topic, n),
		Of:    scope,
		Tags:  p.Tags,
		Acts:  v.pausing(p.Paused != nil, at...),
	}
	if v.Operates() {
		c.Acts = append(c.Acts, act{"Adopt", v.Link("/act/adopt", at...)}, act{"Replay", v.Link("/act/replay", at...)})
	}
	c.Acts = append(c.Acts, act{"What is parked of it", v.Link("/parked", at...)})
	facts := factsOf(v, &p.Cursor, cursorFacts...)
	if p.ID == 0 { // there is none
		facts = factsOf(v, &p.Cursor, cursorPosition)
	}
	if o := p.Owned; o != nil {
		if o.Halted != "" {
			c.Parts = []part{{Needs: []need{{
				ops.Need{
					Kind:     "halt",
					Text:     "halted: " + o.Halted + ": " + o.Detail,
					Remedy:   o.Remedy,
					Commands: o.Commands,
				},
				v.Link("/consumers", "scope", scope, "topic", topic),
			}}}}
		}
		facts = append(facts, factsOf(v, o, ownedFacts...)...)
		facts = append(facts, fact{
			Name:  "Owner",
			Value: escaped(p.By + ", reported " + show.Ago(p.Owner.SeenAgeSeconds) + " ago"),
		})
		if o.WaitingFor > 0 {
			facts = append(facts, fact{
				Name: "Waits",
				Value: escaped(fmt.Sprintf("at offset %d for %s: a Kafka transaction is open",
					o.LastStable, show.Ago(o.WaitingFor))),
			})
		}
		if b := o.BlockedBy; b != nil {
			key := ""
			if b.Key != "" {
				key = ", key " + b.Key
			}
			facts = append(facts, fact{
				Name: "Blocked by",
				Value: linkTo(
					v.Link("/explain", append(at, "offset", b.Offset)...),
					fmt.Sprintf("offset %d", b.Offset),
				) +
					escaped(fmt.Sprintf(" for %s%s; done after it: %s",
						show.Ago(b.For), key, show.Count(int64(b.Done), "message"))),
			})
		}
	}
	c.Parts = append(c.Parts, part{Facts: facts})
	return v.showParts("/consumers", c, page{Live: true, State: state})
}
