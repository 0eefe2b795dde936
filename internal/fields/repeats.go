package fields

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"time"
	"weak"

	"github.com/onlyonce/onlyonce/internal/pace"
)

// sameEvery is how often the same warning or error is logged while it repeats. For example a
// database that is away fails once a second at a dozen places.
const sameEvery = 30 * time.Second

// repeats holds warnings and errors back that were logged less than sameEvery ago, and counts them:
// the next one says how many there were (not_logged). Two are the same if they have one text and
// the same attributes, but for those that count or measure.
type repeats struct {
	slog.Handler
	seen *pace.Seldom
	of   string // the attributes that the logger has
}

// seen is what the parts of a program that share a logger have logged, by a weak pointer to it.
var seen sync.Map

// withoutRepeats returns a logger that holds repeats back.
func withoutRepeats(l *slog.Logger) *slog.Logger {
	if _, is := l.Handler().(repeats); is {
		return l
	}
	of := weak.Make(l)
	known, loaded := seen.LoadOrStore(of, new(pace.Seldom))
	if !loaded {
		runtime.AddCleanup(l, func(of weak.Pointer[slog.Logger]) { seen.Delete(of) }, of)
	}
	return slog.New(repeats{l.Handler(), known.(*pace.Seldom), ""})
}

func (h repeats) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn {
		return h.Handler.Handle(ctx, r)
	}
	if o := outageIn(r); o != nil {
		return h.handleOutage(ctx, r, o)
	}
	return h.handleSeldom(ctx, r)
}

// outage is an error that is about a whole database (primary.Away). A dozen places meet it at once.
type outage interface {
	error
	Outage() (what string, name slog.Attr)
}

// outageIn returns the outage that a record is about, or nil.
func outageIn(r slog.Record) (found outage) {
	r.Attrs(func(a slog.Attr) bool {
		if err, is := a.Value.Any().(error); is {
			found, _ = errors.AsType[outage](err)
		}
		return found == nil
	})
	return found
}

// handleOutage says once in a while that the database is away, and what each place says of it at
// DEBUG.
func (h repeats) handleOutage(ctx context.Context, r slog.Record, o outage) error {
	what, name := o.Outage()
	held, yes := h.seen.Let("outage "+what+name.String(), time.Now(), sameEvery)
	if yes {
		one := slog.NewRecord(r.Time, slog.LevelError, "onlyonce: "+what+"; what needs it is tried again", r.PC)
		one.AddAttrs(name, slog.String("error", o.Error()))
		if held > 0 {
			one.AddAttrs(slog.Int("not_logged", held))
		}
		if err := h.Handler.Handle(ctx, one); err != nil {
			return err
		}
	}
	if !h.Handler.Enabled(ctx, slog.LevelDebug) {
		return nil
	}
	quiet := r.Clone()
	quiet.Level = slog.LevelDebug
	return h.Handler.Handle(ctx, quiet)
}

// handleSeldom passes a record on unless it was logged less than sameEvery ago.
func (h repeats) handleSeldom(ctx context.Context, r slog.Record) error {
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
	held, yes := h.seen.Let(same.String(), time.Now(), sameEvery)
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
