package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// step matches the statement of each step: it moves the ring's row to its next version.
var step = regexp.MustCompile(`update onlyonce\.rings`)

// rotationScenes are a rotator of each ring, with writers at two isolation levels.
func rotationScenes() (scenes []scene) {
	for _, of := range []struct {
		name    string
		ring    ring.Ring
		records func() records
	}{
		{"standard-keys", ring.StandardKeys(), func() records { return &keyed{claim: `select onlyonce.claim($1, $2)`} }},
		{
			"consumer-keys",
			ring.ConsumerKeys(),
			func() records { return &keyed{claim: `select onlyonce.claim_consumer($1, $2)`, cursor: true} },
		},
		{"outbox", ring.Outbox(), func() records { return &called{} }},
		{"events", ring.Events(), func() records { return &appended{} }},
	} {
		for _, level := range levels[:2] {
			rounds := 1
			if of.ring.Horizon {
				rounds = 2 // what is emptied is of the round before
			}
			scenes = append(scenes, scene{name: "rotation/" + of.name + "/" + level, epoch: step, snapshots: true, make: func() stage {
				return &rotating{ring: of.ring, level: pgx.TxIsoLevel(strings.ReplaceAll(level, "-", " ")), records: of.records(),
					rounds: rounds, kept: map[string]bool{}, fresh: map[string]int{}, found: map[string]int{}}
			}})
		}
	}
	return scenes
}

// records are what the segments of a ring hold.
type records interface {
	setUp(r *rig) error
	// put writes records in a transaction, and reports which of them were not there before.
	put(ctx context.Context, tx pgx.Tx, names ...string) (fresh []bool, err error)
	// read reads what is new, as the ring's readers do, so that it is not needed any more.
	read(r *rig) (names []string, err error)
	// copies: a record can be written twice, and the second is no new one.
	copies() bool
}

// rotating is a rotator whose segments are due as soon as something is in them. In each round one
// writer stays open until the rotator has announced the next segment, writes again, and commits; a
// second one writes copies of the first one's records beside it. Then all segments are closed, and
// those whose time has come are emptied: of keys, those of the rounds before, which are made two
// hours old under a horizon of one; of logs, those that were read. A third client claims keys of
// the present round all the time.
type rotating struct {
	ring    ring.Ring
	level   pgx.TxIsoLevel
	records records

	rounds  int // that are wanted
	round   int // that is under way
	stage   int // of the round
	at      progress
	before  []int16
	written chan error
	clients sync.WaitGroup
	end     func() // of the clients

	mu    sync.Mutex
	kept  map[string]bool // committed, and to be found
	fresh map[string]int  // by committed transactions
	found map[string]int  // by readers
	wrong []string
}

const (
	// horizonSQL. In: ring.
	horizonSQL = `update onlyonce.rings set horizon = '1 hour' where name = $1`
	ringSQL    = `
select cur,
       draining,
       closed,
       retired,
       version,
       (select last_value from SEQUENCE)
  from onlyonce.rings where name = $1`
	// ageSQL makes segments two hours older. In: ring, slots.
	ageSQL = `
update onlyonce.segments
   set opened_at = opened_at - interval '2 hours', closed_at = closed_at - interval '2 hours'
 where ring = $1 and slot = any ($2)`
)

// setUp implements stage.
func (x *rotating) setUp(r *rig) error {
	// Rows that were deleted between histories leave their pages.
	if _, err := r.db.Pool.Exec(r.ctx, "truncate "+strings.Join(x.ring.Tables, ", ")); err != nil {
		return err
	}
	if x.ring.Horizon {
		if _, err := r.db.Pool.Exec(r.ctx, horizonSQL, x.ring.Name); err != nil {
			return err
		}
	}
	if err := x.records.setUp(r); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.ctx)
	x.end = func() {
		cancel()
		x.clients.Wait()
	}
	r.atEnd(x.end)
	if x.records.copies() {
		x.clients.Go(func() { x.ask(ctx, r) })
	}
	return nil
}

// more implements stage.
func (x *rotating) more(*rig) error {
	x.rounds++
	return nil
}

