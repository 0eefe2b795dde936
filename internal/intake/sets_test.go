package intake_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onlyonce/onlyonce/internal/intake"
)

// item returns an event with a body, and with a digest if its body decides whether it is a copy.
func item(id string, body []byte, digest string) *intake.Item {
	it := &intake.Item{Event: intake.Event{ID: id, Body: body}}
	if digest != "" {
		it.Digest = []byte(digest)
	}
	it.Identify("s")
	return it
}

// ids returns the ids of each set.
func ids(sets [][]*intake.Item) string {
	var all [][]string
	for _, set := range sets {
		var one []string
		for _, it := range set {
			one = append(one, it.ID)
		}
		all = append(all, one)
	}
	return fmt.Sprint(all)
}

// W23: the events of a transaction have different bodies, if bodies decide, and at most a bound of
// bytes; one that has more is stored alone.
func TestW23PartsOfASet(t *testing.T) {
	t.Parallel()
	half := make([]byte, intake.MaxSetBytes/2)
	large := make([]byte, intake.MaxSetBytes+1)
	for _, c := range []struct {
		set  []*intake.Item
		want string
	}{
		{nil, "[]"},
		{[]*intake.Item{item("1", nil, "x"), item("2", nil, "y"), item("3", nil, "x"), item("4", nil, "y")}, "[[1 2] [3 4]]"},
		{[]*intake.Item{item("1", nil, ""), item("2", nil, ""), item("3", nil, "x")}, "[[1 2 3]]"},
		{[]*intake.Item{item("1", half, ""), item("2", half, ""), item("3", []byte{1}, "")}, "[[1 2] [3]]"},
		{[]*intake.Item{item("1", large, ""), item("2", nil, ""), item("3", large, "")}, "[[1] [2] [3]]"},
	} {
		if got := ids(intake.Parts(c.set)); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}

// gathered hands events over while the first one is being stored, and returns the sets.
func gathered(t *testing.T, g *intake.Gather[*intake.Item], all []*intake.Item) (sets [][]*intake.Item) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		first := make(chan struct{})
		store := g.Store
		g.Store = func(ctx context.Context, set []*intake.Item) {
			sets = append(sets, set)
			if len(sets) == 1 {
				<-first
			}
			if store != nil {
				store(ctx, set)
				return
			}
			for _, it := range set {
				it.Err = nil
			}
		}
		for _, it := range all {
			go func() { _ = g.Do(t.Context(), it, false) }()
			synctest.Wait()
		}
		close(first)
		synctest.Wait()
		waiting, busy, storers := g.State()
		if waiting+busy+storers != 0 {
			t.Errorf("left: %d that wait, %d names, %d storers", waiting, busy, storers)
		}
	})
	return sets
}

// W23: a set has at most a bound of bytes, so that many large events do not become one transaction.
// What came later stays behind it.
func TestW23SetsHaveABoundOfBytes(t *testing.T) {
	t.Parallel()
	half := make([]byte, intake.MaxSetBytes/2)
	g := &intake.Gather[*intake.Item]{Storers: 1, Most: 100}
	all := []*intake.Item{item("0", nil, ""), item("1", half, ""), item("2", half, ""), item("3", half, ""), item("4", nil, "")}
	if got := ids(gathered(t, g, all)); got != "[[0] [1 2] [3 4]]" {
		t.Errorf("sets %s", got)
	}
}

// W23: if Store ends its goroutine, which a user's function may do, the events of its set are
// answered with an error, and those after it are stored.
func TestW23StoreThatEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	stored := 0
	g := &intake.Gather[*intake.Item]{Storers: 1, Most: 1}
	g.Store = func(_ context.Context, set []*intake.Item) {
		if set[0].ID == "0" {
			runtime.Goexit()
		}
		set[0].Err = nil
		stored++
	}
	all := []*intake.Item{item("0", nil, ""), item("1", nil, ""), item("2", nil, "")}
	gathered(t, g, all)
	if all[0].Err == nil || all[1].Err != nil || stored != 2 {
		t.Errorf("%v; %v; %d are stored", all[0].Err, all[1].Err, stored)
	}
}

// W23: a set has the time of the request that waits longest. One that waits for less gets its
// answer in time, and holds up no other one.
func TestW23TimeOfASet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first := make(chan struct{})
		var at time.Time
		g := &intake.Gather[*intake.Item]{Storers: 1, Most: 100, Store: func(ctx context.Context, set []*intake.Item) {
			at, _ = ctx.Deadline()
			if set[0].ID == "0" {
				<-first
			} else {
				time.Sleep(time.Minute)
			}
		}}
		began := time.Now()
		answers := make([]time.Duration, 4)
		for i, wait := range []time.Duration{time.Minute, time.Second, 3 * time.Second, 2 * time.Second} {
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			go func() {
				err := g.Do(ctx, item(fmt.Sprint(i), nil, ""), false)
				if i > 0 && !errors.Is(err, intake.ErrNotInTime) {
					t.Errorf("event %d: %v", i, err)
				}
				answers[i] = time.Since(began)
			}()
			synctest.Wait()
		}
		close(first)
		synctest.Wait()
		if got := at.Sub(began); got != 3*time.Second {
			t.Errorf("the set has %v", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if answers[1] != time.Second || answers[2] != 3*time.Second || answers[3] != 2*time.Second {
			t.Errorf("answered after %v", answers)
		}
	})
}
