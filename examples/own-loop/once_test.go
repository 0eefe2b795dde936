package main

import (
	"context"
	"io"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/onlyonce/onlyonce/onlyoncetest"
)

// An order that is delivered again, because the process died or the loop got no answer, is applied
// once. A request stands for a delivery: it is repeated until the loop would acknowledge it.
func TestOrdersOnce(t *testing.T) {
	onlyoncetest.Run(t, onlyoncetest.Case{
		Migrate: func(ctx context.Context, pool *pgxpool.Pool) error { _, err := pool.Exec(ctx, tableSQL); return err },
		Serve: func(p *onlyoncetest.Process) (http.Handler, onlyoncetest.Runner, error) {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err == nil {
					id := []kafka.Header{{Key: "message-id", Value: []byte(r.URL.Query().Get("id"))}}
					_, err = apply(r.Context(), p.Pool, kafka.Message{Headers: id, Value: body})
				}
				if err != nil {
					w.WriteHeader(http.StatusInternalServerError)
				}
			}), nil, nil
		},
		Requests: []onlyoncetest.Request{{Path: "/?id=1", Body: "a"}, {Path: "/?id=2", Body: "b"}, {Path: "/?id=1", Body: "another"}},
		Repeat:   true,
	})
}
