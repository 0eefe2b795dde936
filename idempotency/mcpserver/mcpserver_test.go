package mcpserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/idempotency/mcpserver"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

const serverError = -32000

var patience = pgtest.Patience(time.Minute)

// H35: a call is named by key, tool and principal, and never by the session.
func TestH35CallIsNamedByKeyToolAndPrincipal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other := newRigOn(t, r.pool)
	first := r.must(r.session(), "place_order", "k", `{"item":"tea","amount":1}`)
	if status(first) != "created" || first.IsError {
		t.Fatalf("%+v", first)
	}
	for name, s := range map[string]*mcp.ClientSession{"another session": r.session(), "another server": other.session(),
		"another transport": connect(t, overHTTP(r.listen(), "joe", http.DefaultTransport))} {
		again := r.must(s, "place_order", "k", ` {"amount": 1.0, "item": "tea"}`)
		if status(again) != "replayed" || text(t, again) != text(t, first) {
			t.Errorf("%s: %s, first %s", name, text(t, again), text(t, first))
		}
		if name == "another transport" {
			_ = s.Close()
		}
	}
	ann := connect(t, overHTTP(r.listen(), "ann", http.DefaultTransport))
	defer func() { _ = ann.Close() }()
	for name, another := range map[string]*mcp.CallToolResult{
		"another tool":      r.must(r.session(), "book_table", "k", `{"item":"tea","amount":1}`),
		"another principal": r.must(ann, "place_order", "k", `{"item":"tea","amount":1}`),
		"another key":       r.must(r.session(), "place_order", "k2", `{"item":"tea","amount":1}`),
	} {
		if status(another) != "created" {
			t.Errorf("%s: %+v", name, another)
		}
	}
	if n := r.orders(); n != 4 {
		t.Errorf("%d orders of 4 calls", n)
	}
}

// H7: another call under the key is refused, as UCP asks for: -32000.
func TestH7AnotherCallIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.session()
	r.must(s, "place_order", "k", `{"item":"tea","amount":1}`)
	for _, arguments := range []string{`{"item":"tea","amount":2}`, `{"item":"mug","amount":1}`} {
		_, err := call(t.Context(), s, "place_order", "k", arguments)
		if code, p := problemOf(err); code != serverError || p != (mcpserver.Problem{Code: "key-reused"}) {
			t.Errorf("%s: %v, %+v", arguments, err, p)
		}
	}
	if n := r.runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// H35: UCP's clients send the key in the arguments' meta, and find an error's text in content.
func TestH35KeyInArguments(t *testing.T) {
	t.Parallel()
	r := newRigOn(t, ordersDB(t), func(c *mcpserver.Config) { c.KeyInArguments = true })
	s := r.session()
	const key = `"meta":{"ucp-agent":{"profile":"https://platform.example/agent.json"},"idempotency-key":"k"}`
	first := r.must(s, "place_order", "", `{"item":"tea","amount":1,`+key+`}`)
	again := r.must(r.session(), "place_order", "", `{`+key+`,"amount":1.0,"item":"tea"}`)
	if status(first) != "created" || status(again) != "replayed" || text(t, first) != text(t, again) {
		t.Errorf("%+v, then %+v", first, again)
	}
	for arguments, want := range map[string]struct {
		rpc  int64
		code string
	}{
		`{"item":"tea","amount":2,` + key + `}`:                            {serverError, "key-reused"},
		`{"item":"tea","amount":1}`:                                        {jsonrpc.CodeInvalidParams, "key-missing"},
		`{"item":"tea","amount":1,"meta":{"Idempotency-Key":"k"}}`:         {jsonrpc.CodeInvalidParams, "key-missing"},
		`{"item":"tea","amount":1,"Meta":{"idempotency-key":"k"}}`:         {jsonrpc.CodeInvalidParams, "key-missing"},
		`{"item":"tea","amount":1,"meta":"k"}`:                             {jsonrpc.CodeInvalidParams, "key-missing"},
		`{"item":"tea","amount":1,"meta":{"idempotency-key":7}}`:           {jsonrpc.CodeInvalidParams, "key-invalid"},
		`{"item":"tea","amount":1,"meta":{"idempotency-key":"a b\u0000"}}`: {jsonrpc.CodeInvalidParams, "key-invalid"},
	} {
		_, err := call(t.Context(), s, "place_order", "k", arguments) // the key in _meta does not count
		rpc, p := problemOf(err)
		wrong := rpc != want.rpc ||
			p.Code != want.code ||
			rpc != serverError && !strings.Contains(err.Error(), `arguments.meta["idempotency-key"]`)
		if wrong {
			t.Errorf("%s: %v, %+v", arguments, err, p)
		}
	}
	if n := r.runs.Load(); n != 1 || r.orders() != 1 {
		t.Errorf("%d runs, %d orders", n, r.orders())
	}
}

