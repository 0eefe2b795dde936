package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/rig/histories"
	"github.com/onlyonce/onlyonce/internal/rig/wire"
	"github.com/onlyonce/onlyonce/internal/rig/workerdb"
)

// rig is the environment of a scene: a database, and a connection to it that the adversary
// controls.
type rig struct {
	*histories.Timeline
	ctx    context.Context
	worker *worker
	db     *workerdb.DB
	scene  scene
	pool   *pgxpool.Pool // through the wire: the process under test has it; its successor has db.Pool
	wire   *wire.Wire

	// bound is the value of each bound of the process, or a part of it. patience is how long the
	// rig waits before it reports that something waits beyond its bound.
	bound, patience time.Duration

	mu     sync.Mutex
	target *history // nil: a clean run
	phase  phase
	epoch  int // how many statements have come that begin one
	counts map[string]int
	sent   []point
	struck chan struct{} // closed when the fault has happened
	// progress is when a wait last began, or what it waits for went on.
	progress time.Time
	dead     bool // what was delivered late found its session ended

	after []func() // what ends what a stage has started
}

func newRig(ctx context.Context, w *worker, o *options, h history) (*rig, error) {
	db, err := w.database(ctx, near)
	if err != nil {
		return nil, fmt.Errorf("a database: %w", err)
	}
	r := &rig{
		Timeline: histories.NewTimeline(),
		ctx:      ctx,
		worker:   w,
		db:       db,
		scene:    h.scene,
		bound:    o.bound,
		patience: o.patience,
		counts:   map[string]int{},
		struck:   make(chan struct{}),
	}
	if h.fault.name != "" {
		r.target = &h
	}
	r.wire = &wire.Wire{At: r.at, Answered: func(a wire.Answer) { r.Answered(fmt.Sprintf("#%d is answered ", a.Conn), a) }}
	cfg, err := pgxpool.ParseConfig(db.Address())
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 6
	// A pool pings connections that were idle for a second, so the message depends on the machine's
	// speed. Without it the process itself meets the connection that is dead.
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	cfg.ConnConfig.ConnectTimeout = r.bound
	cfg.ConnConfig.DialFunc = r.wire.Dial(cfg.ConnConfig.DialFunc)
	r.pool, err = pgxpool.NewWithConfig(ctx, cfg)
	return r, err
}

// idleTimeout is how long a session may be idle in its transaction. A message that is delivered
// late should find its session alive, however slow the machine is. After all other faults the
// process must cope with an abandoned session.
func (r *rig) idleTimeout() time.Duration {
	if r.target != nil && r.target.fault.name == "late" {
		return 15 * r.bound
	}
	return 3 * r.bound
}

// close ends what is left. A process that holds a connection for longer than the patience loses it:
// its pool is left to it, and its sessions end before the next history.
func (r *rig) close() {
	for _, end := range r.after {
		end()
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		r.wire.Close()
		r.pool.Close()
	}()
	_ = r.ends(closed, "the pool")
}

// atEnd calls a function when the history is over.
func (r *rig) atEnd(end func()) { r.after = append(r.after, end) }

// ends waits for the end of something that was told to stop.
func (r *rig) ends(ended <-chan struct{}, what string) error {
	select {
	case <-ended:
		return nil
	case <-time.After(r.patience):
		return broken("waits beyond its bound: a stop of %s takes longer than %v", what, r.patience)
	}
}

// at is called at each message of the process under test.
func (r *rig) at(m wire.Message) wire.Action {
	if m.Kind == wire.Other {
		return wire.Pass
	}
	l := wire.Label(m)
	r.mu.Lock()
	defer r.mu.Unlock()
	if of := r.scene.epoch; of != nil {
		l = fmt.Sprintf("epoch-%d-%s", r.epoch, l)
		if (m.Kind == wire.Bind || m.Kind == wire.Query) && of.MatchString(m.SQL) {
			r.epoch++
		}
	}
	r.counts[l]++
	p := point{label: l, n: r.counts[l], kind: m.Kind, phase: r.phase, conn: m.Conn, lasts: lasting.MatchString(m.SQL)}
	r.sent = append(r.sent, p)
	if r.target == nil || p.String() != r.target.point.String() || r.hasStruck() {
		r.Say(histories.Minor, "#%d sends %s", m.Conn, p)
		return wire.Pass
	}
	r.Say(histories.Fault, "#%d sends %s  <<<<<< %s", m.Conn, p, strings.ToUpper(r.target.fault.name))
	close(r.struck)
	return r.target.fault.action
}

// say adds a line to the timeline.
func (r *rig) say(format string, args ...any) { r.Say(histories.Plain, format, args...) }

// enter begins a phase.
func (r *rig) enter(p phase) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase = p
}