// start implements stage.
func (x *rotating) start(r *rig, pool *pgxpool.Pool) (func() error, error) {
	b := r.bound
	cfg := ring.Config{
		MaxBytes:    1,
		Retention:   time.Millisecond,
		LeaseTTL:    max(b, time.Second),
		LockTimeout: b / 20,
		LockPause:   b / 100,
		Timeout:     max(3*b, time.Second),
		Interval:    b / 20,
		Hooks: ring.Hooks{
			Failed:  func(err error) { r.say("rotator: %.200v", err) },
			Stepped: func(o ring.StepResult) { r.say("rotator: %s %d", o.Action, o.Slot) },
		},
	}
	return r.process(func(ctx context.Context) error {
		rotator, err := ring.New(pool, x.ring, cfg)
		if err != nil {
			return err
		}
		return rotator.Run(ctx)
	}), nil
}

// row is the ring's.
type row struct {
	cur               int16
	draining, retired *int16
	closed            []int16
	version, sequence int64
}

func (x *rotating) row(r *rig) (w row, err error) {
	err = r.db.Pool.QueryRow(r.ctx, strings.ReplaceAll(ringSQL, "SEQUENCE", x.ring.Sequence), x.ring.Name).Scan(
		&w.cur,
		&w.draining,
		&w.closed,
		&w.retired,
		&w.version,
		&w.sequence,
	)
	return w, err
}

// progress changes with each step of the rotator and each stage of a round.
type progress struct {
	round, stage int
	version      int64
}

// The stages of a round.
const (
	toWrite = iota
	writing
	closing
	emptying
)

// done implements stage: it takes the rounds one stage further if it can.
func (x *rotating) done(r *rig) (bool, error) {
	if x.round == x.rounds {
		return true, nil
	}
	w, err := x.row(r)
	if err != nil {
		return false, err
	}
	if at := (progress{x.round, x.stage, w.version}); at != x.at {
		x.at = at
		r.goesOn()
	}
	switch x.stage {
	case toWrite:
		x.before = w.closed
		written := make(chan error, 1)
		x.written = written
		x.clients.Go(func() { written <- x.write(r) })
		x.stage = writing
	case writing:
		select {
		case err := <-x.written:
			x.stage = closing
			return false, err
		default:
		}
	case closing: // all that was written is in closed segments
		var size int64
		if err := r.db.Pool.QueryRow(r.ctx, `select pg_relation_size($1::text::regclass)`, x.ring.Tables[w.cur]).Scan(&size); err != nil {
			return false, err
		}
		if w.draining != nil || size > 0 {
			// Writers that met each step and ran again may have filled the ring with undone rows.
			if len(w.closed) < len(x.ring.Tables)-2 {
				return false, nil
			}
			return false, x.release(r)
		}
		x.stage = emptying
		return false, x.release(r)
	case emptying:
		held := func(slot int16) bool {
			return slices.Contains(w.closed, slot) || w.retired != nil && *w.retired == slot
		}
		gone := len(w.closed) == 0 && w.retired == nil
		if x.ring.Horizon {
			gone = !slices.ContainsFunc(x.before, held)
		}
		if gone {
			x.stage = toWrite
			x.round++
		}
	}
	return false, nil
}

// release makes what the rotator may empty: of keys the segments of earlier rounds, of a log all
// that readers have read.
func (x *rotating) release(r *rig) error {
	if x.ring.Horizon {
		x.mu.Lock()
		for name := range x.kept {
			if !strings.HasPrefix(name, x.prefix()) {
				delete(x.kept, name)
			}
		}
		x.mu.Unlock()
		_, err := r.db.Pool.Exec(r.ctx, ageSQL, x.ring.Name, x.before)
		return err
	}
	return x.read(r)
}

func (x *rotating) read(r *rig) error {
	names, err := x.records.read(r)
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, n := range names {
		x.found[n]++
	}
	return err
}

func (x *rotating) prefix() string { return fmt.Sprintf("round-%d/", x.round) }

