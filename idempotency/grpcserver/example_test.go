package grpcserver_test

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/idempotency/grpcserver"
	"github.com/onlyonce/onlyonce/seal"
)

// tenantKey is where your authentication puts the customer.
type tenantKey struct{}

// A server whose method Charge takes effect once for each key. The handler writes through Tx, in
// the transaction that stores its answer.
func Example() {
	serve := func(ctx context.Context, pool *pgxpool.Pool, secret seal.Key) (*grpc.Server, error) {
		layer, err := idempotency.New(pool, idempotency.Config{
			Scope:           idempotency.GlobalScope(), // for requests of HTTP: there are none here
			FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: secret}},
		})
		if err != nil {
			return nil, err
		}
		guard, err := grpcserver.New(layer, grpcserver.Config{
			Scope: func(ctx context.Context) (idempotency.Scope, error) {
				tenant, ok := ctx.Value(tenantKey{}).(string)
				if !ok {
					return idempotency.Scope{}, errors.New("not authenticated")
				}
				return idempotency.Scope{Tenant: tenant}, nil
			},
			Methods: map[string]grpcserver.Method{"/pay.v1.Payments/Charge": {Doer: idempotency.DoerConfig{NoCalls: true}}},
		})
		if err != nil {
			return nil, err
		}
		go func() { _ = layer.Run(ctx) }() // purges expired records
		server := grpc.NewServer(grpc.ChainUnaryInterceptor(guard.Unary()))
		// Register your services here, for example paypb.RegisterPaymentsServer(server, payments).
		return server, guard.Check(server)
	}
	charge := func(ctx context.Context, account *wrapperspb.StringValue) (*wrapperspb.Int64Value, error) {
		tx, err := grpcserver.TxOf(ctx)
		if err != nil {
			return nil, err
		}
		if account.GetValue() == "" {
			return nil, status.Error(codes.InvalidArgument, "an account is required") // final: given again
		}
		var id int64
		if err := tx.QueryRow(ctx, `insert into charges (account) values ($1) returning id`, account.GetValue()).Scan(&id); err != nil {
			return nil, status.Error(codes.Unavailable, "try again") // not final: undone, and the key is free
		}
		return wrapperspb.Int64(id), nil
	}
	_, _ = serve, charge
}
