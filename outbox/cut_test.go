package outbox_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
)

// cutter stands between a pool and its server and cuts connections at COMMIT: before the server gets it, or after it and
// before the answer.
type cutter struct {
	listener net.Listener
	server   string
	commits  atomic.Int64
	cutAt    func(n int64) (cut, forward bool)
	with     []byte // only where this is sent too
	open     sync.WaitGroup
}

// commit is COMMIT in a Parse message, as pgx sends it in a batch that names no prepared statement.
var commit = []byte("\x00commit\x00")

func (c *cutter) serve() {
	for {
		client, err := c.listener.Accept()
		if err != nil {
			return
		}
		c.open.Go(func() { c.relay(client) })
	}
}

func (c *cutter) relay(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", c.server)
	if err != nil {
		return
	}
	defer server.Close()
	var muted atomic.Bool
	c.open.Go(func() {
		defer client.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			if n > 0 && !muted.Load() {
				_, _ = client.Write(buf[:n])
			}
			if err != nil {
				return
			}
		}
	})
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		if bytes.Contains(buf[:n], commit) && bytes.Contains(buf[:n], c.with) {
			if cut, forward := c.cutAt(c.commits.Add(1)); cut {
				muted.Store(true)
				if forward {
					_, _ = server.Write(buf[:n])
					_, _ = server.Write([]byte("X\x00\x00\x00\x04")) // Terminate: the server commits, answers, and closes
					_ = server.SetReadDeadline(time.Now().Add(time.Second))
					_, _ = io.Copy(io.Discard, client) // until the client gives up
				}
				return
			}
		}
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// Nobody knows how a transaction ended whose COMMIT was not answered. A journal then counts for nothing, a settlement is
// made again: no row is lost, and none is called twice by a relay that lives.
func TestUnknownCommits(t *testing.T) {
	for _, forward := range []bool{false, true} {
		t.Run(fmt.Sprintf("forwarded=%v", forward), func(t *testing.T) {
			r := newRig(t)
			cfg := r.pool.Config().Copy()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			c := &cutter{
				listener: listener, server: fmt.Sprintf("%s:%d", cfg.ConnConfig.Host, cfg.ConnConfig.Port),
				cutAt: func(n int64) (bool, bool) { return n%3 == 2, forward },
			}
			go c.serve()
			addr := listener.Addr().(*net.TCPAddr)
			cfg.ConnConfig.Host, cfg.ConnConfig.Port = "127.0.0.1", uint16(addr.Port)
			cfg.ConnConfig.TLSConfig, cfg.ConnConfig.Fallbacks = nil, nil // the messages must be readable
			cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
			cut, err := pgxpool.NewWithConfig(context.Background(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			const n = 10
			for i := range n {
				r.enqueue(charge(fmt.Sprint(i)))
			}
			sink := newScripted(accept)
			relayConfig := testConfig(sink)
			relayConfig.LeaseTTL, relayConfig.Concurrency = 3*time.Second, 4
			direct := r.pool
			r.pool = cut
			x := r.start(relayConfig)
			r.pool = direct
			r.states("delivered")
			x.stop()
			cut.Close()
			_ = listener.Close()
			c.open.Wait()
			seen := map[string]int{}
			for _, d := range sink.calls() {
				seen[d.Key]++
			}
			if len(seen) != n || (len(sink.calls()) != n && !r.lost()) {
				t.Errorf("%d calls of %d keys, want %d of each", len(sink.calls()), len(seen), n)
			}
			if c.commits.Load() < 3 {
				t.Errorf("%d commits passed the cutter: none was cut", c.commits.Load())
			}
			t.Logf("%d commits, %d calls, lease lost: %v", c.commits.Load(), len(sink.calls()), r.lost())
		})
	}
}

// A completion whose COMMIT is not answered has settled its call: what is blocked behind it goes on.
func TestUnknownCommitOfACompletion(t *testing.T) {
	r := newRig(t)
	cfg := r.pool.Config().Copy()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var completing, done atomic.Bool
	c := &cutter{
		listener: listener, server: fmt.Sprintf("%s:%d", cfg.ConnConfig.Host, cfg.ConnConfig.Port),
		cutAt: func(int64) (bool, bool) {
			cut := completing.Swap(false)
			if cut {
				done.Store(true)
			}
			return cut, true
		},
	}
	go c.serve()
	addr := listener.Addr().(*net.TCPAddr)
	cfg.ConnConfig.Host, cfg.ConnConfig.Port = "127.0.0.1", uint16(addr.Port)
	cfg.ConnConfig.TLSConfig, cfg.ConnConfig.Fallbacks = nil, nil // the messages must be readable
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	cut, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	first, second := keyed("k", 0), keyed("k", 1)
	first.Capture = true
	r.enqueue(first, second)
	relay := testConfig(newScripted(accept))
	relay.PollInterval = time.Second // others commit rarely
	relay.LeaseTTL = 3 * time.Second
	relay.Complete = func(context.Context, outbox.Tx, *outbox.Completed) error {
		completing.Store(!done.Load())
		return nil
	}
	direct := r.pool
	r.pool = cut
	x := r.start(relay)
	r.pool = direct
	r.states("delivered")
	x.stop()
	cut.Close()
	_ = listener.Close()
	c.open.Wait()
	if !done.Load() {
		t.Error("no commit was cut")
	}
}

// While nobody knows whether a chunk's end is committed, no more calls of it are begun: if it is, they are read again.
func TestUnknownCommitBeginsNoMore(t *testing.T) {
	r := newRig(t)
	cfg := r.pool.Config().Copy()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{
		listener: listener, server: fmt.Sprintf("%s:%d", cfg.ConnConfig.Host, cfg.ConnConfig.Port),
		with:  []byte("insert into onlyonce.parked"),
		cutAt: func(n int64) (bool, bool) { return n == 1, true },
	}
	go c.serve()
	addr := listener.Addr().(*net.TCPAddr)
	cfg.ConnConfig.Host, cfg.ConnConfig.Port = "127.0.0.1", uint16(addr.Port)
	cfg.ConnConfig.TLSConfig, cfg.ConnConfig.Fallbacks = nil, nil // the messages must be readable
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	cut, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	first := charge("first")
	calls := []outbox.Call{}
	for i := range 3 {
		calls = append(calls, charge(r.sameLane(first, fmt.Sprint("n", i))))
	}
	r.enqueue(calls...)
	g := r.gate()
	sink := newScripted(func(_ context.Context, d *outbox.Delivery) outbox.Result {
		if d.Attempt == 1 && d.Key == outbox.Identity(dedupe.Origin{Scope: calls[0].Scope}, false, calls[0]) {
			g.pass(d)
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	relay := testConfig(sink)
	relay.Concurrency = 1
	direct := r.pool
	r.pool = cut
	x := r.start(relay)
	r.pool = direct
	g.wait()
	until(t, "the chunk goes on without it", func() bool { return one[int](r, `select count(*) from onlyonce.parked`) == 1 })
	g.release()
	until(t, "the others are delivered", func() bool { return one[int](r, `select count(*) from onlyonce.calls where state = 'delivered'`) >= 2 })
	x.stop()
	cut.Close()
	_ = listener.Close()
	c.open.Wait()
	seen := map[string]int{}
	for _, d := range sink.calls() {
		seen[d.Key]++
	}
	for _, d := range sink.calls() {
		if seen[d.Key] > 1 {
			t.Errorf("call %d was made %d times", d.ID, seen[d.Key])
		}
	}
}
