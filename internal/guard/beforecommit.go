package guard

import (
	"maps"
	"reflect"
	"slices"
)

// FirstUse notes a derived identity and reports whether it is the first such one of this turn.
// Where the handle is refused it reports true: what is to be written under that identity says why.
func (h *Handle) FirstUse(id [16]byte) bool {
	if h.beginCall() != nil {
		return true
	}
	defer h.endCall(nil)
	t := h.tx
	if _, there := t.firstUses[id]; there {
		return false
	}
	if t.firstUses == nil {
		t.firstUses = make(map[[16]byte]struct{})
	}
	t.firstUses[id] = struct{}{}
	return true
}

// beforeCommitItem is what one statement writes together with all others of its type.
type beforeCommitItem struct {
	item  any
	step  string // whose it is
	write func(items []any) (sql string, args []any)
}

// BeforeCommit keeps an item that is written right before the seal, together with the items of its
// type of all messages, by the one statement that write makes of them. What a savepoint undoes is
// forgotten. An error of that statement counts as the handler's, or as a hook's if all of its items
// are from hooks.
func (h *Handle) BeforeCommit(item any, write func(items []any) (sql string, args []any)) (err error) {
	if err := h.beginCall(); err != nil {
		return err
	}
	defer h.endCall(&err)
	t := h.tx
	if err := t.checkStatement(""); err != nil {
		return err
	}
	t.beforeCommit = append(t.beforeCommit, beforeCommitItem{item, t.step, write})
	return nil
}

// queueBeforeCommit queues a statement for each type of item. They come in the order of the types'
// names, whatever came first here, because they take locks: two transactions that write both kinds
// must not wait for each other.
func (t *Tx) queueBeforeCommit() {
	of := map[string][]any{}
	last := map[string]beforeCommitItem{}
	for _, l := range t.beforeCommit {
		name := reflect.TypeOf(l.item).String()
		if before, is := last[name]; is && before.step == stepUser {
			l.step = stepUser
		}
		of[name] = append(of[name], l.item)
		last[name] = l
	}
	for _, name := range slices.Sorted(maps.Keys(of)) {
		sql, args := last[name].write(of[name])
		t.Engine(last[name].step, sql, args...)
	}
}
