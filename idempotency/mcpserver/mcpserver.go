// Package mcpserver makes a call of an MCP tool that is sent twice take effect once. Its middleware
// does for tools of the official SDK (github.com/modelcontextprotocol/go-sdk) what an
// idempotency.Layer does for handlers of HTTP, by idempotency.Do.
//
//	guard, err := mcpserver.New(layer, mcpserver.Config{
//		Scope: mcpserver.TokenScope,
//		Tools: map[string]mcpserver.Tool{"place_order": {Doer: idempotency.DoerConfig{NoCalls: true}}},
//	})
//	...
//	server := mcp.NewServer(implementation, nil)
//	mcp.AddTool(server, placeOrder, place)
//	server.AddReceivingMiddleware(guard.Middleware())
//	err = guard.Check(ctx, server)
//
// The client sends the key in the call's _meta, by default as "idempotency-key", the same at each
// attempt. A tool writes through [TxOf], in the transaction that stores its result. Each later call
// with the key gets the same result, in any session and from any process. The _meta of each result
// says what was done ([StatusMeta]).
//
// # What is kept
//
//	the tool returned a result                 kept, with its writes
//	an idempotency.PermanentError              kept as a result with isError; the writes are undone
//	another error, or a result with isError    not kept: the writes are undone, and the next call runs the tool
//	a result that asks the client for input    not kept: the tool runs again when the responses have come
//
// While a tool asks a client of an old version of the protocol for input, its transaction is open,
// so protect tools that need no input.
package mcpserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
	"github.com/onlyonce/onlyonce/internal/fields"
)

// StatusMeta is in the _meta of each result of a protected tool: an idempotency.ServeOutcome.
const StatusMeta = "idempotency-status"

// Config configures a [Guard].
type Config struct {
	// Scope returns the owner of a call, after your authentication has run, for example
	// [TokenScope]. Do not take the session for the owner: an agent that lost an answer repeats its
	// call in another session. If it returns an error, the call fails. Required.
	Scope func(ctx context.Context, req *mcp.CallToolRequest) (idempotency.Scope, error)

	// Tools are the tools for which keys count, by their name. All others run as if without the
	// middleware. Two servers on one database share the keys of a tool. At least one is required.
	Tools map[string]Tool

	// KeyMeta is the member of a call's _meta that carries the key. Defaults to "idempotency-key".
	KeyMeta string

	// KeyInArguments looks for KeyMeta in the member "meta" of the call's arguments, where the
	// Universal Commerce Protocol puts it. The tool's input schema must then allow "meta", and its
	// other members are compared as all arguments are. Defaults to false: in the call's _meta.
	KeyInArguments bool

	// Logger receives the causes of refused calls, which clients do not see, for example an
	// unreachable database. Defaults to slog.Default().
	Logger *slog.Logger
}

// Tool configures one tool. Its zero value lacks only what Doer requires.
type Tool struct {
	// Doer has the bounds and times. Scope, Codec and FingerprintJSON must be empty: the scope is
	// "mcp/" and the tool's name, and arguments are compared by what their JSON says.
	Doer idempotency.DoerConfig

	// KeyOptional runs calls without a key unprotected; [TxOf] then returns ErrNoTx. Defaults to
	// false: they fail.
	KeyOptional bool
}

// TokenScope is a Config.Scope for servers behind the SDK's auth.RequireBearerToken: the tenant is
// the token's UserID.
func TokenScope(_ context.Context, req *mcp.CallToolRequest) (idempotency.Scope, error) {
	if req.Extra == nil || req.Extra.TokenInfo == nil || req.Extra.TokenInfo.UserID == "" {
		return idempotency.Scope{}, errors.New("the call has no token with a user")
	}
	return idempotency.Scope{Tenant: req.Extra.TokenInfo.UserID}, nil
}

// Guard protects the tools of a server. It is safe for concurrent use.
type Guard struct {
	cfg   Config
	tools map[string]*tool
}

type tool struct {
	Tool
	name  string
	doer  *idempotency.Doer
	guard *Guard
}

