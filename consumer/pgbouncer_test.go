package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// Through PgBouncer in transaction mode a client has one server connection for a transaction, and
// another one for the next. So nothing may be kept in the session: no prepared statement, no
// setting, no advisory lock. These are the two modes of pgx that name no statement:
var unnamed = []string{"exec", "cache_describe"}

// Sixteen workers share three server connections. Copies of messages make batches fall back to
// claiming first.
func TestPgBouncerEveryMessageTakesEffectOnce(t *testing.T) {
	for _, mode := range unnamed {
		for name, h := range map[string]consumer.HandlerFunc{"waiting": effect, "queued": queued} {
			t.Run(mode+" "+name, func(t *testing.T) {
				t.Parallel()
				const partitions, each = 16, 40
				r := newRig(t, partitions)
				bouncer := pgtest.PgBouncer(t, r.pool.Config().ConnString(), 3)
				var values []string
				for p := range int32(partitions) {
					values = append(values, r.numbered(p, each)...)
				}
				for i := range partitions { // copies, in other partitions
					v := fmt.Sprintf("p%d-%d", i, i)
					r.log.Append(int32((i+1)%partitions), v, id(v))
				}
				stop := r.startOn(r.src, pgtest.Pool(t, bouncer.Mode(mode)+"&pool_max_conns=32"), h, testConfig())
				for p := range int32(partitions) {
					r.reaches(p, each+1)
				}
				stop()
				r.once(values...)
				if len(r.reasons()) > 0 {
					t.Errorf("parked: %v", r.reasons())
				}
				if n := r.count(`select count(*) from onlyonce.inbox`); n != len(values) {
					t.Errorf("%d keys in the inbox, want %d", n, len(values))
				}
				fallbacks := 0
				for _, e := range r.events {
					if e.Fallback {
						fallbacks++
					}
				}
				if fallbacks == 0 {
					t.Error("no batch fell back, although there were copies")
				}
			})
		}
	}
}

// A message that fails is parked alone, whatever way it fails in, and its neighbours are applied.
func TestPgBouncerFailingMessagesAreParkedAlone(t *testing.T) {
	for _, mode := range unnamed {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			bouncer := pgtest.PgBouncer(t, r.pool.Config().ConnString(), 2)
			r.exec(`create table amounts (n int check (n > 0), unique (n) deferrable initially deferred)`)
			values := r.numbered(0, 30)
			stop := r.startOn(
				r.src,
				pgtest.Pool(t, bouncer.Mode(mode)),
				func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
					switch m.Offset {
					case 3:
						return consumer.Permanent(errBoom)
					case 7:
						return errBoom
					case 12:
						// Refused while others are queued after it.
						tx.Queue(`insert into amounts values (0)`)
					case 15, 16:
						tx.Queue(`insert into amounts values (5)`) // the second is refused at the seal
					case 21:
						_, _ = tx.Exec(ctx, `select 1/0`) // swallowed
					case 24:
						panic("at the handler")
					}
					return queued(ctx, tx, m)
				},
				testConfig(),
			)
			r.reaches(0, 30)
			stop()
			var good []string
			for i, v := range values {
				switch i {
				case 3, 7, 12, 16, 21, 24:
				default:
					good = append(good, v)
				}
			}
			r.once(good...)
			if got := fmt.Sprint(r.reasons()); got != "map[12:exhausted 16:exhausted 21:exhausted 24:exhausted 3:permanent 7:exhausted]" {
				t.Errorf("parked: %s", got)
			}
		})
	}
}