func (r *rig) hasStruck() bool {
	select {
	case <-r.struck:
		return true
	default:
		return false
	}
}

// recorded returns the messages that were sent.
func (r *rig) recorded() []point {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.sent)
}

// timeline is the part of what happened that explains a breach: what lies around the fault, and the
// end.
func (r *rig) timeline() string {
	const before, most = 14, 70
	all := r.Lines()
	fault := slices.IndexFunc(all, func(l histories.Line) bool { return l.Mark == histories.Fault })
	var b strings.Builder
	all = all[max(fault-before, 0):]
	for i, l := range all {
		switch cut := len(all) - most; {
		case cut <= 0, i < most/2, i >= most/2+cut:
			b.WriteString("\n    " + l.Text)
		case i == most/2:
			_, _ = fmt.Fprintf(&b, "\n              ... %d lines ...", cut)
		}
	}
	return b.String()
}

// breach reports that an invariant does not hold.
type breach struct{ what []string }

func (b *breach) Error() string { return strings.Join(b.what, "; ") }

func broken(format string, args ...any) error { return &breach{[]string{fmt.Sprintf(format, args...)}} }

// goesOn notes that what is waited for goes on, so the patience begins again. A wait is at most
// three times as long in all.
func (r *rig) goesOn() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.progress = time.Now()
}

// waitedFor is how long nothing has gone on.
func (r *rig) waitedFor() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Since(r.progress)
}

// until polls a condition, less and less often. It returns a breach if the condition does not
// become true in time.
func (r *rig) until(what string, cond func() (bool, error)) error {
	began := time.Now()
	r.goesOn()
	for {
		ok, err := cond()
		if ok || err != nil {
			return err
		}
		select {
		case <-time.After(min(4*time.Millisecond+time.Since(began)/16, 30*time.Millisecond)):
		case <-r.ctx.Done():
			return r.ctx.Err()
		}
		if r.waitedFor() > r.patience || time.Since(began) > 3*r.patience {
			r.say("nothing more happens: %s", strings.Join(r.sessions(), " | "))
			return broken("waits beyond its bound: after %v not %s", r.patience, what)
		}
	}
}

// texts returns the rows of a query that has one column.
func texts(ctx context.Context, pool *pgxpool.Pool, sql string) ([]string, error) {
	rows, err := pool.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// sessions describes what the server's sessions do.
func (r *rig) sessions() []string {
	found, err := texts(r.ctx, r.db.Pool, `
select format(
  'pid %s %s %s blocked by %s: %s',
  pid,
  state,
  coalesce(wait_event, '-'),
  pg_blocking_pids(pid),
  left(regexp_replace(query, '\s+', ' ', 'g'), 70)
)
  from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`)
	if err != nil {
		return []string{err.Error()}
	}
	return found
}

// inTheWay reports whether a session whose client is cut off from it keeps another one waiting: by
// a lock, or in a scene that waits for all transactions of the server, by its own. Such a session
// may be in the middle of a round trip, where idle_in_transaction_session_timeout does not end it.
func (r *rig) inTheWay() (blocks bool, err error) {
	pids := r.wire.Pending()
	if len(pids) == 0 {
		return false, nil
	}
	of := make([]int32, len(pids))
	for i, p := range pids {
		of[i] = int32(p)
	}
	err = r.db.Pool.QueryRow(r.ctx, `
select exists (select from pg_locks l, unnest(pg_blocking_pids(l.pid)) b where not l.granted and b = any ($1::int[]))
    or $2
and exists (select from pg_stat_activity
             where pid = any ($1::int[]) and coalesce(backend_xid, backend_xmin) is not null)`,
		of, r.scene.snapshots && r.waitedFor() > 5*r.bound).Scan(&blocks)
	return blocks, err
}

// deliver lets the server have the messages that were kept back.
func (r *rig) deliver(why string) error {
	r.say("%s: what was kept back is delivered", why)
	ctx, cancel := context.WithTimeout(r.ctx, r.patience)
	defer cancel()
	n, err := r.wire.Deliver(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return broken("waits beyond its bound: the server does not come to an end with what was delivered late: %s",
			strings.Join(r.sessions(), " | "))
	}
	if n == 0 {
		r.say("its session had ended")
		r.dead = true
	}
	return err
}

// logger writes what a process logs into the timeline.
func (r *rig) logger() *slog.Logger { return r.Logger("process: ", slog.LevelWarn) }

// process runs a function until it is stopped, and again if it returns, as a supervisor does.
func (r *rig) process(run func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(r.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			if err := run(ctx); err != nil {
				r.say("the process ends with: %.300v", err)
			}
			select {
			case <-time.After(5 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	return func() error {
		cancel()
		return r.ends(ended, "the process")
	}
}
