// Package histories is what two rigs have in common that play histories of faults: onlyoncetest,
// which kills users' programs and compares states, and test/adversary, which breaks each message of
// ours and checks ledgers. Their courses, points and judges differ. Package wire has the faults of
// both and the names of points, package workerdb their databases.
package histories

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/internal/rig/wire"
)

// Each calls do with each item that next returns, and with the number of the worker that is free
// for it: n items are under way at once. Calls of next come one at a time. After a failure no item
// is begun, and Each returns the first one when all that were begun are done.
func Each[T any](n int, next func() (item T, more bool), do func(worker int, item T) error) error {
	var mu sync.Mutex
	var failed error
	take := func() (item T, more bool) {
		mu.Lock()
		defer mu.Unlock()
		if failed != nil {
			return item, false
		}
		return next()
	}
	var all sync.WaitGroup
	for worker := range n {
		all.Go(func() {
			for item, more := take(); more; item, more = take() {
				if err := do(worker, item); err != nil {
					mu.Lock()
					if failed == nil {
						failed = err
					}
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	return failed
}

// Mark says how much a line of a timeline explains.
type Mark int

// Marks.
const (
	Plain Mark = iota
	Fault      // what the history is about
	Minor      // what each run has
)

// Line is one line of a timeline.
type Line struct {
	Text string
	Mark Mark
}

// Timeline is what happened in one history. Its methods may be called from several goroutines.
type Timeline struct {
	began time.Time

	mu    sync.Mutex
	lines []Line
}

// NewTimeline begins one.
func NewTimeline() *Timeline { return &Timeline{began: time.Now()} }

// Say adds a line.
func (t *Timeline) Say(m Mark, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, Line{
		fmt.Sprintf("%6.0f ms  ", float64(time.Since(t.began).Microseconds())/1000) + fmt.Sprintf(format, args...),
		m,
	})
}

// Lines returns all lines.
func (t *Timeline) Lines() []Line {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.lines)
}

// Answered adds an answer of the server that tells something: an error, or the end of a
// transaction.
func (t *Timeline) Answered(who string, a wire.Answer) {
	if strings.HasPrefix(a.Text, "ERROR") || a.Text == "COMMIT" || a.Text == "ROLLBACK" {
		t.Say(Plain, "%s%.160s", who, a.Text)
	}
}

// Logger returns a logger that adds what is logged at a level or above.
func (t *Timeline) Logger(who string, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(
		logged{t, who},
		&slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
				return slog.Attr{}
			}
			return a
		}},
	))
}

type logged struct {
	t   *Timeline
	who string
}

func (l logged) Write(b []byte) (int, error) {
	l.t.Say(Plain, "%s%.300s", l.who, strings.TrimSpace(string(b)))
	return len(b), nil
}
