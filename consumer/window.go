package consumer

import (
	"encoding/binary"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"
)

// orderHash is the stored form of an ordering key; not valid: the message has none.
type orderHash = pgtype.UUID

// window is what a partition with several slots knows of the log above its position: the messages
// that were fetched, in the order of their offsets, and what became of each. Only the goroutine of
// the worker uses it.
type window struct {
	low  int64 // position
	next int64 // end of what was fetched

	entries []*entry // at or above low
	waiting []*entry // those that no slot has been given, and that are not done
	keys    map[[16]byte]*orderState

	// epoch is a leader epoch that no batch below next exceeded; -1: not known.
	epoch int32
	// before is done above the position although this window has not read it yet: offsets, and the
	// hashes of their records.
	before map[int64]int64
}

// entry is a message in the window.
type entry struct {
	offset int64
	m      *Message // nil when it is done
	epoch  int32
	anchor *anchor
	key    orderHash
	after  int64 // offset of the message before it in the order of its key; -1: none is known
	done   bool
}

// orderState is what the window knows of an ordering key.
type orderState struct {
	entries int   // in the window
	last    int64 // offset of the latest of them
	task    *task // has some of them in its hands; nil: none has
	held    int   // how many
}

// task is what a slot is given: messages in the order of their offsets.
type task struct {
	entries []*entry
	msgs    []*Message
	low     int64 // position when it was given
	left    int   // entries that are not done
}

func newWindow(pos int64, epoch int32, before map[int64]int64) *window {
	return &window{low: pos, next: pos, epoch: epoch, before: before, keys: map[[16]byte]*orderState{}}
}

// add adds a message that was fetched. It reports whether the message is done already.
func (w *window) add(m *Message) (done bool) {
	e := &entry{offset: m.Offset, m: m, epoch: m.LeaderEpoch, anchor: anchorOf(m), key: m.inOrder, after: -1}
	if _, e.done = w.before[m.Offset]; e.done {
		delete(w.before, m.Offset)
		e.m = nil
	}
	if e.key.Valid {
		k := w.keys[e.key.Bytes]
		if k == nil {
			k = &orderState{last: -1}
			w.keys[e.key.Bytes] = k
		}
		e.after, k.last = k.last, e.offset
		k.entries++
	}
	w.entries = append(w.entries, e)
	if !e.done {
		w.waiting = append(w.waiting, e)
	}
	return e.done
}

// ready returns how many messages a slot could be given now, at most most. A message is ready if no
// slot has an earlier one of its ordering key in its hands.
func (w *window) ready(below int64, most int) (n int) {
	for _, e := range w.waiting {
		if n == most || e.offset >= below {
			break
		}
		if !e.key.Valid || w.keys[e.key.Bytes].task == nil {
			n++
		}
	}
	return n
}

// take gives the oldest messages that are ready to a slot: at most most, and about size bytes of
// values. Nil: none is ready. Messages of one ordering key are given to one slot at a time.
func (w *window) take(below int64, most, size int) *task {
	t := &task{low: w.low}
	bytes, full := 0, false
	w.waiting = slices.DeleteFunc(w.waiting, func(e *entry) bool {
		full = full || len(t.entries) == most || e.offset >= below || len(t.entries) > 0 && bytes+len(e.m.Value) > size
		if full {
			return false
		}
		if e.key.Valid {
			k := w.keys[e.key.Bytes]
			if k.task != nil && k.task != t {
				return false
			}
			k.task = t
			k.held++
		}
		bytes += len(e.m.Value)
		t.entries, t.msgs = append(t.entries, e), append(t.msgs, e.m)
		return true
	})
	t.left = len(t.entries)
	if t.left == 0 {
		return nil
	}
	return t
}

// takeHead gives one message below an offset to a slot: the nth of those that wait for no earlier
// one of their ordering key, counted in turns. Nil: there is none.
func (w *window) takeHead(below int64, n int) *task {
	var heads []*entry
	seen := map[[16]byte]bool{}
	for _, e := range w.waiting {
		if e.offset < below && (!e.key.Valid || !seen[e.key.Bytes] && w.keys[e.key.Bytes].task == nil) {
			heads = append(heads, e)
		}
		if e.key.Valid {
			seen[e.key.Bytes] = true
		}
	}
	if len(heads) == 0 {
		return nil
	}
	e := heads[n%len(heads)]
	t := &task{entries: []*entry{e}, msgs: []*Message{e.m}, low: w.low, left: 1}
	if e.key.Valid {
		k := w.keys[e.key.Bytes]
		k.task, k.held = t, 1
	}
	w.waiting = slices.DeleteFunc(w.waiting, func(other *entry) bool { return other == e })
	return t
}

// entry returns the entry of an offset.
func (t *task) entry(offset int64) *entry {
	i, found := slices.BinarySearchFunc(t.entries, offset, func(e *entry, o int64) int { return int(e.offset - o) })
	if !found {
		return nil
	}
	return t.entries[i]
}

// finish records that messages of a task are done, and returns them. Their ordering keys are free
// when the task has no other message of them.
func (w *window) finish(t *task, offsets []int64) (msgs []*Message) {
	for _, o := range offsets {
		e := t.entry(o)
		if e == nil || e.done {
			continue
		}
		msgs = append(msgs, e.m)
		e.done, e.m = true, nil
		t.left--
		if e.key.Valid {
			k := w.keys[e.key.Bytes]
			if k.held--; k.held == 0 {
				k.task = nil
			}
		}
	}
	return msgs
}

// frontier returns how far the position can be moved as far as this process knows, and the leader
// epoch that no batch below that exceeded.
func (w *window) frontier() (next int64, epoch int32) {
	for _, e := range w.entries {
		if !e.done {
			return e.offset, e.epoch
		}
	}
	return w.next, w.epoch
}

// empty returns the ranges between the position and next that hold no message.
func (w *window) empty(next int64) (from, until []int64) {
	at := w.low
	for _, e := range w.entries {
		if e.offset >= next {
			break
		}
		if e.offset > at {
			from, until = append(from, at), append(until, e.offset)
		}
		at = e.offset + 1
	}
	if next > at {
		from, until = append(from, at), append(until, next)
	}
	return from, until
}

// anchorBelow returns the anchor of the last message below an offset, nil if there is none.
func (w *window) anchorBelow(next int64) (last *anchor) {
	for _, e := range w.entries {
		if e.offset >= next {
			break
		}
		last = e.anchor
	}
	return last
}

// sweptTo drops what is below the new position.
func (w *window) sweptTo(pos int64) {
	n := 0
	for ; n < len(w.entries) && w.entries[n].offset < pos; n++ {
		e := w.entries[n]
		if !e.key.Valid {
			continue
		}
		k := w.keys[e.key.Bytes]
		if k.entries--; k.entries == 0 {
			delete(w.keys, e.key.Bytes)
		}
	}
	w.entries = slices.Delete(w.entries, 0, n)
	w.low = pos
}

// doneAbove returns the offsets that are done above the position, which something below holds up.
func (w *window) doneAbove() (offsets []int64) {
	for _, e := range w.entries {
		if e.done {
			offsets = append(offsets, e.offset)
		}
	}
	return offsets
}

// blocker returns the message that holds up the position although later ones are done; nil: none
// does.
func (w *window) blocker() *entry {
	var first *entry
	for _, e := range w.entries {
		switch {
		case !e.done && first == nil:
			first = e
		case e.done && first != nil:
			return first
		}
	}
	return nil
}

// recordHash returns the stored hash of a record.
func (a *anchor) recordHash() int64 { return int64(binary.BigEndian.Uint64(a.hash)) } //nolint:gosec // all bits count
