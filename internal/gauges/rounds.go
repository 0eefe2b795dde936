package gauges

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/internal/metrics"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
)

const (
	// Interval is how long the values of a round count as new, unless Rounds.Interval says so.
	Interval = 10 * time.Second
	// Timeout bounds a round unless Rounds.Timeout says so. Prometheus waits for 10 s by default.
	Timeout = 8 * time.Second
	// KeptIntervals is how many intervals values are served without a new answer.
	KeptIntervals = 3
)

// Rounds queries one database in rounds, and keeps its last answers. Its methods may be called
// concurrently. There is one round at a time, and Samples waits for none.
type Rounds struct {
	Database string        // the attribute: see Name
	DB       ops.DB        // whom to ask
	Interval time.Duration // between rounds; defaults to Interval
	Timeout  time.Duration // of a round, from the wait for a connection on; defaults to Timeout
	// CountLimit bounds each count in the database. It is at most a quarter of Timeout. Defaults to
	// reports.CountLimit.
	CountLimit time.Duration

	asking sync.Mutex // held through a round

	mu       sync.Mutex
	asked    time.Time // when the last round began
	answered time.Time // when the last round with an answer began
	up       bool
	failed   float64
	last     []metrics.Sample
}

// AskIfDue asks a round, unless the last one began within the interval. A caller that comes while
// a round is under way waits for that one.
func (r *Rounds) AskIfDue(ctx context.Context) error {
	r.asking.Lock()
	defer r.asking.Unlock()
	r.mu.Lock()
	due := r.asked.IsZero() || time.Since(r.asked) >= cmp.Or(r.Interval, Interval)
	r.mu.Unlock()
	if !due {
		return nil
	}
	return r.ask(ctx)
}

// Ask asks a round now.
func (r *Rounds) Ask(ctx context.Context) error {
	r.asking.Lock()
	defer r.asking.Unlock()
	return r.ask(ctx)
}

func (r *Rounds) ask(ctx context.Context) error {
	timeout := cmp.Or(r.Timeout, Timeout)
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	began := time.Now()
	m, err := Measure(bounded, r.DB, min(cmp.Or(r.CountLimit, reports.CountLimit), timeout/4))
	if err != nil {
		r.Fail(began)
		return err
	}
	values := Of(r.Database, m)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.up = true
	r.asked = began
	r.answered = began
	r.last = values
	return nil
}

// Fail notes a round that began at a time and had no answer.
func (r *Rounds) Fail(began time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.up = false
	r.asked = began
	r.failed++
}

// Leave makes Samples return nothing until the next round: another process asks.
func (r *Rounds) Leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = time.Time{}
	r.answered = time.Time{}
	r.last = nil
}

// Samples returns whether the database answered the last round, how many it did not answer, and the
// values of the last answer unless they are too old. Without a round it returns nothing.
func (r *Rounds) Samples() []metrics.Sample {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked.IsZero() {
		return nil
	}
	all := []metrics.Sample{
		{Metric: metrics.DatabaseUp, Values: []string{r.Database}, Value: oneIf(r.up)},
		{Metric: metrics.ObserveFailed, Values: []string{r.Database}, Value: r.failed},
	}
	if !r.answered.IsZero() && time.Since(r.answered) < KeptIntervals*cmp.Or(r.Interval, Interval) {
		all = append(all, r.last...)
	}
	return all
}
