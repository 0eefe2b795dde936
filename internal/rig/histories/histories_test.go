package histories_test

import (
	"errors"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/onlyonce/onlyonce/internal/rig/histories"
	"github.com/onlyonce/onlyonce/internal/rig/wire"
)

// Each item is done once, and a worker has one item at a time.
func TestEach(t *testing.T) {
	const workers, items = 4, 200
	var mu sync.Mutex
	var busy [workers]bool
	var done []int
	n := 0
	err := histories.Each(workers, func() (int, bool) { n++; return n, n <= items }, func(worker, item int) error {
		mu.Lock()
		if busy[worker] {
			t.Errorf("worker %d has two items", worker)
		}
		busy[worker] = true
		mu.Unlock()
		mu.Lock()
		defer mu.Unlock()
		busy[worker] = false
		done = append(done, item)
		return nil
	})
	slices.Sort(done)
	if err != nil || len(done) != items || len(slices.Compact(done)) != items {
		t.Errorf("%d items are done, error %v", len(done), err)
	}
}

// After a failure nothing is begun, and the failure is returned.
func TestEachFails(t *testing.T) {
	next, stop := iter.Pull(slices.Values([]int{1, 2, 3, 4}))
	defer stop()
	var done []int
	failure := errors.New("the server is gone")
	err := histories.Each(1, next, func(_, item int) error {
		done = append(done, item)
		if item == 2 {
			return failure
		}
		return nil
	})
	if !errors.Is(err, failure) || !slices.Equal(done, []int{1, 2}) {
		t.Errorf("done %v, error %v", done, err)
	}
}

func TestTimeline(t *testing.T) {
	x := histories.NewTimeline()
	x.Say(histories.Fault, "sends %s", "commit")
	x.Answered("#1 ", wire.Answer{Text: "SELECT 1"})
	x.Answered("#1 ", wire.Answer{Text: "ERROR 40001 no"})
	log := x.Logger("process: ", slog.LevelWarn)
	log.Info("not this")
	log.Warn("this", "n", 1)
	var got []string
	for _, l := range x.Lines() {
		_, text, _ := strings.Cut(l.Text, " ms  ")
		got = append(got, text)
	}
	if want := []string{"sends commit", "#1 ERROR 40001 no", "process: msg=this n=1"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if x.Lines()[0].Mark != histories.Fault || x.Lines()[1].Mark != histories.Plain {
		t.Error("marks are lost")
	}
}