// New checks the configuration without connecting. If it is wrong, the error lists every fault and
// wraps idempotency.ErrConfig. The layer's Run purges the records.
func New(layer *idempotency.Layer, cfg Config) (*Guard, error) {
	l := fields.List{
		Sentinel: fields.Named("mcpserver: invalid configuration", idempotency.ErrConfig),
		Struct:   "Config",
	}
	if cfg.Scope == nil {
		l.Add("Scope", "must be set: it returns the owner of a call")
	}
	if len(cfg.Tools) == 0 {
		l.Add("Tools", "must not be empty")
	}
	cfg.KeyMeta = cmp.Or(cfg.KeyMeta, "idempotency-key")
	if cfg.KeyMeta == StatusMeta {
		l.Add("KeyMeta", "must not be %q, which says what was done", StatusMeta)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	g := &Guard{cfg: cfg, tools: make(map[string]*tool)}
	for _, name := range slices.Sorted(maps.Keys(cfg.Tools)) {
		t := cfg.Tools[name]
		field := fmt.Sprintf("Tools[%q]", name)
		if name == "" {
			l.Add(field, "must have a name")
		}
		if t.Doer.Scope != "" || t.Doer.Codec != nil || t.Doer.FingerprintJSON {
			l.Add(field+".Doer", "Scope, Codec and FingerprintJSON must be empty")
		}
		t.Doer.Scope = "mcp/" + name
		t.Doer.Codec = codec{}
		t.Doer.FingerprintJSON = true
		doer, err := idempotency.NewDoer(layer, t.Doer)
		for _, fault := range fields.Split(err) {
			l.Add(field+".Doer", "%v", fault)
		}
		g.tools[name] = &tool{t, name, doer, g}
	}
	if err := l.Err(); err != nil {
		return nil, err
	}
	return g, nil
}

// Check compares the configuration with the tools of a server, once all are added. A tool that the
// server does not have is an error, because it may be misspelled, and its calls would run
// unprotected. The error lists each, and wraps idempotency.ErrConfig. It connects to the server as
// a client in memory.
func (g *Guard) Check(ctx context.Context, server *mcp.Server) error {
	ours, theirs := mcp.NewInMemoryTransports()
	serving, err := server.Connect(ctx, theirs, nil)
	if err != nil {
		return fmt.Errorf("mcpserver: connecting to the server: %w", err)
	}
	defer func() { _ = serving.Wait() }()
	asking, err := mcp.NewClient(&mcp.Implementation{Name: "onlyonce", Version: "1"}, nil).Connect(ctx, ours, nil)
	if err != nil {
		return errors.Join(fmt.Errorf("mcpserver: connecting to the server: %w", err), serving.Close())
	}
	defer func() { _ = asking.Close() }()
	has := map[string]bool{}
	for t, err := range asking.Tools(ctx, nil) {
		if err != nil {
			return fmt.Errorf("mcpserver: listing the server's tools: %w", err)
		}
		has[t.Name] = true
	}
	l := fields.List{
		Sentinel: fields.Named("mcpserver: invalid configuration", idempotency.ErrConfig),
		Struct:   "Config",
	}
	for _, name := range slices.Sorted(maps.Keys(g.tools)) {
		if !has[name] {
			l.Add(fmt.Sprintf("Tools[%q]", name), "the server has no such tool: its calls would run unprotected")
		}
	}
	return l.Err()
}

type txKey struct{}

// TxOf returns the transaction for a call's effects, from a context of the tool. If the tool
// returns a result, it commits together with the stored result; otherwise it rolls back. It is
// valid until the tool returns, and for one goroutine at a time. Outside of a protected call the
// error is idempotency.ErrNoTx.
func TxOf(ctx context.Context) (consumer.Tx, error) {
	tx, ok := ctx.Value(txKey{}).(consumer.Tx)
	if !ok {
		return nil, idempotency.ErrNoTx
	}
	return tx, nil
}

// Middleware returns the middleware, for Server.AddReceivingMiddleware. Put it after your
// authentication.
func (g *Guard) Middleware() mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			call, is := req.(*mcp.CallToolRequest)
			if !is || call.Params == nil || g.tools[call.Params.Name] == nil {
				return next(ctx, method, req)
			}
			return g.tools[call.Params.Name].serve(ctx, call, func(ctx context.Context) (*mcp.CallToolResult, error) {
				made, err := next(ctx, method, req)
				if err != nil {
					return nil, err
				}
				result, is := made.(*mcp.CallToolResult)
				if !is || result == nil {
					return nil, fmt.Errorf("mcpserver: the tool returned %T, which is no result of a call", made)
				}
				return result, nil
			})
		}
	}
}

// serve finds the owner and the key of a call, and runs it (H2, H5).
func (t *tool) serve(ctx context.Context, call *mcp.CallToolRequest, run runTool) (*mcp.CallToolResult, error) {
	scope, err := t.guard.cfg.Scope(ctx, call)
	if err != nil {
		t.guard.cfg.Logger.WarnContext(ctx, "onlyonce: tool call refused",
			"tool", t.name, "code", "scope-missing", "error", err)
		return nil, problem(codeServer, "scope-missing", "the owner of the call cannot be determined", false, 0)
	}
	name, value, has := t.guard.keyOf(call.Params)
	if !has && t.KeyOptional {
		result, err := run(ctx)
		return marked(result, idempotency.Bypassed), err
	}
	if !has {
		return nil, problem(jsonrpc.CodeInvalidParams, "key-missing",
			fmt.Sprintf("send a key in %s, the same at each attempt", name), false, 0)
	}
	key, is := value.(string)
	if !is {
		return nil, problem(jsonrpc.CodeInvalidParams, "key-invalid", name+" must be a string", false, 0)
	}
	if err := protocol.CheckKey(key); err != nil {
		return nil, problem(jsonrpc.CodeInvalidParams, "key-invalid",
			fmt.Sprintf("%s: the key %v", name, err), false, 0)
	}
	return t.call(ctx, scope, key, call.Params, run)
}

// keyOf returns what a call has in the key's place, and the name of that place.
func (g *Guard) keyOf(p *mcp.CallToolParamsRaw) (place string, value any, has bool) {
	if !g.cfg.KeyInArguments {
		value, has = p.Meta[g.cfg.KeyMeta]
		return fmt.Sprintf("_meta[%q]", g.cfg.KeyMeta), value, has
	}
	// Maps, because a struct's members would match in any case. Other arguments than an object, or
	// another meta, have no key: the tool refuses them if its schema does.
	var arguments map[string]json.RawMessage
	var meta map[string]any
	if json.Unmarshal(p.Arguments, &arguments) == nil && json.Unmarshal(arguments["meta"], &meta) == nil {
		value, has = meta[g.cfg.KeyMeta]
	}
	return fmt.Sprintf("arguments.meta[%q]", g.cfg.KeyMeta), value, has
}
