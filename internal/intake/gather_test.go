package intake_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/onlyonce/onlyonce/internal/intake"
)

// arrival is an event that comes in a history.
type arrival struct {
	id, key, body string
	alone         bool
}

// What arrives: an event; one with its id; two that wait for copies elsewhere, of which one has the
// first one's body; one with the ordering key of the second, which waits for the first one's id;
// and one with the ordering key of the first. They have nothing else in common.
var arrivals = []arrival{
	{id: "1", key: "k", body: "x"},
	{id: "1", key: "m", body: "v"},
	{id: "2", body: "z", alone: true},
	{id: "3", body: "x", alone: true},
	{id: "4", key: "m", body: "w"},
	{id: "5", key: "k", body: "y"},
}

// play is one history of a Gather: what arrives, how sets end, and who leaves. A step is a letter
// and a number: "a" the next event arrives; "s0" the first set that is being stored is committed,
// "f0" fails, "p0" panics; "l2" the third event's request leaves.
type play struct {
	t       *testing.T
	gather  *intake.Gather[*intake.Item]
	steps   []string
	items   []*intake.Item
	answers []chan error
	cancels []context.CancelFunc
	answer  []string   // of each event: "", or how Do has returned
	mu      sync.Mutex // of what storers write
	running []*running
	begun   []int // events in the order in which their sets began
	ended   map[int]string
}

// running is a set that Store was called with.
type running struct {
	events []int
	end    chan string
}

func newPlay(t *testing.T) *play {
	p := &play{t: t, ended: map[int]string{}}
	p.gather = &intake.Gather[*intake.Item]{Storers: 2, Most: 2, Store: p.store}
	return p
}

var errStore = errors.New("the database is away")

// store implements Gather.Store: it waits for the history to say how the set ends.
func (p *play) store(_ context.Context, set []*intake.Item) {
	r := &running{end: make(chan string)}
	p.mu.Lock()
	for _, it := range set {
		at := slices.Index(p.items, it)
		r.events = append(r.events, at)
		p.begun = append(p.begun, at)
	}
	p.running = append(p.running, r)
	p.mu.Unlock()
	how := <-r.end
	if how == "p" {
		panic("a bug")
	}
	for _, it := range set {
		it.Err = nil
		it.Outcome = intake.Taken
		if how == "f" {
			it.Err = errStore
		}
	}
}

// do makes one step, and waits until nothing moves.
func (p *play) do(step string) {
	p.steps = append(p.steps, step)
	var n int
	_, _ = fmt.Sscan(step[1:], &n)
	switch step[:1] {
	case "a":
		a := arrivals[len(p.items)]
		it := &intake.Item{Event: intake.Event{ID: a.id, Body: []byte(a.body)}, Digest: []byte(a.body)}
		if a.key != "" {
			it.Key = []byte(a.key)
		}
		it.Identify("s")
		ctx, cancel := context.WithCancel(p.t.Context())
		done := make(chan error, 1)
		p.items = append(p.items, it)
		p.cancels = append(p.cancels, cancel)
		p.answers = append(p.answers, done)
		p.answer = append(p.answer, "")
		go func() { done <- p.gather.Do(ctx, it, a.alone) }()
	case "l":
		p.cancels[n]()
	default:
		r := p.running[n]
		p.running = slices.Delete(p.running, n, n+1)
		for _, at := range r.events {
			p.ended[at] = step[:1]
		}
		r.end <- step[:1]
	}
	synctest.Wait()
	p.check(step)
}

// check compares what has become of each event with what the history allows.
func (p *play) check(step string) {
	fault := func(format string, args ...any) {
		p.t.Helper()
		p.t.Errorf("%s: %s", strings.Join(p.steps, " "), fmt.Sprintf(format, args...))
	}
	for i, done := range p.answers {
		select {
		case err := <-done:
			if p.answer[i] != "" {
				fault("event %d is answered twice", i)
			}
			p.answer[i] = outcome(err)
		default:
		}
		var want string
		switch p.ended[i] {
		case "s":
			want = "stored"
		case "f", "p":
			want = "failed"
		}
		if step == fmt.Sprint("l", i) && want == "" {
			want = "left"
		}
		if p.answer[i] != want && p.answer[i] != "left" {
			fault("event %d is answered %q, want %q", i, p.answer[i], want)
		}
	}
	p.checkRunning(fault)
	p.checkOrder(fault)
}

