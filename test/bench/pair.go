package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"time"
)

// pair is two ways to do the same work, measured side by side in one run.
type pair struct {
	what    string
	metrics []metric
	rounds  int // at most so many, and no warm-up, because a side takes long; 0: as asked for
	// open readies both sides, outside of any measurement.
	open func(ctx context.Context, srv *server, o options) (wrapped, plain side, err error)
}

// side does its work in a database of its own for about the window, and returns what it did in it.
type side func(ctx context.Context, db *database, w *window) (sample, error)

// sample is what a side did in one window.
type sample struct {
	messages int64
	elapsed  time.Duration
	used     usage         // by this process and the server
	disk     float64       // bytes a message that the tables of onlyonce hold at the end
	p50, p99 time.Duration // of a batch or a call, if that is measured
	peak     float64       // of resident memory in MiB, if that is measured
	javaPeak float64       // and of the Java consumer that is printed beside it
	gap      time.Duration // longest time without a commit, if that is measured
}

func (s sample) rate() float64 { return float64(s.messages) / s.elapsed.Seconds() }

// cpu is the CPU time of a message, of this process and the server together, in microseconds.
func (s sample) cpu() float64 {
	return (s.used.client + s.used.server).Seconds() * 1e6 / float64(s.messages)
}

// metric is one number out of a round of a pair.
type metric struct {
	name   string
	bar    float64
	atMost bool   // the bar is an upper one
	shown  bool   // there is no bar
	unit   string // empty: a ratio
	// of computes the number of one round; ok is false if it was not measured.
	of func(wrapped, plain sample) (v float64, ok bool)
}

// rates is the most common metric: the throughput of the wrapped side, relative to the plain one.
func rates(wrapped, plain sample) (float64, bool) { return wrapped.rate() / plain.rate(), true }

func (p pair) names() string {
	names := make([]string, len(p.metrics))
	for i, m := range p.metrics {
		names[i] = m.name
	}
	return strings.Join(names, ",")
}

// measure runs the rounds: a warm-up that is not counted, then both sides once in each round. The
// order alternates, so that a slow change of the machine affects both.
func (p pair) measure(ctx context.Context, srv *server, o options, progress func(string, ...any)) ([]result, error) {
	wrapped, plain, err := p.open(ctx, srv, o)
	if err != nil {
		return nil, err
	}
	values, cpu := make([][]float64, len(p.metrics)), []float64{}
	round, last := 0, o.rounds
	if p.rounds > 0 {
		round, last = 1, min(p.rounds, o.rounds)
	}
	for ; round <= last; round++ {
		sides := [2]side{wrapped, plain}
		var got [2]sample
		order := [2]int{0, 1}
		if round%2 == 1 {
			order = [2]int{1, 0}
		}
		for _, i := range order {
			w := &window{length: o.window}
			if round == last && o.profile != "" {
				side := "-wrapped"
				if i == 1 {
					side = "-plain"
				}
				w.profile = filepath.Join(o.profile, p.metrics[0].name+side+".pprof")
			}
			if got[i], err = runSide(ctx, srv, sides[i], w); err != nil {
				return nil, err
			}
		}
		if o.verbose {
			progress("  round %d: wrapped %s, plain %s", round, got[0], got[1])
		}
		if round == 0 {
			continue
		}
		for i, m := range p.metrics {
			if v, ok := m.of(got[0], got[1]); ok {
				values[i] = append(values[i], v)
			}
		}
		if got[0].used.seen && got[1].used.seen {
			cpu = append(cpu, got[1].cpu()/got[0].cpu())
		}
	}
	var results []result
	for i, m := range p.metrics {
		if len(values[i]) == 0 {
			progress("%s: not measured here", m.name)
			continue
		}
		r := judge(m, p.what, values[i])
		if len(cpu) > 0 {
			r.CPURatio = median(cpu)
		}
		results = append(results, r)
	}
	return results, nil
}

// String is for progress lines.
func (s sample) String() string {
	per := func(d time.Duration) float64 { return d.Seconds() * 1e6 / float64(s.messages) }
	if s.peak > 0 {
		return fmt.Sprintf("%.0f MiB", s.peak)
	}
	if s.p50 > 0 {
		return fmt.Sprintf("p50 %v, p99 %v (%.0f/s, %.0f us of CPU each)",
			s.p50.Round(time.Microsecond), s.p99.Round(time.Microsecond), s.rate(), s.cpu())
	}
	return fmt.Sprintf("%.0f/s (client %.1f us, server %.1f us, WAL %.0f B)", s.rate(), per(s.used.client), per(s.used.server),
		float64(s.used.wal)/float64(s.messages))
}

// runSide gives a side a fresh database and a clean heap.
func runSide(ctx context.Context, srv *server, s side, w *window) (got sample, err error) {
	db, err := srv.fresh(ctx)
	if err != nil {
		return sample{}, err
	}
	defer func() {
		if dropErr := db.drop(); err == nil {
			err = dropErr
		}
	}()
	runtime.GC()
	return s(ctx, db, w)
}

// settle is how long a side works before its window opens: connections warm their caches meanwhile.
const settle = 500 * time.Millisecond

// window is the time in which a side is watched.
type window struct {
	length  time.Duration
	profile string // file for a CPU profile, empty for none
}