// H5, H4: a tool that needs a key refuses a call without one, or with one that is none.
func TestH5CallsWithoutAKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.session()
	for code, key := range map[string]any{
		"key-missing":    nil,
		"key-invalid":    7.0,
		"key-invalid ":   "",
		"key-invalid  ":  strings.Repeat("k", 256),
		"key-invalid   ": "a\nb",
	} {
		params := &mcp.CallToolParams{Name: "place_order", Arguments: order{Item: "tea", Amount: 1}, Meta: mcp.Meta{}}
		if key != nil {
			params.Meta["idempotency-key"] = key
		}
		_, err := s.CallTool(t.Context(), params)
		rpc, p := problemOf(err)
		good := rpc == jsonrpc.CodeInvalidParams &&
			p.Code == strings.TrimSpace(code) &&
			!p.Retryable &&
			strings.Contains(err.Error(), `_meta["idempotency-key"]`)
		if !good {
			t.Errorf("%v: %v", key, err)
		}
	}
	if n := r.runs.Load(); n != 0 {
		t.Errorf("%d runs", n)
	}
	for range 2 {
		if free := r.must(s, "optional", "", `{"item":"tea","amount":1}`); status(free) != "bypassed" {
			t.Errorf("%+v", free)
		}
	}
	if unlisted := r.must(s, "look_up", "k", `{"item":"tea","amount":1}`); status(unlisted) != nil {
		t.Errorf("a tool that is not listed: %+v", unlisted)
	}
	if n := r.orders(); n != 0 {
		t.Errorf("%d orders without a transaction", n)
	}
}

// H2: nobody's call is refused, and does not run.
func TestH2NobodyCalls(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := connect(t, overHTTP(r.listen(), "", http.DefaultTransport))
	defer func() { _ = s.Close() }()
	_, err := call(t.Context(), s, "place_order", "k", `{"item":"tea","amount":1}`)
	if code, p := problemOf(err); code != serverError || p.Code != "scope-missing" || r.runs.Load() != 0 {
		t.Errorf("%v", err)
	}
	for user, want := range map[string]string{"joe": "joe", "": ""} {
		scope, err := mcpserver.TokenScope(t.Context(), &mcp.CallToolRequest{Extra: &mcp.RequestExtra{TokenInfo: &auth.TokenInfo{
			UserID: user,
		}}})
		if scope.Tenant != want || (err == nil) != (want != "") {
			t.Errorf("%q: %v, %v", user, scope, err)
		}
	}
	if _, err := mcpserver.TokenScope(t.Context(), &mcp.CallToolRequest{}); err == nil {
		t.Error("no token is somebody")
	}
}

