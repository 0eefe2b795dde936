package outbox

import (
	"testing"
	"time"
)

// O6: what an owner may do with the window of its lane.
func TestO6WindowOfALane(t *testing.T) {
	always := time.Now().Add(time.Hour)
	var w aheadWindow
	if w.begin() || w.move(always) {
		t.Fatal("an owner that has stored no pass uses the window of the owner before")
	}
	if w.opened(true) {
		t.Error("the first pass is said to follow a window of this owner's")
	}
	if w.move(time.Now().Add(-time.Minute)) {
		t.Error("a window that was just opened is moved")
	}
	if !w.move(always) {
		t.Fatal("an idle lane's window is not moved")
	}
	if w.begin() {
		t.Error("calls are made while it is unknown from when on the window counts")
	}
	w.moved(time.Now())
	if !w.begin() {
		t.Fatal("no calls are made in a window that was moved")
	}
	if w.move(always) {
		t.Error("a window is moved in which calls were made")
	}
	if !w.opened(true) {
		t.Error("the pass that follows is said to follow another owner's window")
	}
	if !w.move(always) {
		t.Fatal("the window after a pass is not moved")
	}
	// The answer never comes, and another pass is stored.
	if !w.opened(true) || !w.begin() {
		t.Error("no calls are made after a pass was stored")
	}
	w.unknown()
	if w.begin() || w.move(always) {
		t.Error("a window is used of which nothing is known")
	}
	if w.opened(true) {
		t.Error("the next pass is said to follow a window that is known")
	}
	w.opened(false)
	if w.begin() {
		t.Error("calls are made ahead although no window was opened")
	}
}
