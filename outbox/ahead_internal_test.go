package outbox

import (
	"testing"
	"time"
)

// O6: what an owner may do with the window of its lane.
func TestO6WindowOfALane(t *testing.T) {
	always := time.Now().Add(time.Hour)
	var w aheadWindow
	moves := func(before time.Time) bool { _, is := w.move(before); return is }
	if w.begin() || moves(always) {
		t.Fatal("an owner that has stored no pass uses the window of the owner before")
	}
	if w.opened(1, true) {
		t.Error("the first pass is said to follow a window of this owner's")
	}
	if moves(time.Now().Add(-time.Minute)) {
		t.Error("a window that was just opened is moved")
	}
	if version, is := w.move(always); !is || version != 1 {
		t.Fatalf("an idle lane's window is moved: %v, at version %d", is, version)
	}
	if w.begin() {
		t.Error("calls are made while it is unknown from when on the window counts")
	}
	w.moved(time.Now())
	if !w.begin() {
		t.Fatal("no calls are made in a window that was moved")
	}
	if moves(always) {
		t.Error("a window is moved in which calls were made")
	}
	if !w.opened(2, true) {
		t.Error("the pass that follows is said to follow another owner's window")
	}
	if version, is := w.move(always); !is || version != 2 {
		t.Fatalf("the window after a pass is moved: %v, at version %d", is, version)
	}
	// The answer never comes, and another pass is stored.
	if !w.opened(3, true) || !w.begin() {
		t.Error("no calls are made after a pass was stored")
	}
	w.unknown()
	if w.begin() || moves(always) {
		t.Error("a window is used of which nothing is known")
	}
	if w.opened(4, true) {
		t.Error("the next pass is said to follow a window that is known")
	}
	w.opened(5, false)
	if w.begin() {
		t.Error("calls are made ahead although no window was opened")
	}
}

// O6: the window is moved at the version at which it was opened. The lane's version alone is known
// a moment earlier: a move at the new one could commit after calls in the new window.
func TestO6WindowMovesAtItsVersion(t *testing.T) {
	r, c := &passReader{}, aheadCalls{calls: map[int64]*callAttempt{}}
	store := func(between func()) {
		r.moved(0, 0)
		between()
		c.known = c.window.opened(r.cursor.version, true)
	}
	store(func() {})
	var version int64
	store(func() { version, _ = c.window.move(time.Now().Add(time.Hour)) })
	if version == r.cursor.version {
		t.Errorf("the window before is moved at version %d, which is that of the next one", version)
	}
}