// T4 with PgBouncer: the server connection dies at COMMIT, before the server gets it or before its
// answer is passed on. The client is not cut off: PgBouncer sends it an error message that looks
// like one of the server's.
func TestT4PgBouncerLosesTheServerAtCommit(t *testing.T) {
	for name, after := range map[string]bool{"before the server got it": false, "before the answer": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			cut := &cuttingProxy{t: t, every: 3, after: after}
			bouncer := pgtest.PgBouncer(t, cut.start(r.pool.Config().ConnString()), 2)
			values := r.numbered(0, 200)
			cfg := testConfig()
			// no key hides a double
			cfg.Key = nil
			cfg.PositionsOnly = true
			stop := r.startOn(r.src, pgtest.Pool(t, bouncer.Exec()), queued, cfg)
			r.reaches(0, 200)
			stop()
			r.once(values...)
			if len(r.reasons()) > 0 {
				t.Errorf("parked: %v", r.reasons())
			}
			if n := cut.cuts.Load(); n < 3 {
				t.Errorf("only %d server connections were cut", n)
			}
		})
	}
}

// Server connections that are terminated at any moment: nothing is lost, doubled or parked, once
// they stop being.
func TestPgBouncerServerConnectionsAreTerminated(t *testing.T) {
	t.Parallel()
	const partitions, each = 4, 300
	r := newRig(t, partitions)
	bouncer := pgtest.PgBouncer(t, r.pool.Config().ConnString(), 3)
	var values []string
	for p := range int32(partitions) {
		values = append(values, r.numbered(p, each)...)
	}
	cfg := testConfig()
	cfg.MaxAttempts = 1000 // a connection that dies under a message that is alone counts against it
	stop := r.startOn(r.src, pgtest.Pool(t, bouncer.Exec()+"&pool_max_conns=8"), effect, cfg)
	// Run returns if its start is cut off.
	until(t, "the first effect", func() bool { return r.count(`select count(*) from effects`) > 0 })
	kills := 0
	until(t, "20 terminated server connections, or the end of the work", func() bool {
		kills += r.count(`select count(*) filter (where pg_terminate_backend(pid)) from pg_stat_activity
			where datname = current_database() and pid <> pg_backend_pid() and state <> 'idle'`)
		return kills >= 20 || r.count(`select count(*) from effects`) == len(values)
	})
	if kills < 5 {
		t.Errorf("only %d server connections were terminated", kills)
	}
	for p := range int32(partitions) {
		r.reaches(p, each)
	}
	stop()
	r.once(values...)
	if len(r.reasons()) > 0 {
		t.Errorf("parked: %v", r.reasons())
	}
}

// F1 with PgBouncer: redelivered messages do nothing, after a reset of the group's offsets and
// after a crash.
func TestF1PgBouncerRedelivery(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	bouncer := pgtest.PgBouncer(t, r.pool.Config().ConnString(), 2)
	pool := pgtest.Pool(t, bouncer.Exec())
	cfg := testConfig()
	cfg.Key = nil
	cfg.PositionsOnly = true
	values := r.numbered(0, 30)
	stop := r.startOn(r.src, pool, queued, cfg)
	r.reaches(0, 30)
	stop()
	r.log.SetCommitted("stock", 0, 0, "")
	r.log.Append(0, "new", id("new"))
	stop = r.startOn(r.src, pool, queued, cfg)
	r.reaches(0, 31)
	stop()
	r.once(append(values, "new")...)
}

// T1 with PgBouncer: the process is killed when its effects are written but not committed.
// PgBouncer is still running, and must not hand the open transaction to the next client.
func TestT1PgBouncerKilledBeforeCommit(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	bouncer := pgtest.PgBouncer(t, r.pool.Config().ConnString(), 1)
	var values []string
	r.log, values = crashLog()
	r.src.Log = r.log
	state := runChild(t, "before-commit", bouncer.Exec())
	if ws, ok := state.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		t.Fatalf("the child ended with %v, not by SIGKILL", state)
	}
	stop := r.startOn(r.src, pgtest.Pool(t, bouncer.Exec()), queued, testConfig())
	r.reaches(0, 30)
	stop()
	r.once(values...)
}