// H10: a copy of a call that runs, on another server, is told to come again.
func TestH10CallInFlight(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other := newRigOn(t, r.pool)
	begun := make(chan struct{})
	release := make(chan struct{})
	r.tool = func(ctx context.Context, req *mcp.CallToolRequest, in order) (*mcp.CallToolResult, placed, error) {
		close(begun)
		<-release
		return place(ctx, req, in)
	}
	s, copies := r.session(), other.session()
	first := make(chan *mcp.CallToolResult, 1)
	go func() {
		result, err := call(context.WithoutCancel(t.Context()), s, "place_order", "k", `{"item":"tea","amount":1}`)
		if err != nil {
			t.Error(err)
		}
		first <- result
	}()
	pgtest.Receive(t, patience, "the tool runs", begun)
	_, err := call(t.Context(), copies, "place_order", "k", `{"item":"tea","amount":1}`)
	if code, p := problemOf(err); code != serverError ||
		p != (mcpserver.Problem{Code: "request-in-progress", Retryable: true, RetryAfter: 1}) {
		t.Errorf("%v, %+v", err, p)
	}
	close(release)
	result := pgtest.Receive(t, patience, "its result", first)
	if again := r.must(copies, "place_order", "k", `{"item":"tea","amount":1}`); status(again) != "replayed" ||
		text(t, again) != text(t, result) {
		t.Errorf("%+v", again)
	}
	if n := r.orders(); n != 1 || other.runs.Load() != 0 {
		t.Errorf("%d orders", n)
	}
}

// H11, H25: what a tool returns decides what is kept.
func TestH11WhatIsKept(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first  func() (*mcp.CallToolResult, error)
		kept   bool
		orders int // after the call and a copy
	}{
		"a permanent error": {func() (*mcp.CallToolResult, error) {
			return nil, fmt.Errorf("charging: %w", idempotency.Permanent("card-declined", "the card was declined"))
		}, true, 0},
		"another error": {func() (*mcp.CallToolResult, error) { return nil, errors.New("away") }, false, 1},
		"a result isError": {func() (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: "away"}}}, nil
		}, false, 1},
		"an error of the protocol": {func() (*mcp.CallToolResult, error) {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "away"}
		}, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.tool = func(ctx context.Context, req *mcp.CallToolRequest, in order) (*mcp.CallToolResult, placed, error) {
				_, out, err := place(ctx, req, in)
				if err != nil || r.runs.Load() > 1 {
					return nil, out, err
				}
				result, err := c.first()
				return result, out, err
			}
			s := r.session()
			first, failed := call(t.Context(), s, "place_order", "k", `{"item":"tea","amount":1}`)
			if n := r.orders(); n != 0 || failed == nil && !first.IsError {
				t.Fatalf("%d orders, %+v", n, first)
			}
			mark := "released"
			if c.kept {
				mark = "created"
			}
			if failed == nil && status(first) != mark {
				t.Errorf("%+v", first)
			}
			again := r.must(s, "place_order", "k", `{"item":"tea","amount":1}`)
			wrong := again.IsError != c.kept ||
				c.kept &&
					(status(again) != "replayed" ||
						text(t, again) != text(t, first) ||
						!strings.Contains(text(t, again), "card-declined: the card was declined"))
			if wrong {
				t.Errorf("%s, first %s", text(t, again), text(t, first))
			}
			if n := r.orders(); n != c.orders {
				t.Errorf("%d orders", n)
			}
		})
	}
}

// H35: a result that asks for input is not kept; the call with the responses runs the tool.
func TestH35ResultThatAsksForInput(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.tool = func(ctx context.Context, req *mcp.CallToolRequest, in order) (*mcp.CallToolResult, placed, error) {
		_, out, err := place(ctx, req, in)
		if err != nil || req.Params.RequestState != "" {
			return nil, out, err
		}
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{}, RequestState: "asked"}, placed{}, nil
	}
	run := r.guard.Middleware()(func(ctx context.Context, _ string, req mcp.Request) (mcp.Result, error) {
		c := req.(*mcp.CallToolRequest)
		result, _, err := r.tool(ctx, c, order{Item: "tea", Amount: 1})
		if result == nil {
			result = &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}
		}
		return result, err
	})
	ask := func(state string) *mcp.CallToolResult {
		t.Helper()
		made, err := run(t.Context(), "tools/call", &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{
			Name:         "place_order",
			RequestState: state,
			Meta:         mcp.Meta{"idempotency-key": "k"},
		}})
		if err != nil {
			t.Fatal(err)
		}
		return made.(*mcp.CallToolResult)
	}
	if asked := ask(""); asked.RequestState != "asked" || status(asked) != "released" || r.orders() != 0 {
		t.Errorf("%+v, %d orders", asked, r.orders())
	}
	for _, want := range []string{"created", "replayed"} {
		if done := ask("asked"); status(done) != want || r.orders() != 1 {
			t.Errorf("%+v, %d orders", done, r.orders())
		}
	}
}

