package window

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
)

// The scheduler's window against a plain model: random fetches with holes, tasks, commits of parts
// of them, and sweeps. No ordering key is in two tasks, no message is given twice or before an
// earlier one of its key, and the position can move over what is done or empty, and over nothing
// else.
func TestC2WindowModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		m := &windowModel{
			t:      t,
			seed:   seed,
			random: rand.New(rand.NewPCG(seed, 1)),
			state:  map[int64]string{},
			key:    map[int64]string{},
		} //nolint:gosec // reproducible
		m.window = New[*string](0, -1, map[int64]int64{})
		for range 300 {
			m.step()
		}
	}
}

type windowModel struct {
	t      *testing.T
	seed   uint64
	random *rand.Rand
	window *Window[*string]
	tasks  []*Task[*string]
	state  map[int64]string // of each message: waiting, given or done
	key    map[int64]string // of each message; empty: it has none
	next   int64            // end of what was fetched
}

func (m *windowModel) fail(format string, args ...any) {
	m.t.Helper()
	m.t.Fatalf("seed %d: %s", m.seed, fmt.Sprintf(format, args...))
}

func (m *windowModel) step() {
	switch m.random.IntN(4) {
	case 0:
		m.fetch()
	case 1:
		m.take()
	case 2:
		m.finish()
	case 3:
		m.sweep()
	}
}

func (m *windowModel) fetch() {
	for range m.random.IntN(6) {
		m.next += int64(m.random.IntN(3)) // a hole
		msg := &Entry[*string]{Offset: m.next, Message: new(string), Size: 1 + m.random.IntN(3)}
		if k := m.random.IntN(4); k > 0 {
			m.key[m.next] = fmt.Sprint(k)
			msg.Key = pgtype.UUID{Bytes: [16]byte{byte(k)}, Valid: true}
		}
		m.state[m.next] = "waiting"
		m.window.Add(msg)
		m.next++
	}
	m.next += int64(m.random.IntN(2))
	m.window.Next = m.next
}

func (m *windowModel) take() {
	below := int64(math.MaxInt64)
	if m.random.IntN(4) == 0 {
		below = m.window.Low + int64(m.random.IntN(10))
	}
	most := 1 + m.random.IntN(4)
	ready := m.window.Ready(below, most)
	size := 1 + m.random.IntN(8)
	t := m.window.Take(below, most, size)
	if (t == nil) != (ready == 0) {
		m.fail("%d are ready, and what is given is %v", ready, t)
	}
	if t != nil && len(t.Entries) > 1 && sizeOf(t.Entries) > size {
		m.fail("%d messages of %d bytes are given, and %d are wanted", len(t.Entries), sizeOf(t.Entries), size)
	}
	if t == nil && m.random.IntN(5) == 0 {
		t = m.window.TakeHead(math.MaxInt64, m.random.IntN(7))
	}
	if t == nil {
		return
	}
	inside := map[int64]bool{}
	for _, e := range t.Entries {
		inside[e.Offset] = true
	}
	for _, e := range t.Entries {
		if m.state[e.Offset] != "waiting" {
			m.fail("offset %d is given, and was %s", e.Offset, m.state[e.Offset])
		}
		for earlier, state := range m.state {
			k := m.key[e.Offset]
			wrong := k != "" &&
				m.key[earlier] == k &&
				earlier < e.Offset &&
				state != "done" &&
				!inside[earlier]
			if wrong {
				m.fail("offset %d of key %s is given before %d, which is %s", e.Offset, k, earlier, state)
			}
		}
	}
	for o := range inside {
		m.state[o] = "given"
	}
	m.tasks = append(m.tasks, t)
}

func sizeOf(entries []*Entry[*string]) (sum int) {
	for _, e := range entries {
		sum += e.Size
	}
	return sum
}

// finish commits the first messages of a task.
func (m *windowModel) finish() {
	if len(m.tasks) == 0 {
		return
	}
	i := m.random.IntN(len(m.tasks))
	t := m.tasks[i]
	first := len(t.Entries) - t.Left
	var offsets []int64
	for _, e := range t.Entries[first : first+1+m.random.IntN(t.Left)] {
		offsets = append(offsets, e.Offset)
		m.state[e.Offset] = "done"
	}
	if got := m.window.Finish(t, offsets); len(got) != len(offsets) {
		m.fail("%d of %d messages were finished", len(got), len(offsets))
	}
	if t.Left == 0 {
		m.tasks = append(m.tasks[:i], m.tasks[i+1:]...)
	}
}

func (m *windowModel) sweep() {
	next, _ := m.window.Frontier()
	for o := m.window.Low; o < next; o++ {
		if s, ok := m.state[o]; ok && s != "done" {
			m.fail("the position would pass offset %d, which is %s", o, s)
		}
	}
	if s, ok := m.state[next]; next < m.next && (!ok || s == "done") {
		m.fail("the position would stop at %d, which holds it up with nothing", next)
	}
	from, until := m.window.Empty(next)
	covered := map[int64]bool{}
	for i := range from {
		for o := from[i]; o < until[i]; o++ {
			if _, ok := m.state[o]; ok {
				m.fail("offset %d holds a message, and counts as empty", o)
			}
			covered[o] = true
		}
	}
	for o := m.window.Low; o < next; o++ {
		if _, ok := m.state[o]; !ok && !covered[o] {
			m.fail("offset %d is empty, and does not count as that", o)
		}
	}
	if next > m.window.Low && m.random.IntN(2) == 0 {
		m.window.SweptTo(next)
	}
}
