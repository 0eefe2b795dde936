package console

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/ops"
)

const (
	freshFor = 2 * time.Second // how long an answer is shown to all who look
	restsFor = 5               // a question rests for so many times as long as it took
)

// answer is the answer to one query, for all who look.
type answer[T any] struct {
	ask func(ctx context.Context, db ops.DB) (T, error)

	mu      sync.Mutex
	running chan struct{} // closed when the question that runs has ended; nil: none runs
	next    time.Time     // the question is not asked before
	value   T
	at      time.Time // of value; zero: there is none
	err     error     // of the last question
	since   time.Time // since when it has failed
}

// get returns the answer, at most freshFor old, or the last one there was and the error of the
// question since then. At most one query runs, however many ask.
func (a *answer[T]) get(ctx context.Context, d *database) (value T, state asked) {
	a.mu.Lock()
	if a.running == nil && !time.Now().Before(a.next) {
		a.running = make(chan struct{})
		// Those who wait may go, and others wait for the same answer.
		go a.refresh(context.WithoutCancel(ctx), d)
	}
	running := a.running
	have := !a.at.IsZero()
	a.mu.Unlock()
	if running != nil {
		// A page that was shown before is not held up by a database that hangs.
		limit := patience
		if have {
			limit = freshFor
		}
		t := time.NewTimer(limit)
		defer t.Stop()
		select {
		case <-running:
		case <-ctx.Done():
		case <-t.C:
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	state = asked{At: a.at, Err: a.err, Since: a.since}
	if a.at.IsZero() && a.err == nil {
		state.Err = context.DeadlineExceeded
	}
	return a.value, state
}

// forget makes the next question one that is asked: a decision may have changed the answer.
func (a *answer[T]) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next = time.Time{}
}

// last returns the last answer, without asking.
func (a *answer[T]) last() T {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.value
}

func (a *answer[T]) refresh(ctx context.Context, d *database) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	begun := time.Now()
	var value T
	err := d.ask(ctx, func(ctx context.Context, db ops.DB) (err error) {
		value, err = a.ask(ctx, db)
		return err
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	ended := time.Now()
	a.next = ended.Add(max(freshFor, restsFor*ended.Sub(begun)))
	switch {
	case err == nil:
		a.value = value
		a.at = ended
		a.err = nil
		a.since = time.Time{}
	case a.err == nil:
		a.err = err
		a.since = ended
	default:
		a.err = err
	}
	close(a.running)
	a.running = nil
}

// asked says how old an answer is.
type asked struct {
	At    time.Time // of the answer; zero: there was none yet
	Err   error     // why there is no newer one
	Since time.Time // since when
}

// Silent is how long the database has not answered; empty: not for a second.
func (s asked) Silent() string {
	if d := time.Since(s.Since); !s.Since.IsZero() && d >= time.Second {
		return show.Span(d)
	}
	return ""
}

// Schema reports whether there is no answer because the schema does not fit.
func (s asked) Schema() bool { return errors.Is(s.Err, migrations.ErrSchema) }

// status is what Status answers, how fast consumers move, and what was seen before.
type status struct {
	*ops.StatusReport
	Rates map[[2]string]float64 // messages a second, by scope and topic
	Seen  seen
}

// shared are the questions whose answers pages share and refresh.
type shared struct {
	status answer[*status]
	outbox answer[*outbox]
	groups answer[*reports.ParkedTotals]
	inbox  answer[*reports.InboxReport]
	events answer[*reports.EventsReport]

	positions samples // of the question status
	seen      seen    // by the question status
	backlogs  samples // of the question outbox
}

// forget makes the next questions about what decisions change ones that are asked.
func (s *shared) forget() {
	s.status.forget()
	s.outbox.forget()
	s.groups.forget()
}

// outbox is what Outbox answers, and how fast the calls to send grow, or are worked off.
type outbox struct {
	*reports.OutboxReport
	Rates map[string]float64 // calls a second, by sink; negative: there are fewer
}

func (s *shared) begin() {
	s.status.ask = func(ctx context.Context, db ops.DB) (*status, error) {
		r, err := ops.Status(ctx, db, ops.StatusQuestion{CountLimit: countLimit})
		if err != nil {
			return nil, err
		}
		now := time.Now()
		answer := &status{StatusReport: r, Rates: s.positions.forward(now, r.Cursors)}
		s.seen.note(now, answer)
		answer.Seen = s.seen.clone()
		return answer, nil
	}
	s.outbox.ask = func(ctx context.Context, db ops.DB) (*outbox, error) {
		r, err := operate.Outbox(ctx, db, reports.OutboxQuestion{CountLimit: countLimit})
		if err != nil {
			return nil, err
		}
		return &outbox{r, s.backlogs.change(time.Now(), r.Sinks)}, nil
	}
	s.groups.ask = func(ctx context.Context, db ops.DB) (*reports.ParkedTotals, error) {
		return reports.Look(ctx, db, func(tx pgx.Tx) (*reports.ParkedTotals, error) {
			return reports.CountParked(ctx, tx, reports.ParkedFilter{}, true, countLimit)
		})
	}
	s.inbox.ask = func(ctx context.Context, db ops.DB) (*reports.InboxReport, error) { return reports.Inbox(ctx, db) }
	s.events.ask = func(ctx context.Context, db ops.DB) (*reports.EventsReport, error) {
		return reports.Events(ctx, db, "")
	}
}

// samples are sums that were read in the last minute, by what they are of. Only the goroutine of
// their question uses them.
type samples struct {
	at   []time.Time
	sums []map[[2]string]int64
}

const sampledFor = time.Minute

// add notes sums, and returns how fast they have changed: by how much a second, over at most a
// minute.
func (s *samples) add(now time.Time, sums map[[2]string]int64) map[[2]string]float64 {
	s.at = append(s.at, now)
	s.sums = append(s.sums, sums)
	for now.Sub(s.at[0]) > sampledFor {
		s.at = s.at[1:]
		s.sums = s.sums[1:]
	}
	rates := map[[2]string]float64{}
	over := now.Sub(s.at[0]).Seconds()
	if over <= 0 {
		return rates
	}
	for of, sum := range sums {
		if before, known := s.sums[0][of]; known {
			rates[of] = float64(sum-before) / over
		}
	}
	return rates
}

// forward is how many messages a second the cursors have moved, by scope and topic. A topic whose
// positions went back, for example because of a replay, has no rate.
func (s *samples) forward(now time.Time, cursors []ops.Cursor) map[[2]string]float64 {
	sums := map[[2]string]int64{}
	for i := range cursors {
		sums[[2]string{cursors[i].Scope, cursors[i].Topic}] += cursors[i].Position
	}
	rates := s.add(now, sums)
	maps.DeleteFunc(rates, func(_ [2]string, rate float64) bool { return rate < 0 })
	return rates
}

// change is how fast the calls to send have changed, by sink.
func (s *samples) change(now time.Time, sinks []reports.OutboxSink) map[string]float64 {
	sums := map[[2]string]int64{}
	for i := range sinks {
		if n := sinks[i].Pending; n != nil {
			sums[[2]string{sinks[i].Sink}] = *n
		}
	}
	rates := map[string]float64{}
	for of, rate := range s.add(now, sums) {
		rates[of[0]] = rate
	}
	return rates
}
