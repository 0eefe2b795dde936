package mcpserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/idempotency/mcpserver"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// order is what the tools are called with, placed what they return.
type order struct {
	Item   string         `json:"item"`
	Amount float64        `json:"amount"`
	Meta   map[string]any `json:"meta,omitempty"` // of UCP
}

type placed struct {
	Number string `json:"number"`
	Item   string `json:"item"`
}

// rig is a server of MCP with the middleware.
type rig struct {
	t      *testing.T
	pool   *pgxpool.Pool
	server *mcp.Server
	guard  *mcpserver.Guard
	runs   atomic.Int64
	tool   mcp.ToolHandlerFor[order, placed] // of place_order, if it is not place
}

// ownerHeader names the owner of a call of HTTP. In memory the owner is "joe".
const ownerHeader = "X-Owner"

func ownerOf(_ context.Context, req *mcp.CallToolRequest) (idempotency.Scope, error) {
	owner := "joe"
	if req.Extra != nil && req.Extra.Header != nil {
		owner = req.Extra.Header.Get(ownerHeader)
	}
	if owner == "" {
		return idempotency.Scope{}, errors.New("nobody")
	}
	return idempotency.Scope{Tenant: owner}, nil
}

func newLayer(t *testing.T, pool *pgxpool.Pool) *idempotency.Layer {
	t.Helper()
	layer, err := idempotency.New(pool, idempotency.Config{Scope: idempotency.GlobalScope(),
		FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {1}}}})
	if err != nil {
		t.Fatal(err)
	}
	return layer
}

func newRig(t *testing.T) *rig {
	t.Helper()
	return newRigOn(t, ordersDB(t))
}

func ordersDB(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.DB(t)
	pgtest.Exec(t, pool, `create table orders (item text not null, number text not null)`)
	return pool
}

// newRigOn is another server's worth of the same, with a configuration that is changed.
func newRigOn(t *testing.T, pool *pgxpool.Pool, change ...func(*mcpserver.Config)) *rig {
	t.Helper()
	r := &rig{t: t, pool: pool, server: mcp.NewServer(&mcp.Implementation{Name: "shop", Version: "1"}, nil)}
	counted := func(ctx context.Context, req *mcp.CallToolRequest, in order) (*mcp.CallToolResult, placed, error) {
		r.runs.Add(1)
		if r.tool != nil && req.Params.Name == "place_order" {
			return r.tool(ctx, req, in)
		}
		return place(ctx, req, in)
	}
	for _, name := range []string{"place_order", "book_table", "optional", "look_up"} {
		mcp.AddTool(r.server, &mcp.Tool{Name: name}, counted)
	}
	doer := idempotency.DoerConfig{NoCalls: true}
	cfg := mcpserver.Config{
		Scope: ownerOf,
		Tools: map[string]mcpserver.Tool{
			"place_order": {Doer: doer},
			"book_table":  {Doer: doer},
			"optional":    {Doer: doer, KeyOptional: true},
		},
		Logger: slog.New(slog.DiscardHandler),
	}
	for _, one := range change {
		one(&cfg)
	}
	var err error
	r.guard, err = mcpserver.New(newLayer(t, pool), cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.server.AddReceivingMiddleware(r.guard.Middleware())
	return r
}

// place writes an order, in the call's transaction if it has one.
func place(ctx context.Context, _ *mcp.CallToolRequest, in order) (*mcp.CallToolResult, placed, error) {
	out := placed{Number: uuid.NewString(), Item: in.Item}
	tx, err := mcpserver.TxOf(ctx)
	if errors.Is(err, idempotency.ErrNoTx) {
		return nil, out, nil
	}
	if err == nil {
		_, err = tx.Exec(ctx, `insert into orders values ($1, $2)`, in.Item, out.Number)
	}
	return nil, out, err
}

// session connects a client in memory.
func (r *rig) session() *mcp.ClientSession {
	r.t.Helper()
	ours, theirs := mcp.NewInMemoryTransports()
	serving, err := r.server.Connect(r.t.Context(), theirs, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	s := connect(r.t, ours)
	r.t.Cleanup(func() {
		_ = s.Close()
		_ = serving.Wait()
	})
	return s
}

func connect(t *testing.T, transport mcp.Transport) *mcp.ClientSession {
	t.Helper()
	s, err := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil).Connect(t.Context(), transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// listen serves streamable HTTP.
func (r *rig) listen() (url string) {
	server := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return r.server }, nil))
	r.t.Cleanup(server.Close)
	return server.URL
}

// owned is a client of HTTP that says who it is.
type owned struct {
	owner string
	base  http.RoundTripper
}

func (o owned) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(ownerHeader, o.owner)
	return o.base.RoundTrip(r)
}

func overHTTP(url, owner string, base http.RoundTripper) *mcp.StreamableClientTransport {
	return &mcp.StreamableClientTransport{
		Endpoint:             url,
		MaxRetries:           -1,
		DisableStandaloneSSE: true,
		HTTPClient:           &http.Client{Transport: owned{owner, base}},
	}
}

// call calls a tool; a key of "" is none.
func call(ctx context.Context, s *mcp.ClientSession, tool, key, arguments string) (*mcp.CallToolResult, error) {
	params := &mcp.CallToolParams{Name: tool, Arguments: json.RawMessage(arguments)}
	if key != "" {
		params.Meta = mcp.Meta{"idempotency-key": key}
	}
	return s.CallTool(ctx, params)
}

// must is call for a call that has a result.
func (r *rig) must(s *mcp.ClientSession, tool, key, arguments string) *mcp.CallToolResult {
	r.t.Helper()
	result, err := call(r.t.Context(), s, tool, key, arguments)
	if err != nil {
		r.t.Fatal(err)
	}
	return result
}

func status(r *mcp.CallToolResult) any { return r.Meta[mcpserver.StatusMeta] }

// text is all of a result but what was done, and what the SDK says of the server.
func text(t *testing.T, r *mcp.CallToolResult) string {
	t.Helper()
	own := *r
	own.Meta = mcp.Meta{}
	for name, value := range r.Meta {
		if name != mcpserver.StatusMeta && !strings.HasPrefix(name, "io.modelcontextprotocol/") {
			own.Meta[name] = value
		}
	}
	encoded, err := json.Marshal(&own)
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

// problemOf returns the code of JSON-RPC and the data of an error of the protocol.
func problemOf(err error) (code int64, p mcpserver.Problem) {
	var wire *jsonrpc.Error
	if errors.As(err, &wire) {
		_ = json.Unmarshal(wire.Data, &p)
		if p.Content != wire.Message {
			p.Code += " with another content than its message"
		}
		p.Content = ""
		code = wire.Code
	}
	return code, p
}

func (r *rig) orders() int { return pgtest.One[int](r.t, r.pool, `select count(*) from orders`) }
