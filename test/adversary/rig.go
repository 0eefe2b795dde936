package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/wire"
)

// rig is the environment of a scene: a database, and a connection to it that the adversary
// controls.
type rig struct {
	ctx   context.Context
	db    *database
	scene scene
	pool  *pgxpool.Pool // through the wire: the process under test has it
	next  *pgxpool.Pool // its successor's
	wire  *wire.Wire

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
	began  time.Time
	lines  []string
	// progress is when a wait last began, or what it waits for went on.
	progress time.Time
	fault    int  // line of the fault
	dead     bool // what was delivered late found its session ended
}

func newRig(ctx context.Context, db *database, o *options, s scene, target *history) (*rig, error) {
	r := &rig{ctx: ctx, db: db, scene: s, bound: o.bound, patience: o.patience, target: target, counts: map[string]int{}, struck: make(chan struct{}), began: time.Now()}
	r.wire = &wire.Wire{At: r.at, Answered: r.answered}
	var err error
	if r.next, err = db.successors(ctx, func(name string) (*pgxpool.Pool, error) { return r.open(ctx, name, nil) }); err != nil {
		return nil, err
	}
	r.pool, err = r.open(ctx, applicationName, r.wire)
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

// open returns a pool of the worker's database.
func (r *rig) open(ctx context.Context, name string, w *wire.Wire) (*pgxpool.Pool, error) {
	return r.openDatabase(ctx, r.db.name, name, w)
}

// openDatabase returns a pool of a database of the worker's server.
func (r *rig) openDatabase(ctx context.Context, database, name string, w *wire.Wire) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(r.db.server.address(database))
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 6
	// A pool pings connections that were idle for a second, so the message depends on the machine's
	// speed. Without it the process itself meets the connection that is dead.
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	cfg.ConnConfig.RuntimeParams["application_name"] = name
	cfg.ConnConfig.ConnectTimeout = r.bound
	if w != nil {
		cfg.ConnConfig.DialFunc = w.Dial(cfg.ConnConfig.DialFunc)
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}

// close ends what is left. A process that holds a connection for longer than the patience loses it:
// its pool is left to it, and empty ends its sessions.
func (r *rig) close() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		r.wire.Close()
		r.pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(r.patience):
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
		r.note("#%d sends %s", m.Conn, p)
		return wire.Pass
	}
	r.fault = len(r.lines)
	r.note("#%d sends %s  <<<<<< %s", m.Conn, p, strings.ToUpper(r.target.fault.name))
	close(r.struck)
	return r.target.fault.action
}

func (r *rig) answered(a wire.Answer) {
	if strings.HasPrefix(a.Text, "ERROR") || a.Text == "COMMIT" || a.Text == "ROLLBACK" {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.note("#%d is answered %.160s", a.Conn, a.Text)
	}
}

// note writes a line of the timeline. The caller has the lock.
func (r *rig) note(format string, args ...any) {
	r.lines = append(r.lines, fmt.Sprintf("%8.3fs  ", time.Since(r.began).Seconds())+fmt.Sprintf(format, args...))
}

// say is note for a caller without the lock.
func (r *rig) say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note(format, args...)
}

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
	return append([]point(nil), r.sent...)
}

// timeline is the part of what happened that explains a breach.
func (r *rig) timeline() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	from, most := max(r.fault-14, 0), 70
	lines := r.lines[from:]
	if len(lines) > most {
		cut := len(lines) - most
		lines = append(append(append([]string(nil), lines[:most/2]...), fmt.Sprintf("          ... %d lines ...", cut)), lines[most/2+cut:]...)
	}
	return lines
}

// breach reports that an invariant does not hold.
type breach struct{ what []string }

func (b *breach) Error() string { return strings.Join(b.what, "; ") }

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
			return &breach{[]string{fmt.Sprintf("waits beyond its bound: after %v not %s", r.patience, what)}}
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
	found, err := texts(r.ctx, r.db.pool, `
select format('pid %s %s %s blocked by %s: %s', pid, state, coalesce(wait_event, '-'), pg_blocking_pids(pid), left(regexp_replace(query, '\s+', ' ', 'g'), 70))
  from pg_stat_activity where datname = current_database() and application_name <> ''`)
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
	err = r.db.pool.QueryRow(r.ctx, `
select exists (select from pg_locks l, unnest(pg_blocking_pids(l.pid)) b where not l.granted and b = any ($1::int[]))
    or $2 and exists (select from pg_stat_activity where pid = any ($1::int[]) and coalesce(backend_xid, backend_xmin) is not null)`,
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
		return &breach{[]string{fmt.Sprintf("waits beyond its bound: the server does not come to an end with what was delivered late: %s", strings.Join(r.sessions(), " | "))}}
	}
	if n == 0 {
		r.say("its session had ended")
		r.dead = true
	}
	return err
}

// logger writes what a process logs into the timeline.
func (r *rig) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(logLines{r}, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: short}))
}

func short(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
		return slog.Attr{}
	}
	return a
}

type logLines struct{ r *rig }

func (l logLines) Write(b []byte) (int, error) {
	l.r.say("process: %.300s", strings.TrimSpace(string(b)))
	return len(b), nil
}

var _ io.Writer = logLines{}

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
		select {
		case <-ended:
			return nil
		case <-time.After(r.patience):
			return &breach{[]string{fmt.Sprintf("waits beyond its bound: a stop takes longer than %v", r.patience)}}
		}
	}
}
