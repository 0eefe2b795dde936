package wire_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/rig/wire"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var patience = pgtest.Patience(30 * time.Second)

const insert = `insert into rows values (1)`

// connect opens one connection through a wire.
func connect(t *testing.T, url string, w *wire.Wire) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.DialFunc = w.Dial(cfg.DialFunc)
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close(context.Background())
		w.Close()
	})
	return conn
}

func rows(t *testing.T, pool *pgxpool.Pool) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `select count(*) from rows`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Each action does what the table of the package's documentation says: to the server, and to the
// client.
func TestActions(t *testing.T) {
	for _, c := range []struct {
		what      wire.Action
		now       int  // rows while the message is kept back
		late      int  // rows when it was delivered
		breaks    bool // the client sees the connection break, and does not wait for its bound
		live      bool // the session outlives its client
		delivered int
	}{
		{wire.Unsent, 0, 0, true, false, 0},
		{wire.Unheard, 1, 1, true, false, 0},
		{wire.Held, 0, 1, true, true, 1},
		{wire.Dropped, 0, 0, true, true, 0},
		{wire.Mute, 1, 1, false, true, 0},
		{wire.Silent, 0, 0, false, false, 0},
		{wire.Late, 0, 1, false, true, 1},
	} {
		t.Run(c.what.String(), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.DB(t)
			if _, err := pool.Exec(t.Context(), `create table rows (n int)`); err != nil {
				t.Fatal(err)
			}
			w := &wire.Wire{At: wire.Statement(insert, func(int) wire.Action { return c.what })}
			conn := connect(t, pool.Config().ConnString(), w)
			bound := patience
			if !c.breaks {
				bound = 200 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), bound)
			defer cancel()
			_, err := conn.Exec(ctx, insert)
			if late := errors.Is(err, context.DeadlineExceeded); err == nil || late == c.breaks {
				t.Errorf("the client got %v", err)
			}
			_ = conn.Close(context.Background())
			pgtest.Until(t, patience, "the server has done what it was told", func() bool { return rows(t, pool) >= c.now })
			if n := rows(t, pool); n != c.now {
				t.Errorf("%d rows while the message is kept back", n)
			}
			pgtest.Until(t, patience, "the session to end, or not", func() bool { return (len(w.Pending()) == 1) == c.live })
			ctx, cancel = context.WithTimeout(t.Context(), patience)
			defer cancel()
			if n, err := w.Deliver(ctx); n != c.delivered || err != nil {
				t.Errorf("Deliver: %d, %v", n, err)
			}
			if n := rows(t, pool); n != c.late {
				t.Errorf("%d rows when it was delivered", n)
			}
		})
	}
}

// What is stalled goes on, and nothing has broken.
func TestStalled(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	met := make(chan struct{})
	w := &wire.Wire{At: wire.Statement("select 7", func(int) wire.Action { close(met); return wire.Stalled })}
	conn := connect(t, pool.Config().ConnString(), w)
	go func() {
		<-met
		w.Release()
	}()
	var n int
	if err := conn.QueryRow(t.Context(), "select 7").Scan(&n); err != nil || n != 7 {
		t.Errorf("%d, %v", n, err)
	}
}

