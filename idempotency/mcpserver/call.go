package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
)

// runTool runs a tool once.
type runTool func(ctx context.Context) (*mcp.CallToolResult, error)

// request is what two calls under one key must have in common (H7).
type request struct {
	Arguments      json.RawMessage      `json:"arguments"`
	InputResponses mcp.InputResponseMap `json:"inputResponses,omitempty"`
	RequestState   string               `json:"requestState,omitempty"`
}

// requestOf returns a call's request. A call without arguments equals one with none.
func requestOf(p *mcp.CallToolParamsRaw) request {
	r := request{p.Arguments, p.InputResponses, p.RequestState}
	if len(r.Arguments) == 0 {
		r.Arguments = json.RawMessage("{}")
	}
	return r
}

// notKept is the error of a run whose result goes to the client and is not stored.
type notKept struct{ result *mcp.CallToolResult }

func (*notKept) Error() string { return "mcpserver: the result is not kept" }

// call runs the tool, or returns what an earlier call has stored (H25, H35).
func (t *tool) call(
	ctx context.Context,
	scope idempotency.Scope,
	key string,
	params *mcp.CallToolParamsRaw,
	run runTool,
) (*mcp.CallToolResult, error) {
	result, how, err := idempotency.Do(
		ctx,
		t.doer,
		scope,
		key,
		requestOf(params),
		func(ctx context.Context, tx consumer.Tx) (*mcp.CallToolResult, error) {
			result, err := run(context.WithValue(ctx, txKey{}, tx))
			if err != nil {
				return nil, err
			}
			return result, keep(result)
		},
	)
	var unkept *notKept
	var permanent *idempotency.PermanentError
	var refused *idempotency.RefusedError
	switch {
	case errors.As(err, &unkept):
		return marked(unkept.result, how), nil
	case errors.As(err, &permanent):
		result := &mcp.CallToolResult{}
		result.SetError(permanent)
		return marked(result, how), nil
	case errors.As(err, &refused):
		if refused.Err != nil {
			t.guard.cfg.Logger.ErrorContext(ctx, "onlyonce: tool call refused",
				"tool", t.name, "code", refused.Code, "error", refused.Err)
		}
		told := &idempotency.RefusedError{Code: refused.Code} // without the cause
		return nil, problem(codeServer, refused.Code, told.Error(), refused.Retryable, refused.RetryAfter)
	case err != nil:
		return nil, err
	}
	return marked(result, how), nil
}

// keep returns the error with which a result is not stored, or stored as a refusal; nil if it is
// stored as it is.
func keep(result *mcp.CallToolResult) error {
	var permanent *idempotency.PermanentError
	switch {
	case errors.As(result.GetError(), &permanent):
		return permanent
	case result.IsError || result.InputRequests != nil:
		return &notKept{result}
	}
	return nil
}

// marked returns the result with what was done (H9). A tool's own value of this name is dropped.
func marked(result *mcp.CallToolResult, how idempotency.ServeOutcome) *mcp.CallToolResult {
	if result == nil {
		return nil
	}
	own := *result
	own.Meta = mcp.Meta{}
	for name, value := range result.Meta {
		own.Meta[name] = value
	}
	own.Meta[StatusMeta] = string(how)
	return &own
}

// codec stores requests and results as the protocol's JSON.
type codec struct{}

func (codec) Marshal(v any) ([]byte, error) { return json.Marshal(v) }

// Unmarshal keeps the structured content as it was written: as a map it would lose digits of its
// numbers.
func (codec) Unmarshal(data []byte, v any) error {
	if err := json.Unmarshal(data, v); err != nil {
		return err
	}
	into, is := v.(**mcp.CallToolResult)
	if !is {
		return nil
	}
	var raw struct {
		StructuredContent json.RawMessage `json:"structuredContent"`
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	if raw.StructuredContent != nil {
		(*into).StructuredContent = raw.StructuredContent
	}
	return nil
}

// codeServer is the code of JSON-RPC for errors of the server, among them a key that was used for
// another call. UCP asks for it.
const codeServer = -32000

// Problem is the data of each of the middleware's own errors of the protocol, a *jsonrpc.Error.
type Problem struct {
	// Code is the reason, as in the HTTP layer's problems, for example "key-reused".
	Code string `json:"code"`
	// Content is the error's message once more, for clients of UCP.
	Content string `json:"content"`
	// Retryable reports whether the same call under the same key can end differently.
	Retryable bool `json:"retryable"`
	// RetryAfter is how many seconds to wait before another call. It is 0 if a wait does not help.
	RetryAfter int `json:"retry_after,omitempty"`
}

// problem makes an error of the protocol.
func problem(rpcCode int64, code, message string, retryable bool, after time.Duration) error {
	seconds := int((after + time.Second - 1) / time.Second)
	data, err := json.Marshal(Problem{code, message, retryable, seconds})
	if err != nil {
		panic(err) // cannot fail: strings, a bool and a number
	}
	return &jsonrpc.Error{Code: rpcCode, Message: message, Data: data}
}
