package consumer_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// C1: the matrix once more, with several transactions of a partition at once (C3).
func TestFaultsSideBySide(t *testing.T) { testFaults(t, 4) }

// alike are the rows, or the beginnings of their names, whose fault meets what a slot shares with
// the only transaction of a partition: the claim, the handler's goroutine, the guard of the
// transaction, the offset commit. Side by side they run with -long only.
var alike = []string{
	"claim/same key", "claim/server falls silent", "claim/serialization failure:",
	"handler/error:", "handler/panic", "handler/runtime.Goexit", "handler/hang:",
	"handler/swallowed SQL error", "handler/Exec", "handler/two goroutines at once",
	"handler/session state", "handler/transaction of an earlier message",
	"commit/server falls silent:", "commit/cut before the server gets COMMIT: unprepared",
	"commit/cut after COMMIT, before the reply: unprepared", "offset/",
}

// leftOut reports whether a row of the matrix is not run. With -short no row runs side by side, and
// of the others a part. Without -long the rows that are alike do not run side by side either.
func leftOut(name string, concurrency int) bool {
	if concurrency == 1 {
		return !pgtest.Sampled(name)
	}
	return !*long && slices.ContainsFunc(alike, func(begins string) bool { return strings.HasPrefix(name, begins) }) || !pgtest.Long(name)
}

func TestAlikeRowsExist(t *testing.T) {
	for _, begins := range alike {
		if !slices.ContainsFunc(matrix, func(x row) bool { return strings.HasPrefix(x.step+"/"+x.fault, begins) }) {
			t.Errorf("no row of the matrix begins with %q", begins)
		}
	}
}
