// Package window keeps the messages that a partition with several slots has read above its
// position. It decides which messages a slot may be given next, and how far the position may move;
// the database checks both.
package window

import (
	"slices"

	"github.com/jackc/pgx/v5/pgtype"
)

// Window is a partition's state of the log above its position, if it has several slots: the
// messages that were fetched, in the order of their offsets, and what became of each. It is for one
// goroutine.
type Window[M any] struct {
	Low  int64 // position
	Next int64 // end of what was fetched

	entries []*Entry[M] // at or above Low
	waiting []*Entry[M] // those that no slot has been given, and that are not done
	keys    map[[16]byte]*order[M]

	// Epoch is a leader epoch that no batch below Next exceeded; -1: not known.
	Epoch int32
	// Before is done above the position although this window has not read it yet: offsets, and the
	// hashes of their records.
	Before map[int64]int64
}

// Entry is a message in the window.
type Entry[M any] struct {
	Offset  int64
	Message M // zero when it is done
	Size    int
	Epoch   int32       // leader epoch
	Hash    []byte      // of the record
	Key     pgtype.UUID // ordering key; not valid: it has none
	After   int64       // offset of the message before it in the order of its key; -1: none is known
	done    bool
}

// order is what the window knows of an ordering key.
type order[M any] struct {
	entries int      // in the window
	last    int64    // offset of the latest of them
	task    *Task[M] // has some of them in its hands; nil: none has
	held    int      // how many
}

// Task is what a slot is given: messages in the order of their offsets.
type Task[M any] struct {
	Entries  []*Entry[M]
	Messages []M
	Low      int64 // position when it was given
	Left     int   // entries that are not done
}

// New returns the window of a partition at a position.
func New[M any](pos int64, epoch int32, before map[int64]int64) *Window[M] {
	return &Window[M]{Low: pos, Next: pos, Epoch: epoch, Before: before, keys: map[[16]byte]*order[M]{}}
}

// Add adds a message that was fetched. It reports whether the message is done already.
func (w *Window[M]) Add(e *Entry[M]) (done bool) {
	e.After = -1
	if _, done = w.Before[e.Offset]; done {
		delete(w.Before, e.Offset)
		e.finish()
	}
	if e.Key.Valid {
		k := w.keys[e.Key.Bytes]
		if k == nil {
			k = &order[M]{last: -1}
			w.keys[e.Key.Bytes] = k
		}
		e.After = k.last
		k.last = e.Offset
		k.entries++
	}
	w.entries = append(w.entries, e)
	if !e.done {
		w.waiting = append(w.waiting, e)
	}
	return done
}

// finish marks an entry as done, and returns its message.
func (e *Entry[M]) finish() (m M) {
	m, e.Message = e.Message, m
	e.done = true
	return m
}

// Len is how many messages the window holds.
func (w *Window[M]) Len() int { return len(w.entries) }

// Waiting is how many of them no slot has been given.
func (w *Window[M]) Waiting() int { return len(w.waiting) }

// LimitTo returns the offset of the entry after the first n, or below if there are no more.
func (w *Window[M]) LimitTo(n int, below int64) int64 {
	if len(w.entries) > n {
		return min(below, w.entries[n].Offset)
	}
	return below
}

// Ready returns how many messages a slot could be given now, at most most. A message is ready if no
// slot has an earlier one of its ordering key in its hands.
func (w *Window[M]) Ready(below int64, most int) (n int) {
	for _, e := range w.waiting {
		if n == most || e.Offset >= below {
			break
		}
		if !e.Key.Valid || w.keys[e.Key.Bytes].task == nil {
			n++
		}
	}
	return n
}

// Take gives the oldest messages that are ready to a slot: at most most, and about size bytes of
// values. Nil: none is ready. Messages of one ordering key are given to one slot at a time (C2):
// the task has the keys until Finish has its messages of them. What a task leaves undone keeps its
// keys, because then the work of the partition ends.
func (w *Window[M]) Take(below int64, most, size int) *Task[M] {
	t := &Task[M]{Low: w.Low}
	bytes := 0
	full := false
	w.waiting = slices.DeleteFunc(w.waiting, func(e *Entry[M]) bool {
		full = full || len(t.Entries) == most || e.Offset >= below || len(t.Entries) > 0 && bytes+e.Size > size
		if full {
			return false
		}
		if e.Key.Valid {
			k := w.keys[e.Key.Bytes]
			if k.task != nil && k.task != t {
				return false
			}
			k.task = t
			k.held++
		}
		bytes += e.Size
		t.Entries = append(t.Entries, e)
		t.Messages = append(t.Messages, e.Message)
		return true
	})
	t.Left = len(t.Entries)
	if t.Left == 0 {
		return nil
	}
	return t
}

