package brake_test

import (
	"slices"
	"testing"

	"github.com/onlyonce/onlyonce/internal/brake"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// D7: what another transaction is about to apply counts as applied for as long as that is under
// way, so a message more may be parked meanwhile. When it has failed, the next one stops.
func TestD7WhatOthersAreAboutToApply(t *testing.T) {
	t.Parallel()
	w := &brake.Window{Size: 50, Percent: 90, Least: 20, Counts: brake.GivenUp}
	w.Record(slices.Repeat([]string{parked.Permanent}, 19)...)
	other := new(int)
	own := new(int)
	if _, stops := w.StopsAt(other, "", "", ""); stops {
		t.Fatal("what is about to be applied stops")
	}
	if _, stops := w.StopsAt(own, parked.Permanent); stops {
		t.Error("the 20th stops although 3 of 23 are about to be applied")
	}
	w.Record(parked.Permanent)
	w.Ended(own)
	w.Ended(other)
	if _, stops := w.StopsAt(new(int), parked.Permanent); !stops {
		t.Error("the 21st does not stop although none is about to be applied any more")
	}
}

// D7: the window moves on however many were applied before, and also after the brake was released.
func TestD7WindowAfterManyApplied(t *testing.T) {
	t.Parallel()
	w := &brake.Window{Size: 50, Percent: 90, Least: 20, Counts: brake.GivenUp}
	failures := func() (n int) {
		for n = 1; n <= 50; n++ {
			if _, stops := w.StopsAt(nil, parked.Permanent); stops {
				break
			}
			w.Record(parked.Permanent)
		}
		return n
	}
	for _, before := range []func(){func() {}, w.Release} {
		before()
		w.Record(slices.Repeat([]string{""}, 200)...)
		if n := failures(); n != 45 {
			t.Errorf("it stops at failure %d, want 45 of the last 50", n)
		}
	}
}
