package check

import "fmt"

// place is the partition and offset of a record.
type place struct {
	partition int32
	offset    int64
}

// history makes the checks that need each record and each effect.
func (v *Verdict) history(f Facts, h *History) {
	at := make(map[place]string, len(h.Log))
	first := make(map[string]place, len(h.Log))
	strayed := map[string]bool{} // has records in two partitions, between which there is no order
	for _, r := range h.Log {
		here := place{r.Partition, r.Offset}
		at[here] = r.ID
		if before, known := first[r.ID]; !known || before.partition == r.Partition && r.Offset < before.offset {
			first[r.ID] = here
		} else if before.partition != r.Partition {
			strayed[r.ID] = true
		}
	}
	v.atomic(f, h, first)
	v.order(h, first, strayed)
	v.places(f, h, at)
	v.parked(f, h)
}

// atomic checks that an effect, its key in the inbox and its call are all there, or none (I4), and
// that only faulty messages were parked.
func (v *Verdict) atomic(f Facts, h *History, first map[string]place) {
	var unclaimed, claimed, called, uncalled, twice, innocent []string
	all := make(map[string]bool, len(first))
	for _, ids := range [][]string{f.IDs, f.Unknown} {
		for _, id := range ids {
			all[id] = true
		}
	}
	for id := range h.Claimed { // aborted ones too
		all[id] = true
	}
	for id := range h.Calls {
		all[id] = true
	}
	for id := range all {
		effects := f.Effects[id]
		parked := f.Parked[id]
		calls := h.Calls[id]
		switch settled := effects+parked > 0; {
		case h.Claimed == nil:
		case settled && !h.Claimed[id]:
			unclaimed = append(unclaimed, id)
		case !settled && h.Claimed[id]:
			claimed = append(claimed, id)
		}
		switch {
		case calls > 1:
			twice = append(twice, id)
		case calls == 1 && (effects == 0 || !h.WithCall(id)):
			called = append(called, id)
		case calls == 0 && effects > 0 && h.WithCall(id):
			uncalled = append(uncalled, id)
		}
		if parked > 0 && !h.ByKey && !h.Faulty(id) {
			innocent = append(innocent, id)
		}
	}
	v.Note("I4", "applied or parked, and no key in the inbox", unclaimed)
	v.Note("I4", "a key in the inbox, and neither applied nor parked", claimed)
	v.Note("I4", "a call in the outbox, and no effect that asks for it", called)
	v.Note("I4", "an effect that asks for a call, and none in the outbox", uncalled)
	v.Note("I4", "two calls in the outbox", twice)
	v.Note("D3", "parked, and nothing was wrong with them", innocent)
}

// order checks that the first effects of each ordering key come in the order of production (I6). A
// message with records in two partitions may be applied from either, so it proves nothing about the
// order, neither of itself nor of others.
func (v *Verdict) order(h *History, first map[string]place, strayed map[string]bool) {
	type last struct {
		seq int
		at  place
	}
	seen := map[string]bool{}
	latest := map[string]last{}
	var inverted, disordered []string
	for _, e := range h.Applied {
		if seen[e.ID] || strayed[e.ID] {
			continue
		}
		seen[e.ID] = true
		before, known := latest[e.Key]
		at := first[e.ID]
		if known && e.Seq < before.seq {
			if at.partition == before.at.partition && at.offset > before.at.offset {
				disordered = append(disordered, e.ID) // the log itself is so
			} else {
				inverted = append(inverted, e.ID)
			}
			continue
		}
		latest[e.Key] = last{e.Seq, at}
	}
	v.Note("I6", Inverted, inverted)
	v.Note("P", "written to the log in another order than that of production: a fault of the harness", disordered)
}

// parked judges what is parked. Only faulty messages wait for an operator. Others wait only for a
// message ahead of them, whatever their state (D3, I13). If a whole ordering key is held back, none
// of its messages has passed the parked one (I6). Order is that of a partition: a copy in another
// one is ahead or later by chance.
func (v *Verdict) parked(f Facts, h *History) {
	type line struct {
		key       string
		partition int32
	}
	front := map[string]place{}
	head := map[line]int64{}
	for _, p := range h.Parked {
		at := place{p.Partition, p.Offset}
		if first, known := front[p.Key]; !known || at.before(first) {
			front[p.Key] = at
		}
		l := line{p.Key, p.Partition}
		if first, known := head[l]; !known || p.Offset < first {
			head[l] = p.Offset
		}
	}
	var innocent, untried, stranded, passed, vanished []string
	for _, p := range h.Parked {
		switch first := front[p.Key] == (place{p.Partition, p.Offset}); {
		case p.State == retrying && first:
			untried = append(untried, p.ID)
		case p.State == blocked && first:
			stranded = append(stranded, p.ID)
		case p.State == waiting && h.ByKey && !h.Faulty(p.ID):
			innocent = append(innocent, p.ID)
		}
	}
	if h.ByKey {
		for _, e := range h.Applied {
			if first, known := head[line{e.Key, e.Partition}]; known && e.Offset > first {
				passed = append(passed, e.ID)
			}
		}
	}
	for _, id := range h.Resolved {
		if f.Effects[id] == 0 {
			vanished = append(vanished, id)
		}
	}
	v.Note("D3", "parked for good, and nothing was wrong with them", innocent)
	v.Note("I13", "parked, and still to be tried again", untried)
	v.Note("I13", "blocked behind nothing", stranded)
	v.Note("I6", Passed, passed)
	v.Note("I4", "settled, and without an effect", vanished)
}

func (p place) before(q place) bool {
	return p.partition < q.partition || p.partition == q.partition && p.offset < q.offset
}

// places checks positions: every record below them is applied or parked (I7), and every effect has
// the place of its record.
func (v *Verdict) places(f Facts, h *History, at map[place]string) {
	var misplaced, beyond []string
	for _, e := range h.Applied {
		if at[place{e.Partition, e.Offset}] != e.ID {
			misplaced = append(misplaced, fmt.Sprintf("%s at %d/%d", e.ID, e.Partition, e.Offset))
		}
		if e.Offset >= h.Cursor[e.Partition] {
			beyond = append(beyond, fmt.Sprintf("%s at %d/%d", e.ID, e.Partition, e.Offset))
		}
	}
	v.Note("I3", "applied from a record that the log does not hold", misplaced)
	v.Note("I4", "applied from a record that the cursor has not passed", beyond)
	var skipped, forgotten, lagging []string
	for _, r := range h.Log {
		if f.Effects[r.ID]+f.Parked[r.ID] > 0 {
			continue
		}
		if r.Offset < h.Cursor[r.Partition] {
			skipped = append(skipped, r.ID)
		}
		if r.Offset < h.Committed[r.Partition] {
			forgotten = append(forgotten, r.ID)
		}
	}
	v.Note("I7", "below the cursor, and neither applied nor parked", skipped)
	v.Note("I7", "below Kafka's committed offset, and neither applied nor parked", forgotten)
	for partition, end := range h.Ends {
		if cursor := h.Cursor[partition]; cursor != end {
			lagging = append(lagging, fmt.Sprintf("partition %d: cursor %d, log %d", partition, cursor, end))
		}
		if h.Committed[partition] > h.Cursor[partition] {
			lagging = append(
				lagging,
				fmt.Sprintf("partition %d: cursor %d, Kafka's committed offset %d", partition, h.Cursor[partition], h.Committed[partition]),
			)
		}
	}
	v.Note("I13", "positions that are not where they must be at the end", lagging)
}
