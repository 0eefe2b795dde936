package pgtest

import (
	"context"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/rig/wire"
)

// Wire runs a test's action at the messages that carry one statement, however it is sent (prepared,
// unnamed or simple). It is package wire for tests that have one statement and one action.
type Wire struct {
	// Statement is the statement that it waits for, or the beginning of that, up to and with a
	// parenthesis.
	Statement string
	// At returns the action for the n-th time, counted over all connections from 1 on.
	At func(n int32) Cut

	// Seen counts the times that the statement was sent, and Cuts those at which something
	// happened.
	Seen, Cuts atomic.Int32
}

// Cut is what happens at a message; see package wire.
type Cut = wire.Action

// Cuts.
const (
	Pass    = wire.Pass
	Unsent  = wire.Unsent
	Unheard = wire.Unheard
	Held    = wire.Held
	Dropped = wire.Dropped
	Stalled = wire.Stalled
	Silent  = wire.Silent
)

// Wired is a pool whose connections go through a wire. What is kept back is delivered when the
// channel hold is closed.
func Wired(t testing.TB, base *pgxpool.Pool, mode pgx.QueryExecMode, w *Wire, hold <-chan struct{}) *pgxpool.Pool {
	t.Helper()
	below := w.below()
	cfg := base.Config().Copy()
	cfg.ConnConfig.DefaultQueryExecMode = mode
	cfg.ConnConfig.DialFunc = below.Dial(cfg.ConnConfig.DialFunc)
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(releasing(below, hold, pool.Close))
	return pool
}

// Proxied is the address of a database behind a wire, for drivers that take no function to dial
// with. What is kept back is delivered when the channel hold is closed.
func Proxied(t testing.TB, base *pgxpool.Pool, w *Wire, hold <-chan struct{}) (address string) {
	t.Helper()
	below := w.below()
	ctx, cancel := context.WithCancel(context.Background())
	of := base.Config().ConnConfig
	at, served, err := below.Serve(ctx, "tcp", net.JoinHostPort(of.Host, strconv.Itoa(int(of.Port))))
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	end := releasing(below, hold, cancel)
	t.Cleanup(func() { end(); <-served })
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(of.User, of.Password),
		Host:     at.String(),
		Path:     of.Database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// below is the wire that counts and acts for w.
func (w *Wire) below() *wire.Wire {
	return &wire.Wire{At: func(m wire.Message) wire.Action {
		if m.Kind != wire.Bind && m.Kind != wire.Query || !w.is(m.SQL) {
			return Pass
		}
		what := w.At(w.Seen.Add(1))
		if what != Pass {
			w.Cuts.Add(1)
		}
		return what
	}}
}

// releasing delivers what is kept back when hold is closed. It returns what ends that: it calls
// end, and then closes the wire.
func releasing(below *wire.Wire, hold <-chan struct{}, end func()) (cleanup func()) {
	ended := make(chan struct{})
	released := make(chan struct{})
	go func() {
		defer close(released)
		select {
		case <-hold:
			below.Release()
		case <-ended:
		}
	}()
	return func() {
		end()
		close(ended)
		<-released
		below.Close()
	}
}

// is reports whether sql is the statement that w waits for.
func (w *Wire) is(sql string) bool {
	sql = strings.TrimSpace(sql)
	want := strings.TrimSpace(w.Statement)
	if n := len(want); strings.HasSuffix(want, "(") && len(sql) > n {
		sql = sql[:n]
	}
	return strings.EqualFold(sql, want)
}
