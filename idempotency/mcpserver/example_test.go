package mcpserver_test

import (
	"context"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/idempotency/mcpserver"
	"github.com/onlyonce/onlyonce/seal"
)

// A server whose tool place_order takes effect once for each key. The tool writes through TxOf, in
// the transaction that stores its result.
func Example() {
	type orderInput struct {
		Item string `json:"item"`
	}
	type orderOutput struct {
		ID int64 `json:"id"`
	}
	placeOrder := func(ctx context.Context, _ *mcp.CallToolRequest, in orderInput) (*mcp.CallToolResult, orderOutput, error) {
		tx, err := mcpserver.TxOf(ctx)
		if err != nil {
			return nil, orderOutput{}, err
		}
		if in.Item == "" {
			return nil, orderOutput{}, idempotency.Permanent("no-item", "name an item") // final: given again
		}
		var out orderOutput
		err = tx.QueryRow(ctx, `insert into orders (item) values ($1) returning id`, in.Item).Scan(&out.ID)
		return nil, out, err // an error is not final: it is undone, and the key is free
	}
	serve := func(ctx context.Context, pool *pgxpool.Pool, secret seal.Key, verifier auth.TokenVerifier) (http.Handler, error) {
		layer, err := idempotency.New(pool, idempotency.Config{
			Scope:           idempotency.GlobalScope(), // for requests of HTTP: there are none here
			FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: secret}},
		})
		if err != nil {
			return nil, err
		}
		guard, err := mcpserver.New(layer, mcpserver.Config{
			Scope: mcpserver.TokenScope, // the token's user
			Tools: map[string]mcpserver.Tool{"place_order": {Doer: idempotency.DoerConfig{NoCalls: true}}},
		})
		if err != nil {
			return nil, err
		}
		go func() { _ = layer.Run(ctx) }() // purges expired records
		server := mcp.NewServer(&mcp.Implementation{Name: "shop", Version: "1"}, nil)
		mcp.AddTool(server, &mcp.Tool{Name: "place_order", Description: "Places an order. Send _meta idempotency-key."}, placeOrder)
		server.AddReceivingMiddleware(guard.Middleware())
		handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
		return auth.RequireBearerToken(verifier, nil)(handler), guard.Check(ctx, server)
	}
	_ = serve
}