// watch lets a running side settle. Then it counts for the window's length, or until the side runs
// dry or fails. count returns how many messages have committed so far.
func (w *window) watch(ctx context.Context, db *database, count func() int64, dry <-chan struct{}, failed <-chan error) (sample, error) {
	wait := func(d time.Duration) (over bool, err error) {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			return true, nil
		case <-dry:
			return false, nil
		case err := <-failed:
			return false, err
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	if _, err := wait(settle); err != nil {
		return sample{}, err
	}
	stop, err := w.startProfile()
	if err != nil {
		return sample{}, err
	}
	before, err := db.srv.usage(ctx)
	if err != nil {
		return sample{}, err
	}
	n0, t0 := count(), time.Now()
	over, err := wait(w.length)
	n1, t1 := count(), time.Now()
	if err != nil {
		return sample{}, err
	}
	after, err := db.srv.usage(ctx)
	if err != nil {
		return sample{}, err
	}
	if err := stop(); err != nil {
		return sample{}, err
	}
	s := sample{messages: n1 - n0, elapsed: t1.Sub(t0), used: after.minus(before)}
	switch {
	case s.messages == 0:
		return s, fmt.Errorf("nothing committed in %v", s.elapsed)
	case !over && s.elapsed < w.length/2:
		return s, fmt.Errorf("the messages were used up after %v", s.elapsed)
	}
	return s, nil
}

func (w *window) startProfile() (stop func() error, err error) {
	if w.profile == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(w.profile)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, err
	}
	return func() error { pprof.StopCPUProfile(); return f.Close() }, nil
}

// result is one metric over all rounds, as -json prints it.
type result struct {
	Name     string  `json:"name"`
	What     string  `json:"what"`
	Ratio    float64 `json:"ratio"` // median of the rounds; in the unit, where there is one
	Unit     string  `json:"unit,omitempty"`
	Bar      float64 `json:"bar"`
	AtMost   bool    `json:"at_most,omitempty"` // the bar is an upper one
	Shown    bool    `json:"shown,omitempty"`   // there is no bar
	OK       bool    `json:"ok"`
	Rounds   int     `json:"rounds"`
	Min      float64 `json:"min"`
	Max      float64 `json:"max"`
	Meet     int     `json:"meet"`                // rounds that meet the bar
	Needs    int     `json:"needs,omitempty"`     // rounds that a verdict would take; 0: there is one
	CPURatio float64 `json:"cpu_ratio,omitempty"` // CPU time of a message, plain / wrapped: less troubled by neighbours
	Commit   string  `json:"commit"`
	Date     string  `json:"date"`
	Postgres string  `json:"postgres"`
}

// judge compares the median of the rounds with the bar, and says whether they are enough to do so.
func judge(m metric, what string, values []float64) result {
	meets := func(v float64) bool { return m.shown || m.atMost && v <= m.bar || !m.atMost && v >= m.bar }
	r := result{Name: m.name, What: what, Ratio: median(values), Unit: m.unit, Bar: m.bar, AtMost: m.atMost, Shown: m.shown,
		Rounds: len(values), Min: slices.Min(values), Max: slices.Max(values)}
	r.OK = meets(r.Ratio)
	for _, v := range values {
		if meets(v) {
			r.Meet++
		}
	}
	if !m.shown {
		r.Needs = roundsNeeded(r.Meet, r.Rounds)
	}
	return r
}

// mostRounds is the most that [roundsNeeded] says.
const mostRounds = 200

// roundsNeeded returns 0 if so many of n rounds on one side of the bar would come by chance in one
// of twenty runs at most, if the true median were the bar (the sign test). Otherwise it returns how
// many rounds would, if as many in a hundred were on that side: at most mostRounds.
func roundsNeeded(meet, n int) int {
	side := max(meet, n-meet)
	if chance(side, n) <= 0.05 {
		return 0
	}
	for more := n + 1; more < mostRounds; more++ {
		if chance((2*side*more+n)/(2*n), more) <= 0.05 {
			return more
		}
	}
	return mostRounds
}

// chance is how likely at least k of n throws of a coin show the same given side.
func chance(k, n int) float64 {
	sum, ways := 0.0, 1.0 // ways to choose i of n
	for i := range n + 1 {
		if i >= k {
			sum += ways
		}
		ways *= float64(n-i) / float64(i+1)
	}
	return sum / math.Pow(2, float64(n))
}

// median of at least one value; of an even number, the mean of the middle two.
func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}

func (r result) line(verbose bool) string {
	verdict := fmt.Sprintf("bar %g ok", r.Bar)
	switch {
	case r.Shown:
		verdict = "no bar"
	case !r.OK:
		verdict = fmt.Sprintf("bar %g short", r.Bar)
	}
	if r.Needs > 0 {
		verdict += fmt.Sprintf(" (open: %d of %d rounds meet it; a verdict takes about %d)", r.Meet, r.Rounds, r.Needs)
	}
	number := func(v float64) string {
		switch r.Unit {
		case "":
			return fmt.Sprintf("%.2f", v)
		case "B":
			return fmt.Sprintf("%.0f", v)
		}
		return fmt.Sprintf("%.1f", v)
	}
	line := fmt.Sprintf("%s %s %s", r.Name, number(r.Ratio), verdict)
	if verbose {
		line += fmt.Sprintf(" min %s max %s rounds %d cpu %.2f", number(r.Min), number(r.Max), r.Rounds, r.CPURatio)
	}
	return line
}
