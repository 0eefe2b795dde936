package outbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
)

// A key is promoted once, however many of its calls were blocked. If there are too many keys, all
// that are blocked are looked at, and once more if that has begun already: it may be past a key.
func TestPromotionsAreBounded(t *testing.T) {
	t.Parallel()
	p := newKeyPromotions(&heldLane{ctx: t.Context()})
	p.swept = true
	p.sweepAt = never
	hot := uuid.New()
	for range 2 * mostPromotions {
		p.add(hot)
	}
	if len(p.keys) != 1 || !p.swept {
		t.Fatalf("one key is kept %d times (swept %v)", len(p.keys), p.swept)
	}
	for range mostPromotions {
		p.add(uuid.New())
	}
	if len(p.keys) != mostPromotions || p.swept {
		t.Fatalf("%d keys are kept, and no sweep finds the one that is left out", len(p.keys))
	}
	p.noteSwept(nil) // it ends, without a key that was left out meanwhile
	if !p.swept || p.due(time.Now()).After(time.Now()) {
		t.Errorf("swept %v, due %v", p.swept, p.due(time.Now()))
	}
	p.sweep()
	p.add(uuid.New())
	p.noteSwept(nil)
	if p.swept {
		t.Error("a key that was left out during a sweep is not looked for")
	}
}

// A lane takes slots for the calls that may start side by side, of an ordering key one.
func TestStartable(t *testing.T) {
	t.Parallel()
	a := uuid.New()
	b := uuid.New()
	busy := uuid.New()
	blocked := uuid.New()
	row := func(key *uuid.UUID) *callAttempt { return &callAttempt{order: key} }
	for _, c := range []struct {
		rows []*callAttempt
		most int
		want int
	}{
		{[]*callAttempt{row(&a), row(&a), row(&a)}, 8, 1},
		{[]*callAttempt{row(&a), row(&b), row(&a), row(nil), row(nil)}, 8, 4},
		{[]*callAttempt{row(nil), row(nil), row(nil)}, 2, 2},
		{[]*callAttempt{row(&busy), row(&blocked), row(&a), {keyParked: true}, {callHistory: callHistory{notBeforeIn: time.Second}}}, 8, 1},
		{nil, 8, 0},
	} {
		t.Run(fmt.Sprint(len(c.rows), " of ", c.most), func(t *testing.T) {
			t.Parallel()
			k := &chunk{
				rows:        c.rows,
				waiting:     map[uuid.UUID][]*callAttempt{busy: nil},
				blockedKeys: map[uuid.UUID]bool{blocked: true},
			}
			if got := k.startable(c.most); got != c.want {
				t.Errorf("%d may start, want %d", got, c.want)
			}
		})
	}
}
