package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// held measures queues while another transaction holds a snapshot, so that vacuum removes nothing:
// one way after the other, each in a database of its own.
type held struct {
	length time.Duration // of each way
	rate   int           // events a second; a way that does not reach it alone gets the half of it, and so on
	only   string
	page   string // the results are written to it, if it is not empty
}

const (
	heldEdge   = 5 * time.Minute // the first and the last part of a way, which are compared
	heldTick   = 10 * time.Millisecond
	heldSettle = 5 * time.Second
	heldHalves = 4

	// A way reaches a rate if it consumes that share of it, or is so long behind at the end: PgQ
	// hands over what has come in up to 3 seconds at once.
	heldAlone  = 0.97
	heldBehind = 5 * time.Second
)

// heldWay is a queue that is measured.
type heldWay struct {
	name  string // of -ways
	label string
	how   string // what it is made of

	byItself bool // its events come by themselves, at the rate
	open     func(ctx context.Context, db *database, rate int, length time.Duration) (*holding, error)
}

// holding is a way at work.
type holding struct {
	// produce writes events in one transaction. Nil: see heldWay.byItself.
	produce func(ctx context.Context, bodies [][]byte) error
	done    atomic.Int64 // events that were consumed
	failed  chan error
	stop    func() error
}

func newHolding() *holding { return &holding{failed: make(chan error, 1)} }

// fail reports an error, the first of all.
func (h *holding) fail(err error) {
	select {
	case h.failed <- err:
	default:
	}
}

// heldResult is a line of the results.
type heldResult struct {
	way         heldWay
	rate        int
	first, last float64 // events a second
	cpuFirst    float64 // microseconds of client and server an event; 0: not known
	cpuLast     float64
	dead        int64
	walEach     float64
	grown       int64 // bytes of the database
	left        int64 // produced, and not consumed
}

// heldMark is what was counted at some moment.
type heldMark struct {
	at   time.Time
	done int64
	used usage
}

func (h held) edge() time.Duration { return min(heldEdge, h.length/4) }

func heldNames() []string {
	var all []string
	for _, w := range heldWays {
		all = append(all, w.name)
	}
	return all
}

// measure plays the ways, prints a line for each, and writes the page.
func (h held) measure(ctx context.Context, srv *server, stdout io.Writer) error {
	var results []heldResult
	for _, w := range heldWays {
		if h.only != "" && !strings.Contains(","+h.only+",", ","+w.name+",") {
			continue
		}
		r, err := h.play(ctx, srv, w)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		results = append(results, r)
		if _, err := fmt.Fprintln(stdout, r.line()); err != nil {
			return err
		}
	}
	if h.page == "" {
		return nil
	}
	return os.WriteFile(h.page, []byte(h.render(ctx, srv, results)), 0o644) //nolint:gosec // for all to read
}

// play finds the rate that a way reaches alone, and then measures it beside a held snapshot.
func (h held) play(ctx context.Context, srv *server, w heldWay) (heldResult, error) {
	rate := h.rate
	for range heldHalves {
		alone := held{length: min(h.length/4, time.Minute)}
		r, err := alone.once(ctx, srv, w, rate, false)
		if err != nil {
			return r, err
		}
		if r.reaches(rate) {
			return h.once(ctx, srv, w, rate, true)
		}
		srv.log(fmt.Sprintf("%s reaches %.0f of %d events a second alone", w.name, r.last, rate))
		rate /= 2
	}
	return heldResult{}, fmt.Errorf("it does not reach %d events a second alone", rate)
}

func (r heldResult) reaches(rate int) bool {
	if r.way.byItself {
		return r.last >= heldAlone*float64(rate)
	}
	return float64(r.left) <= heldBehind.Seconds()*float64(rate)
}

// once runs a way for the length.
func (h held) once(ctx context.Context, srv *server, w heldWay, rate int, pin bool) (r heldResult, err error) {
	db, err := srv.fresh(ctx)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, db.drop()) }()
	if _, err := db.open(ctx, relayConnections); err != nil {
		return r, err
	}
	work, err := w.open(ctx, db, rate, h.length+2*heldSettle)
	if err != nil {
		return r, err
	}
	producing, cancel := context.WithCancel(ctx)
	var produced atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := work.keepProducing(producing, rate, &produced); err != nil && producing.Err() == nil {
			work.fail(err)
		}
	}()
	defer func() {
		cancel()
		<-ended
		err = errors.Join(err, work.stop())
	}()
	if err := work.wait(ctx, heldSettle); err != nil {
		return r, err
	}
	if pin {
		release, err := db.pin(ctx)
		if err != nil {
			return r, err
		}
		defer func() { _ = release() }() // the connection ends with the database
	}
	size, err := db.sizeAndDead(ctx)
	if err != nil {
		return r, err
	}
	var marks [4]heldMark
	edge := h.edge()
	for i, d := range []time.Duration{0, edge, h.length - 2*edge, edge} {
		if err := work.wait(ctx, d); err != nil {
			return r, err
		}
		used, err := srv.usage(ctx)
		if err != nil {
			return r, err
		}
		marks[i] = heldMark{at: time.Now(), done: work.done.Load(), used: used}
	}
	after, err := db.sizeAndDead(ctx)
	if err != nil {
		return r, err
	}
	r = heldResult{way: w, rate: rate, dead: after.dead, grown: after.size - size.size}
	r.first, r.cpuFirst = between(marks[0], marks[1])
	r.last, r.cpuLast = between(marks[2], marks[3])
	r.walEach = float64(marks[3].used.wal-marks[0].used.wal) / max(1, float64(marks[3].done-marks[0].done))
	if work.produce != nil {
		r.left = produced.Load() - work.done.Load()
	}
	return r, nil
}

