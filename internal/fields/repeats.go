package fields

import (
	"context"
	"log/slog"
	"maps"
	"runtime"
	"strings"
	"sync"
	"time"
	"weak"
)

// sameEvery is how often the same warning or error is logged while it repeats. For example a
// database that is away fails once a second at a dozen places.
const sameEvery = 30 * time.Second

// repeats holds warnings and errors back that were logged less than sameEvery ago, and counts them:
// the next one says how many there were (not_logged). Two are the same if they have one text and
// the same attributes, but for those that count or measure.
type repeats struct {
	slog.Handler
	seen *lines
	of   string // the attributes that the logger has
}

// lines are what was logged, by text and attributes. There are at most mostLines: with more at once
// none is held back.
type lines struct {
	mu  sync.Mutex
	all map[string]*line
}

type line struct {
	next time.Time // when it is due again
	held int
}

const mostLines = 1000

// let reports whether a line is logged now, and how often it was held back before.
func (s *lines) let(text string, now time.Time) (held int, yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.all[text]; l != nil && now.Before(l.next) {
		l.held++
		return 0, false
	} else if l != nil {
		held = l.held
	}
	if len(s.all) >= mostLines {
		maps.DeleteFunc(s.all, func(_ string, l *line) bool { return !now.Before(l.next) })
	}
	if s.all == nil {
		s.all = map[string]*line{}
	}
	if len(s.all) < mostLines {
		s.all[text] = &line{next: now.Add(sameEvery)}
	}
	return held, true
}

// seen is what the parts of a program that share a logger have logged, by a weak pointer to it.
var seen sync.Map

// withoutRepeats returns a logger that holds repeats back.
func withoutRepeats(l *slog.Logger) *slog.Logger {
	if _, is := l.Handler().(repeats); is {
		return l
	}
	of := weak.Make(l)
	known, loaded := seen.LoadOrStore(of, new(lines))
	if !loaded {
		runtime.AddCleanup(l, func(of weak.Pointer[slog.Logger]) { seen.Delete(of) }, of)
	}
	return slog.New(repeats{l.Handler(), known.(*lines), ""})
}

func (h repeats) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn {
		return h.Handler.Handle(ctx, r)
	}
	var same strings.Builder
	same.WriteString(h.of + r.Level.String() + r.Message)
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "attempt", "wait", "again_in", "not_logged":
		default:
			same.WriteString("\x00" + a.String())
		}
		return true
	})
	held, yes := h.seen.let(same.String(), time.Now())
	if !yes {
		return nil
	}
	if held > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("not_logged", held))
	}
	return h.Handler.Handle(ctx, r)
}

func (h repeats) WithAttrs(attrs []slog.Attr) slog.Handler {
	return repeats{h.Handler.WithAttrs(attrs), h.seen, h.of + slog.GroupValue(attrs...).String() + "\x00"}
}

func (h repeats) WithGroup(name string) slog.Handler {
	return repeats{h.Handler.WithGroup(name), h.seen, h.of + name + "\x00"}
}