// TakeHead gives one message below an offset to a slot: the nth of those that wait for no earlier
// one of their ordering key, counted in turns. Nil: there is none. The key is the task's, as in
// Take.
func (w *Window[M]) TakeHead(below int64, n int) *Task[M] {
	var heads []*Entry[M]
	seen := map[[16]byte]bool{}
	for _, e := range w.waiting {
		first := !e.Key.Valid || !seen[e.Key.Bytes] && w.keys[e.Key.Bytes].task == nil
		if first && e.Offset < below {
			heads = append(heads, e)
		}
		if e.Key.Valid {
			seen[e.Key.Bytes] = true
		}
	}
	if len(heads) == 0 {
		return nil
	}
	e := heads[n%len(heads)]
	t := &Task[M]{Entries: []*Entry[M]{e}, Messages: []M{e.Message}, Low: w.Low, Left: 1}
	if e.Key.Valid {
		k := w.keys[e.Key.Bytes]
		k.task = t
		k.held = 1
	}
	w.waiting = slices.DeleteFunc(w.waiting, func(other *Entry[M]) bool { return other == e })
	return t
}

// Entry returns the entry of an offset.
func (t *Task[M]) Entry(offset int64) *Entry[M] {
	i, found := slices.BinarySearchFunc(t.Entries, offset, func(e *Entry[M], o int64) int { return int(e.Offset - o) })
	if !found {
		return nil
	}
	return t.Entries[i]
}

// Finish records that messages of a task are done, and returns them. Their ordering keys are free
// when the task has no other message of them.
func (w *Window[M]) Finish(t *Task[M], offsets []int64) (msgs []M) {
	for _, o := range offsets {
		e := t.Entry(o)
		if e == nil || e.done {
			continue
		}
		msgs = append(msgs, e.finish())
		t.Left--
		if e.Key.Valid {
			k := w.keys[e.Key.Bytes]
			if k.held--; k.held == 0 {
				k.task = nil
			}
		}
	}
	return msgs
}

// Frontier returns how far the position can be moved as far as this process knows, and the leader
// epoch that no batch below that exceeded (C4).
func (w *Window[M]) Frontier() (next int64, epoch int32) {
	for _, e := range w.entries {
		if !e.done {
			return e.Offset, e.Epoch
		}
	}
	return w.Next, w.Epoch
}

// Empty returns the ranges between the position and next that hold no message.
func (w *Window[M]) Empty(next int64) (from, until []int64) {
	at := w.Low
	for _, e := range w.entries {
		if e.Offset >= next {
			break
		}
		if e.Offset > at {
			from = append(from, at)
			until = append(until, e.Offset)
		}
		at = e.Offset + 1
	}
	if next > at {
		from = append(from, at)
		until = append(until, next)
	}
	return from, until
}

// LastBelow returns the last message below an offset, nil if there is none.
func (w *Window[M]) LastBelow(next int64) (last *Entry[M]) {
	for _, e := range w.entries {
		if e.Offset >= next {
			break
		}
		last = e
	}
	return last
}

// SweptTo drops what is below the new position.
func (w *Window[M]) SweptTo(pos int64) {
	n := 0
	for ; n < len(w.entries) && w.entries[n].Offset < pos; n++ {
		e := w.entries[n]
		if !e.Key.Valid {
			continue
		}
		k := w.keys[e.Key.Bytes]
		if k.entries--; k.entries == 0 {
			delete(w.keys, e.Key.Bytes)
		}
	}
	w.entries = slices.Delete(w.entries, 0, n)
	w.Low = pos
}

// DoneAbove returns the offsets that are done above the position, which something below holds up.
func (w *Window[M]) DoneAbove() (offsets []int64) {
	for _, e := range w.entries {
		if e.done {
			offsets = append(offsets, e.Offset)
		}
	}
	return offsets
}

// Blocker returns the message that holds up the position although later ones are done; nil: none
// does.
func (w *Window[M]) Blocker() *Entry[M] {
	var first *Entry[M]
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
