package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// cutter loses a connection at its n-th COMMIT: before the server gets it, or after it was carried out and before the answer.
type cutter struct {
	at      int32
	after   bool
	commits atomic.Int32
	cuts    atomic.Int32
}

type cutConn struct {
	net.Conn
	c   *cutter
	cut bool
}

var errCut = errors.New("connection cut by the test")

func (c *cutConn) Write(b []byte) (int, error) {
	// In exec mode a statement's text travels with it; the seal and COMMIT come in one write.
	if bytes.Contains(b, []byte("commit\x00")) && c.c.commits.Add(1)%c.c.at == 0 {
		c.c.cuts.Add(1)
		if !c.c.after {
			_ = c.Close()
			return 0, errCut
		}
		c.cut = true
	}
	return c.Conn.Write(b)
}

func (c *cutConn) Read(b []byte) (int, error) {
	if !c.cut {
		return c.Conn.Read(b)
	}
	// The whole answer is taken, up to ReadyForQuery outside of a transaction, and kept from the client.
	var all []byte
	buf := make([]byte, 4096)
	for !bytes.Contains(all, []byte{'Z', 0, 0, 0, 5, 'I'}) {
		n, err := c.Conn.Read(buf)
		if err != nil {
			return 0, err
		}
		all = append(all, buf[:n]...)
	}
	_ = c.Close()
	return 0, errCut
}

// T4: a COMMIT whose outcome is unknown is resolved through the fence, never by guessing.
func TestT4CommitWithUnknownOutcome(t *testing.T) {
	for name, after := range map[string]bool{"cut before the server got it": false, "cut before the answer": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			values := r.numbered(0, 200)
			cut := &cutter{at: 3, after: after}
			cfg := r.pool.Config().Copy()
			cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
			dial := cfg.ConnConfig.DialFunc
			cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := dial(ctx, network, addr)
				if err != nil {
					return nil, err
				}
				return &cutConn{Conn: conn, c: cut}, nil
			}
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			ccfg := testConfig()
			ccfg.Key, ccfg.PositionsOnly = nil, true // no key hides a double
			stop := r.startOn(r.src, pool, queued, ccfg)
			r.reaches(0, 200)
			stop()
			r.once(values...)
			if len(r.reasons()) > 0 {
				t.Errorf("parked: %v", r.reasons())
			}
			if cut.cuts.Load() < 3 {
				t.Errorf("only %d connections were cut", cut.cuts.Load())
			}
		})
	}
}
