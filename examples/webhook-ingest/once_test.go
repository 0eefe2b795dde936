package main

import (
	"context"
	"maps"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/onlyoncetest"
	"github.com/onlyonce/onlyonce/webhook"
)

// Wherever the service dies, and however often an event comes, it is applied once.
func TestEventsOnce(t *testing.T) {
	sender := providers()[0]
	body := `{"object_id":"o-1","object_version":1}`
	sign := func(r *http.Request) {
		header, err := sender.sign(sender.secret, "evt_1", "paid", time.Now(), []byte(body))
		if err != nil {
			t.Error(err)
		}
		maps.Copy(r.Header, header)
	}
	onlyoncetest.Run(t, onlyoncetest.Case{
		Migrate: func(ctx context.Context, pool *pgxpool.Pool) error { _, err := pool.Exec(ctx, effectsSQL); return err },
		Serve: func(p *onlyoncetest.Process) (http.Handler, onlyoncetest.Runner, error) {
			in := &ingest{run: "test", pool: p.Pool, failed: map[string]bool{}}
			e, err := webhook.New(p.Pool, webhook.Config{Name: "standard", Provider: sender.scheme, Secrets: []string{sender.secret}, Handler: in.handle, Logger: p.Logger(),
				Partitions: 1, Source: webhook.SourceConfig{PollInterval: 20 * time.Millisecond, LeaseTTL: time.Second}})
			return e, e, err
		},
		Requests: []onlyoncetest.Request{{Path: "/hooks/standard", Body: body, Sign: sign}},
		Repeat:   true,
	})
}