// between returns events a second, and microseconds of CPU an event.
func between(from, to heldMark) (rate, cpu float64) {
	n := float64(to.done - from.done)
	used := to.used.minus(from.used)
	if used.seen && n > 0 {
		cpu = (used.client + used.server).Seconds() * 1e6 / n
	}
	return n / to.at.Sub(from.at).Seconds(), cpu
}

// wait waits, or returns the error that comes first.
func (h *holding) wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case err := <-h.failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// keepProducing writes events at the rate: those of a tick in one transaction. What a slow
// transaction has delayed comes in the next one, a second's events at most.
func (h *holding) keepProducing(ctx context.Context, rate int, produced *atomic.Int64) error {
	if h.produce == nil {
		return nil
	}
	bodies := newBodies(rand.NewChaCha8([32]byte{9}))
	tick := time.NewTicker(heldTick)
	defer tick.Stop()
	began := time.Now()
	var due, done int64
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		due = int64(time.Since(began).Seconds() * float64(rate))
		n := min(due-done, int64(rate), int64(len(bodies)))
		if n <= 0 {
			continue
		}
		if err := h.produce(ctx, bodies[:n]); err != nil {
			return err
		}
		done = due
		produced.Add(n)
	}
}

// heldSize is a database's size, and the dead rows that its statistics tell of.
type heldSize struct{ size, dead int64 }

// sizeSQL returns one row: the bytes of the database, and its dead rows.
const sizeSQL = `
select pg_database_size(current_database()),
       (select coalesce(sum(n_dead_tup), 0)::bigint from pg_stat_user_tables)`

func (d *database) sizeAndDead(ctx context.Context) (s heldSize, err error) {
	err = d.pool.QueryRow(ctx, sizeSQL).Scan(&s.size, &s.dead)
	return s, err
}

func (r heldResult) line() string {
	return fmt.Sprintf("%-12s %5d/s asked; first %6.0f/s, last %6.0f/s: %.2f; CPU an event %.2f; "+
		"%d dead rows; %.0f B of WAL an event; grown %.1f MB; %d left",
		r.way.name, r.rate, r.first, r.last, r.ratio(), r.cpuRatio(), r.dead, r.walEach, float64(r.grown)/1e6, r.left)
}

func (r heldResult) ratio() float64 { return r.last / max(r.first, 1e-9) }

func (r heldResult) cpuRatio() float64 {
	if r.cpuFirst == 0 {
		return 0
	}
	return r.cpuLast / r.cpuFirst
}

// render is docs/results/held.md.
func (h held) render(ctx context.Context, srv *server, results []heldResult) string {
	var b strings.Builder
	fmt.Fprintf(&b, heldHead, h.length, time.Now().UTC().Format(time.DateOnly), headCommit(ctx), srv.version, h.rate, h.length, h.edge())
	for _, r := range results {
		fmt.Fprintf(&b, "| %s | %d | %.0f | %.0f | %.2f | %.2f | %d | %.0f | %.0f | %d |\n",
			r.way.label, r.rate, r.first, r.last, r.ratio(), r.cpuRatio(), r.dead, r.walEach, float64(r.grown)/1e6, r.left)
	}
	b.WriteString("\n")
	for _, r := range results {
		fmt.Fprintf(&b, "- %s: %s.\n", r.way.label, r.way.how)
	}
	return b.String()
}

const heldHead = `# The held snapshot

` + "`make held LENGTH=%v`" + ` wrote this page on %s, at %s, on PostgreSQL %s with its default durability.

Another transaction took a snapshot at the beginning and stayed open, so vacuum could remove
nothing. Events of 300 bytes came at %d a second, or at the most that a way reaches alone without
the snapshot, for %v each, one way after the other. The last %v are compared with the first.

![Beside a held snapshot: the last minutes, the first = 1](../charts/held.svg)

| Way | Rate | First, events a second | Last | Last / first | CPU an event, last / first | Dead rows | WAL, B an event | Grown, MB | Left |
|---|---|---|---|---|---|---|---|---|---|
`
