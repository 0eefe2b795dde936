package mcpserver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// lossy lets so many bytes of the answer to a tool call through, and then breaks the connection.
type lossy struct {
	mu    sync.Mutex
	armed bool
	left  int
	cut   bool
}

func (l *lossy) arm(bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed = true
	l.left = bytes
	l.cut = false
}

// take returns how many of n bytes come through.
func (l *lossy) take(n int) (through int, broken bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.armed {
		return n, false
	}
	through = min(n, l.left)
	l.left -= through
	l.cut = l.cut || through < n
	return through, through < n
}

func (l *lossy) wasCut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut
}

// lossyReader is a connection's reading side.
type lossyReader struct {
	io.ReadCloser
	loss *lossy
}

func (r lossyReader) Read(b []byte) (int, error) {
	n, err := r.ReadCloser.Read(b)
	through, broken := r.loss.take(n)
	if broken {
		_ = r.Close()
		return through, io.ErrUnexpectedEOF
	}
	return through, err
}

// lossyConn is a connection of HTTP.
type lossyConn struct {
	net.Conn
	loss *lossy
}

func (c lossyConn) Read(b []byte) (int, error) { return lossyReader{c.Conn, c.loss}.Read(b) }

// dialed is an attempt's own way to a server: the handshake comes through, and the answer to the
// call as far as loss lets it.
type dialed func(t *testing.T, r *rig, loss *lossy) *mcp.ClientSession

// byPipe connects as stdio does, by lines.
func byPipe(t *testing.T, r *rig, loss *lossy) *mcp.ClientSession {
	t.Helper()
	fromServer, toClient := io.Pipe()
	fromClient, toServer := io.Pipe()
	serving, err := r.server.Connect(t.Context(), &mcp.IOTransport{Reader: fromClient, Writer: toClient}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := connect(t, &mcp.IOTransport{Reader: lossyReader{fromServer, loss}, Writer: toServer})
	t.Cleanup(func() {
		_ = s.Close()
		_ = serving.Wait()
	})
	return s
}

// byHTTP connects by streamable HTTP, the call by a connection of its own.
func byHTTP(url string) dialed {
	return func(t *testing.T, _ *rig, loss *lossy) *mcp.ClientSession {
		t.Helper()
		base := &http.Transport{DisableKeepAlives: true}
		cutting := &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
				return lossyConn{conn, loss}, err
			},
		}
		s := connect(t, overHTTP(url, "joe", callsBy{base, cutting}))
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
}

// callsBy sends tool calls by a way of their own.
type callsBy struct{ base, calls http.RoundTripper }

func (c callsBy) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodPost {
		return c.base.RoundTrip(r)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, errors.Join(err, r.Body.Close())
	}
	r = r.Clone(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.GetBody = nil // the test repeats calls, and nobody else
	if bytes.Contains(body, []byte(`"tools/call"`)) {
		return c.calls.RoundTrip(r)
	}
	return c.base.RoundTrip(r)
}

// H35: 100 calls, whose answers are lost at each byte, by turns at two servers: each call has one
// effect, and each retry gets the first result. An agent comes back in another session.
func TestH35AnswersAreLostAtEachByte(t *testing.T) {
	if !pgtest.Long("answers lost at each byte") {
		t.Skip("takes 20 seconds")
	}
	t.Parallel()
	const calls = 100
	for name, way := range map[string]func(r *rig) dialed{
		"lines":           func(*rig) dialed { return byPipe },
		"streamable HTTP": func(r *rig) dialed { return byHTTP(r.listen()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			one := newRig(t)
			servers := []*rig{one, newRigOn(t, one.pool)}
			ways := []dialed{way(servers[0]), way(servers[1])}
			turn := 0
			lost := map[int]bool{}
			attempt := func(n, bytes int) (*mcp.CallToolResult, bool) {
				turn++
				loss := &lossy{}
				s := ways[turn%2](t, servers[turn%2], loss)
				loss.arm(bytes)
				result, err := call(t.Context(), s, "place_order", fmt.Sprint("key ", n), fmt.Sprintf(`{"item":"item %d","amount":1}`, n))
				if err != nil && !loss.wasCut() {
					if _, p := problemOf(err); !p.Retryable { // a copy came while the first one ran
						t.Fatalf("call %d, %d bytes: %v", n, bytes, err)
					}
				}
				lost[bytes] = lost[bytes] || loss.wasCut()
				return result, err == nil
			}
			for n := range calls {
				bytes := n
				var result *mcp.CallToolResult
				for answered := false; !answered; bytes += calls {
					result, answered = attempt(n, bytes)
				}
				again, answered := attempt(n, 1<<20)
				if !answered || status(again) != "replayed" || text(t, again) != text(t, result) {
					t.Fatalf("call %d: %+v, first %+v", n, again, result)
				}
				out := again.StructuredContent.(map[string]any)
				if number := pgtest.One[string](t, one.pool, `select max(number) from orders where item = $1`,
					fmt.Sprint("item ", n)); out["number"] != number {
					t.Errorf("call %d: %v, its order has %s", n, out, number)
				}
			}
			if n := one.orders(); n != calls {
				t.Errorf("%d orders of %d calls", n, calls)
			}
			cuts := 0
			for bytes := 0; lost[bytes]; bytes++ {
				cuts++
			}
			if cuts < calls || servers[0].runs.Load() == 0 || servers[1].runs.Load() == 0 {
				t.Errorf("answers were lost after each of 0 to %d bytes, runs: %d and %d",
					cuts-1, servers[0].runs.Load(), servers[1].runs.Load())
			}
			t.Logf("%d calls, %d attempts, lost after each of 0 to %d bytes: %d orders", calls, turn, cuts-1, one.orders())
		})
	}
}