// sessionSQL is what a session has that outlives its transactions.
const sessionSQL = `
select current_setting('lock_timeout'),
       current_setting('statement_timeout'),
       current_setting('idle_in_transaction_session_timeout'),
       current_setting('transaction_isolation'),
       current_setting('synchronous_commit'),
       coalesce(current_setting('onlyonce.fenced', true), ''),
       coalesce(current_setting('onlyonce.sealed', true), ''),
       (select count(*) from pg_prepared_statements where name <> ''),
       (select count(*) from pg_cursors where name <> ''),
       (select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory')`

// The engine sets everything for one transaction only. The next client of the one server connection
// may be another program, so the session must be as a new one is: after commits, fallbacks,
// rollbacks and a message that was alone.
func TestPgBouncerNothingIsLeftInTheSession(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	bouncer := pgtest.PgBouncer(t, r.pool.Config().ConnString(), 1)
	r.numbered(0, 30)
	r.log.Append(0, "p0-1", id("p0-1"))
	r.log.Append(0, "other payload", id("p0-2"))
	stop := r.startOn(r.src, pgtest.Pool(t, bouncer.Exec()), func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset%10 == 7 {
			return errBoom
		}
		return queued(ctx, tx, m)
	}, testConfig())
	r.reaches(0, 32)
	stop()
	if got := fmt.Sprint(r.reasons()); got != "map[17:exhausted 27:exhausted 31:conflict 7:exhausted]" {
		t.Errorf("parked: %s", got)
	}
	state := func(url string) (pid int, all []any) {
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(context.Background()) }()
		if err := conn.QueryRow(t.Context(), `select pg_backend_pid()`).Scan(&pid); err != nil {
			t.Fatal(err)
		}
		rows, err := conn.Query(t.Context(), sessionSQL)
		if err != nil {
			t.Fatal(err)
		}
		if all, err = pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) ([]any, error) { return row.Values() }); err != nil {
			t.Fatal(err)
		}
		return pid, all
	}
	// All clients of this PgBouncer had one backend, so its session is the one that the engine
	// used.
	_, used := state(bouncer.Exec())
	_, fresh := state(r.pool.Config().ConnString() + "&default_query_exec_mode=exec")
	if fmt.Sprint(used) != fmt.Sprint(fresh) {
		t.Errorf("the session that the engine used has\n%v and a new one\n%v", used, fresh)
	}
}

// cuttingProxy is a proxy for a server that loses a connection at each n-th COMMIT.
type cuttingProxy struct {
	t       *testing.T
	every   int32
	after   bool // the server carries it out, and its answer is lost
	commits atomic.Int32
	cuts    atomic.Int32
}

// start returns the address to use for the server's.
func (p *cuttingProxy) start(server string) string {
	p.t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		p.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		p.t.Fatal(err)
	}
	to := u.Host
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { p.serve(client, to) })
		}
	})
	// PgBouncer, stopped before, has closed its connections.
	p.t.Cleanup(func() { _ = l.Close(); all.Wait() })
	u.Host = l.Addr().String()
	return u.String()
}

func (p *cuttingProxy) serve(client net.Conn, to string) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	var silent atomic.Bool
	var both sync.WaitGroup
	both.Go(func() {
		defer func() { _ = server.Close() }()
		buf := make([]byte, 64<<10)
		for {
			n, err := client.Read(buf)
			if bytes.Contains(buf[:n], []byte("commit\x00")) && p.commits.Add(1)%p.every == 0 {
				p.cuts.Add(1)
				if !p.after {
					_ = client.Close()
					return
				}
				silent.Store(true) // before the server gets it, so before it answers
			}
			if _, werr := server.Write(buf[:n]); err != nil || werr != nil {
				return
			}
		}
	})
	both.Go(func() {
		defer func() { _ = client.Close() }()
		var kept []byte
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			if silent.Load() {
				if kept = append(kept, buf[:n]...); bytes.Contains(kept, []byte{'Z', 0, 0, 0, 5, 'I'}) {
					return // carried out
				}
			} else if _, werr := client.Write(buf[:n]); werr != nil {
				return
			}
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
					p.t.Log(err)
				}
				return
			}
		}
	})
	both.Wait()
}