// H13: a result keeps its content and the digits of its numbers, and its own status is not the
// layer's.
func TestH13ResultAsItWas(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	made := &mcp.CallToolResult{
		Meta:              mcp.Meta{mcpserver.StatusMeta: "the tool's", "mine": "kept"},
		Content:           []mcp.Content{&mcp.TextContent{Text: "a table"}, &mcp.ImageContent{MIMEType: "image/png", Data: []byte{1, 2}}},
		StructuredContent: json.RawMessage(`{"number":12345678901234567890.25}`),
	}
	run := r.guard.Middleware()(func(context.Context, string, mcp.Request) (mcp.Result, error) { return made, nil })
	for _, want := range []string{"created", "replayed"} {
		got, err := run(t.Context(), "tools/call", &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{
			Name: "book_table",
			Meta: mcp.Meta{"idempotency-key": "k"},
		}})
		if err != nil {
			t.Fatal(err)
		}
		result := got.(*mcp.CallToolResult)
		if status(result) != want || result.Meta["mine"] != "kept" || text(t, result) != text(t, made) {
			t.Errorf("%s: %s, made %s", status(result), text(t, result), text(t, made))
		}
	}
}

// H22: without the store nothing runs, and the client does not learn why.
func TestH22StoreDown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.session()
	pgtest.Exec(t, r.pool, `alter function onlyonce.http_begin(uuid, text, text, text, text) rename to http_begun`)
	_, err := call(t.Context(), s, "place_order", "k", `{"item":"tea","amount":1}`)
	code, p := problemOf(err)
	good := code == serverError &&
		p.Code == "store-unavailable" &&
		p.Retryable &&
		p.RetryAfter == 1 &&
		r.runs.Load() == 0 &&
		!strings.Contains(err.Error(), "http_begin")
	if !good {
		t.Errorf("%v, %+v", err, p)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	layer := newLayer(t, r.pool)
	_, err := mcpserver.New(layer, mcpserver.Config{KeyMeta: mcpserver.StatusMeta, Tools: map[string]mcpserver.Tool{
		"":  {Doer: idempotency.DoerConfig{NoCalls: true}},
		"a": {},
		"b": {Doer: idempotency.DoerConfig{NoCalls: true, FingerprintJSON: true}},
	}})
	for _, want := range []string{"Config.Scope", "Config.KeyMeta", `Tools[""]`, `Tools["a"].Doer`, `Tools["b"].Doer`} {
		if !errors.Is(err, idempotency.ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := mcpserver.New(layer, mcpserver.Config{Scope: ownerOf}); err == nil || !strings.Contains(err.Error(), "Config.Tools") {
		t.Errorf("%v", err)
	}
	if err := r.guard.Check(t.Context(), r.server); err != nil {
		t.Error(err)
	}
	empty := mcp.NewServer(&mcp.Implementation{Name: "other", Version: "1"}, nil)
	mcp.AddTool(empty, &mcp.Tool{Name: "place_order"}, place)
	if err := r.guard.Check(t.Context(), empty); !errors.Is(err, idempotency.ErrConfig) ||
		!strings.Contains(err.Error(), `Tools["book_table"]`) ||
		strings.Contains(err.Error(), "place_order") {
		t.Errorf("%v", err)
	}
}