func outcome(err error) string {
	switch {
	case err == nil:
		return "stored"
	case errors.Is(err, intake.ErrNotInTime):
		return "left"
	}
	return "failed"
}

// names are what two events must not have in common if they are stored at once.
func names(i int) []string {
	a := arrivals[i]
	all := []string{"id " + a.id, "body " + a.body}
	if a.key != "" {
		all = append(all, "key "+a.key)
	}
	return all
}

// checkRunning checks the sets that are being stored, and that no storer is missing.
func (p *play) checkRunning(fault func(string, ...any)) {
	busy := map[string]int{}
	alone := 0
	stored := map[int]bool{}
	for n, r := range p.running {
		if len(r.events) > 2 {
			fault("a set has %d events", len(r.events))
		}
		for _, i := range r.events {
			if stored[i] {
				fault("event %d is in two sets", i)
			}
			stored[i] = true
			for _, name := range names(i) {
				if was, is := busy[name]; is && was != n {
					fault("two sets have %s", name)
				}
				busy[name] = n
			}
			if arrivals[i].alone {
				alone++
				if len(r.events) > 1 {
					fault("event %d is not alone", i)
				}
			}
		}
	}
	if len(p.running) > 2 || alone > 1 {
		fault("%d sets, %d of them wait for a copy", len(p.running), alone)
	}
	passed := map[string]bool{}
	for i := range p.items {
		if stored[i] || p.ended[i] != "" || p.answer[i] != "" {
			continue
		}
		free := !arrivals[i].alone || alone == 0
		for _, name := range names(i) {
			if _, is := busy[name]; is || passed[name] {
				free = false
			}
		}
		if free && len(p.running) < 2 {
			fault("event %d waits, although a storer is free", i)
		}
		for _, name := range names(i) {
			passed[name] = true
		}
	}
}

// checkOrder checks that events of one ordering key are stored in the order of their arrival.
func (p *play) checkOrder(fault func(string, ...any)) {
	last := map[string]int{}
	for _, i := range p.begun {
		key := arrivals[i].key
		if key == "" {
			continue
		}
		if i < last[key] {
			fault("event %d is stored after %d", i, last[key])
		}
		last[key] = i
	}
}

// next returns the steps that are possible now.
func (p *play) next(leaves bool) (steps []string) {
	if len(p.items) < len(arrivals) {
		steps = append(steps, "a")
	}
	for n := range p.running {
		steps = append(steps, fmt.Sprint("s", n))
		if n == 0 {
			steps = append(steps, "f0", "p0")
		}
	}
	for i := range p.items {
		if leaves && p.answer[i] == "" {
			steps = append(steps, fmt.Sprint("l", i))
		}
	}
	return steps
}

// end lets all sets be committed, and checks that nothing is left.
func (p *play) end() {
	for len(p.running) > 0 {
		p.do("s0")
	}
	for i, a := range p.answer {
		if a == "" {
			p.t.Errorf("%s: event %d is never answered", strings.Join(p.steps, " "), i)
		}
		p.cancels[i]()
	}
	if waiting, busy, storers := p.gather.State(); waiting+busy+storers != 0 {
		p.t.Errorf("%s: left: %d that wait, %d names, %d storers", strings.Join(p.steps, " "), waiting, busy, storers)
	}
}

// W23: all histories of up to six events. Each request is answered once, and 200 only after its set
// is committed; no two sets at once have an id, a body or an ordering key in common; no event waits
// while a storer is free for it. At most one request leaves in a history.
func TestW23EveryHistoryOfTheHandOver(t *testing.T) {
	t.Parallel()
	longest := 9
	if testing.Short() {
		longest = 7
	}
	histories := 0
	var explore func(steps []string, left bool)
	explore = func(steps []string, left bool) {
		var next []string
		synctest.Test(t, func(t *testing.T) {
			p := newPlay(t)
			for _, step := range steps {
				p.do(step)
			}
			next = p.next(!left)
			p.end()
		})
		histories++
		if len(steps) == longest || t.Failed() {
			return
		}
		for _, step := range next {
			explore(append(slices.Clone(steps), step), left || step[0] == 'l')
		}
	}
	explore(nil, false)
	t.Logf("%d histories", histories)
}