// write is both writers of a round.
func (x *rotating) write(r *rig) error {
	p := x.prefix()
	first := []string{p + "a", p + "b"}
	second := []string{p + "c"}
	if x.records.copies() {
		second = []string{p + "a", p + "b", p + "c"}
	}
	open := make(chan struct{})
	var opened sync.Once
	both := make(chan error, 2)
	go func() {
		both <- x.commit(r, func(ctx context.Context, tx pgx.Tx) (fresh []bool, err error) {
			for i, name := range first {
				if i > 0 {
					if err := x.announced(r); err != nil {
						return nil, err
					}
				}
				f, err := x.records.put(ctx, tx, name)
				if err != nil {
					return nil, err
				}
				fresh = append(fresh, f...)
				opened.Do(func() { close(open) })
			}
			return fresh, nil
		}, first...)
	}()
	go func() {
		select {
		case <-open:
		case <-r.ctx.Done():
		}
		both <- x.commit(r, func(ctx context.Context, tx pgx.Tx) ([]bool, error) { return x.records.put(ctx, tx, second...) }, second...)
	}()
	err := <-both
	if other := <-both; err == nil {
		err = other
	}
	return err
}

// announced waits until the rotator has left the segment that it met in this round.
func (x *rotating) announced(r *rig) error {
	return r.until("announced, the next segment", func() (bool, error) {
		w, err := x.row(r)
		return w.draining != nil || len(w.closed) > len(x.before), err
	})
}

// commit runs a writer's transaction until it commits, and notes what was new in it.
func (x *rotating) commit(r *rig, put func(context.Context, pgx.Tx) ([]bool, error), names ...string) error {
	ctx, cancel := context.WithTimeout(r.ctx, r.patience)
	defer cancel()
	for {
		var fresh []bool
		err := pgx.BeginTxFunc(ctx, r.db.Pool, pgx.TxOptions{IsoLevel: x.level}, func(tx pgx.Tx) (err error) {
			fresh, err = put(ctx, tx)
			return err
		})
		if again(err) {
			continue
		}
		if ctx.Err() != nil && r.ctx.Err() == nil {
			return broken("waits beyond its bound: a writer, for %v: %s", r.patience, strings.Join(r.sessions(), " | "))
		}
		if err != nil {
			return err
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		for i, name := range names {
			x.kept[name] = true
			if fresh[i] {
				x.fresh[name]++
			}
		}
		return nil
	}
}

// again reports whether a transaction is run again: it met a step of the rotator, or a copy.
func again(err error) bool {
	switch guard.SQLState(err) {
	case "40001", "40P01", "55P03":
		return true
	}
	return false
}

// ask claims keys that are there, all the time. It is one more client whose old snapshots and open
// transactions the rotator meets.
func (x *rotating) ask(ctx context.Context, r *rig) {
	for ctx.Err() == nil {
		for _, name := range x.names() {
			if err := x.claimed(ctx, r, name); err != nil && ctx.Err() == nil {
				x.note("a claim of %s: %v", name, err)
				return
			}
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// names are the names of what is kept.
func (x *rotating) names() (names []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for name := range x.kept {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// claimed claims one key, which must be a duplicate if its horizon has not passed meanwhile.
func (x *rotating) claimed(ctx context.Context, r *rig, name string) error {
	ctx, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	for {
		tx, err := r.db.Pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: x.level})
		if err != nil {
			return err
		}
		fresh, err := x.records.put(ctx, tx, name)
		_ = tx.Rollback(ctx)
		if again(err) {
			continue
		}
		if err == nil && fresh[0] {
			x.mu.Lock()
			kept := x.kept[name]
			x.mu.Unlock()
			if kept {
				x.note("I2 %s is a duplicate, and was claimed as new", name)
			}
		}
		return err
	}
}

func (x *rotating) note(format string, args ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.wrong = append(x.wrong, fmt.Sprintf(format, args...))
}

// check implements stage.
func (x *rotating) check(r *rig) ([]string, error) {
	x.end()
	if x.records.copies() {
		for _, name := range x.names() {
			if err := x.claimed(r.ctx, r, name); err != nil {
				return nil, err
			}
		}
	} else if err := x.read(r); err != nil {
		return nil, err
	}
	w, err := x.row(r)
	if err != nil {
		return nil, err
	}
	if w.version != w.sequence {
		x.note("the ring's row has version %d, and its sequence %d", w.version, w.sequence)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for name, n := range x.fresh {
		if n != 1 {
			x.wrong = append(x.wrong, fmt.Sprintf("I2 %s was new in %d transactions", name, n))
		}
	}
	for name := range x.kept {
		if n := x.found[name]; !x.records.copies() && n != 1 {
			x.wrong = append(x.wrong, fmt.Sprintf("I1 %s was found %d times", name, n))
		}
	}
	slices.Sort(x.wrong)
	return x.wrong, nil
}