// A client that still waits when its message is delivered at last hears the answer: whether Release
// comes after the message was kept back, or a moment before.
func TestLateIsHeardByAClientThatWaits(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{false, true} {
		pool := pgtest.DB(t)
		met := make(chan struct{})
		var w *wire.Wire
		w = &wire.Wire{At: wire.Statement("select 7", func(int) wire.Action {
			if before {
				w.Release()
			}
			close(met)
			return wire.Late
		})}
		conn := connect(t, pool.Config().ConnString(), w)
		go func() {
			<-met
			if !before {
				w.Release()
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var n int
		if err := conn.QueryRow(ctx, "select 7").Scan(&n); err != nil || n != 7 {
			t.Errorf("released before: %v: %d, %v", before, n, err)
		}
	}
}

// A pipeline is cut between two of its messages: what is before the cut has reached the server, and
// a transaction's end that is delivered late counts.
func TestPipelineThatIsDeliveredLate(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec} {
		pool := pgtest.DB(t)
		if _, err := pool.Exec(t.Context(), `create table rows (n int)`); err != nil {
			t.Fatal(err)
		}
		var heard []string
		var mu sync.Mutex
		w := &wire.Wire{At: wire.Statement(insert, func(n int) wire.Action {
			if n == 2 {
				return wire.Late
			}
			return wire.Pass
		}), Answered: func(a wire.Answer) {
			mu.Lock()
			defer mu.Unlock()
			heard = append(heard, a.Text)
		}}
		cfg, err := pgx.ParseConfig(pool.Config().ConnString())
		if err != nil {
			t.Fatal(err)
		}
		cfg.DefaultQueryExecMode = mode
		cfg.DialFunc = w.Dial(cfg.DialFunc)
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		b := &pgx.Batch{}
		for _, sql := range []string{"begin", insert, insert, "commit"} {
			b.Queue(sql)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		err = conn.SendBatch(ctx, b).Close()
		cancel()
		_ = conn.Close(context.Background())
		if !errors.Is(err, context.DeadlineExceeded) || rows(t, pool) != 0 {
			t.Errorf("%v: %v, %d rows", mode, err, rows(t, pool))
		}
		ctx, cancel = context.WithTimeout(t.Context(), patience)
		n, err := w.Deliver(ctx)
		cancel()
		if n != 1 || err != nil || rows(t, pool) != 2 {
			t.Errorf("%v: delivered to %d, %v, %d rows", mode, n, err, rows(t, pool))
		}
		w.Close()
		mu.Lock()
		if got := heard[len(heard)-4:]; !slices.Equal(got, []string{"BEGIN", "INSERT 0 1", "INSERT 0 1", "COMMIT"}) {
			t.Errorf("%v: %q", mode, got)
		}
		mu.Unlock()
	}
}

// Delivering what was kept back from a session that the server has ended is no error, and says so.
func TestDeliveredToNobody(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	w := &wire.Wire{At: wire.Statement("select 7", func(int) wire.Action { return wire.Late })}
	conn := connect(t, pool.Config().ConnString(), w)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := conn.Exec(ctx, "select 7"); err == nil {
		t.Error("an answer")
	}
	for _, pid := range w.Pending() {
		if _, err := pool.Exec(t.Context(), `select pg_terminate_backend($1)`, int32(pid)); err != nil {
			t.Fatal(err)
		}
	}
	pgtest.Until(t, patience, "the session to end", func() bool { return len(w.Pending()) == 0 })
	ctx, cancel = context.WithTimeout(t.Context(), patience)
	defer cancel()
	if n, err := w.Deliver(ctx); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// What a client sends is told with its statement, through an address too.
func TestMessagesThroughAnAddress(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	var mu sync.Mutex
	var sent []string
	w := &wire.Wire{At: func(m wire.Message) wire.Action {
		mu.Lock()
		defer mu.Unlock()
		if m.Kind != wire.Other && m.Kind != wire.Terminate {
			sent = append(sent, fmt.Sprint(m.Kind, " ", m.SQL))
		}
		return wire.Pass
	}}
	network, addr := pgNetwork(pool.Config().ConnConfig)
	ctx, stop := context.WithCancel(t.Context())
	at, done, err := w.Serve(ctx, network, addr)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	u.Host = at.String()
	conn, err := pgx.Connect(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := conn.QueryRow(t.Context(), "select 7").Scan(&n); err != nil || n != 7 {
		t.Errorf("%d, %v", n, err)
	}
	_ = conn.Close(t.Context())
	stop()
	w.Close()
	<-done
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"startup ", "parse select 7", "sync select 7", "bind select 7", "sync select 7"}; !slices.Equal(sent, want) {
		t.Errorf("%q", sent)
	}
}

// A client's deadline ends its wait, and not the connection.
func TestDeadline(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	cc := pool.Config().ConnConfig
	dial := (&wire.Wire{}).Dial(cc.DialFunc)
	network, addr := pgNetwork(cc)
	conn, err := dial(t.Context(), network, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for range 2 {
		if err := conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%v", err)
		}
	}
}

func pgNetwork(cc *pgx.ConnConfig) (network, addr string) {
	if strings.HasPrefix(cc.Host, "/") {
		return "unix", fmt.Sprintf("%s/.s.PGSQL.%d", cc.Host, cc.Port)
	}
	return "tcp", net.JoinHostPort(cc.Host, fmt.Sprint(cc.Port))
}

// What is dialled after Close would never end.
func TestNothingIsDialledAfterClose(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	w := &wire.Wire{}
	w.Close()
	cc := pool.Config().ConnConfig
	network, addr := pgNetwork(cc)
	if _, err := w.Dial(cc.DialFunc)(t.Context(), network, addr); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
}
