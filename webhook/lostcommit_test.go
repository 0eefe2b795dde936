package webhook_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/webhook"
)

// cutter cuts a connection around a COMMIT: before it leaves, or when it has left and nobody hears the answer.
type cutter struct {
	armed atomic.Int32 // 1: before, 2: behind
	cuts  atomic.Int32
}

type cutConn struct {
	net.Conn
	c *cutter
}

var errCut = errors.New("cut")

func (c *cutConn) Write(p []byte) (int, error) {
	if !bytes.Contains(p, []byte("onlyonce.seal")) && !bytes.Contains(p, []byte("commit\x00")) && !bytes.Contains(p, []byte("stmtcache")) {
		return c.Conn.Write(p)
	}
	switch {
	case c.c.armed.CompareAndSwap(1, 0):
		c.c.cuts.Add(1)
		_ = c.Conn.Close()
		return 0, errCut
	case c.c.armed.CompareAndSwap(2, 0):
		c.c.cuts.Add(1)
		n, err := c.Conn.Write(p)
		// The server does what it was sent, whoever is there to hear of it.
		_ = c.Conn.(*net.TCPConn).CloseRead()
		return n, err
	}
	return c.Conn.Write(p)
}

// T4: a COMMIT whose answer never comes is found out by doing the same again on another connection: the sender is told 200 once it is known
// to have committed, and there is one event.
func TestT4LostCommitOfAReceiver(t *testing.T) {
	t.Parallel()
	for mode, more := range map[string][]func(*webhook.ReceiverConfig){"inbox": nil, "inline": {inline(effect)}} {
		r := newRig(t)
		var c cutter
		cfg, err := pgxpool.ParseConfig(r.pool.Config().ConnString() + "&default_query_exec_mode=exec")
		if err != nil {
			t.Fatal(err)
		}
		dial := cfg.ConnConfig.DialFunc
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &cutConn{conn, &c}, nil
		}
		if r.recv, err = pgxpool.NewWithConfig(context.Background(), cfg); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.recv.Close)
		e := r.serve(samples(t)["Stripe"], more...)
		e.send(stripeBody("evt_0", "")).want(t, 200, false)
		for how := int32(1); how <= 2; how++ {
			id := fmt.Sprint("evt_", how)
			c.armed.Store(how)
			e.send(stripeBody(id, "")).want(t, 200, false)
			e.send(stripeBody(id, "")).want(t, 200, true)
		}
		if n := c.cuts.Load(); n != 2 {
			t.Errorf("%s: %d connections were cut", mode, n)
		}
		table := "onlyonce.event_log"
		if mode == "inline" {
			table = "effects"
		}
		if n := r.count(table); n != 3 {
			t.Errorf("%s: %d events, want 3", mode, n)
		}
	}
}
