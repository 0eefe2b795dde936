package outbox_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// cut is what becomes of a connection that is about to send something.
type cut int

const (
	notCut    cut = iota
	cutBefore     // the server gets nothing of it
	cutWithin     // it gets half of it
	cutBehind     // it gets all of it, and does it, and its answer does not arrive
)

// cutter is a proxy between a pool and its server that cuts connections.
type cutter struct {
	server string
	judge  func(sent []byte) cut
	open   sync.WaitGroup
}

// cutPool is a pool like the rig's. judge decides for each piece that a client sends whether its
// connection is cut.
func (r *rig) cutPool(mode pgx.QueryExecMode, judge func(sent []byte) cut) *pgxpool.Pool {
	r.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	cfg := r.pool.Config().Copy()
	c := &cutter{server: fmt.Sprintf("%s:%d", cfg.ConnConfig.Host, cfg.ConnConfig.Port), judge: judge}
	c.open.Go(func() { c.serve(listener) })
	cfg.ConnConfig.Host, cfg.ConnConfig.Port = "127.0.0.1", uint16(listener.Addr().(*net.TCPAddr).Port)
	// the messages must be readable
	cfg.ConnConfig.TLSConfig = nil
	cfg.ConnConfig.Fallbacks = nil
	cfg.ConnConfig.DefaultQueryExecMode = mode
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		pool.Close()
		_ = listener.Close()
		c.open.Wait()
	})
	return pool
}

// through runs a relay over another pool than the rig's own.
func (r *rig) through(pool *pgxpool.Pool, start func()) {
	direct := r.pool
	defer func() { r.pool = direct }()
	r.pool = pool
	start()
}

// atCommit judges the pieces that hold COMMIT in a Parse message, as pgx sends it in a batch
// without prepared statements, and the text with. It receives how many of them there were. It does
// not see transactions of a single statement, for example of a poll (primary.Pool.Pinned).
func atCommit(with string, judge func(n int64) cut) (all *atomic.Int64, of func(sent []byte) cut) {
	all = new(atomic.Int64)
	return all, func(sent []byte) cut {
		if !bytes.Contains(sent, []byte("\x00commit\x00")) ||
			!bytes.Contains(sent, []byte(with)) ||
			bytes.Contains(sent, []byte("\x00begin isolation level read committed\x00")) {
			return notCut
		}
		return judge(all.Add(1))
	}
}

func (c *cutter) serve(listener net.Listener) {
	for {
		client, err := listener.Accept()
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
		how := c.judge(buf[:n])
		if how != notCut {
			muted.Store(true)
		}
		switch how {
		case cutBefore:
			return
		case cutWithin:
			_, _ = server.Write(buf[:n/2])
			return
		}
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
		if how == cutBehind {
			// Terminate: the server does what it got, answers, and closes.
			_, _ = server.Write([]byte("X\x00\x00\x00\x04"))
			_ = server.SetReadDeadline(time.Now().Add(time.Second))
			_, _ = io.Copy(io.Discard, client) // until the client gives up
			return
		}
	}
}
