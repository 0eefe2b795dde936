package webhook_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/webhook"
)

// The cost of an endpoint compared with a handler that only reads the body and inserts it, with
// several requests at once.
func BenchmarkReceiver(b *testing.B) {
	s := samples(b)["Stripe"]
	pool := func(b *testing.B) *pgxpool.Pool {
		cfg, err := pgxpool.ParseConfig(pgtest.URL(b))
		if err != nil {
			b.Fatal(err)
		}
		cfg.MaxConns = 8
		p, err := pgxpool.NewWithConfig(b.Context(), cfg)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(p.Close)
		return p
	}
	bare := func(b *testing.B) http.Handler {
		p := pool(b)
		if _, err := p.Exec(b.Context(), `create table bodies (id bigserial primary key, body bytea)`); err != nil {
			b.Fatal(err)
		}
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			body, err := io.ReadAll(req.Body)
			if err == nil {
				_, err = p.Exec(req.Context(), `insert into bodies (body) values ($1)`, body)
			}
			if err != nil {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			w.WriteHeader(http.StatusOK)
		})
	}
	receiver := func(more ...func(*webhook.Config)) func(b *testing.B) http.Handler {
		return func(b *testing.B) http.Handler {
			cfg := webhook.Config{Name: "e", Provider: s.provider, Secrets: []string{s.secret}}
			for _, m := range more {
				m(&cfg)
			}
			r, err := webhook.New(pool(b), cfg)
			if err != nil {
				b.Fatal(err)
			}
			return r
		}
	}
	var n atomic.Int64
	for _, c := range []struct {
		name string
		make func(*testing.B) http.Handler
	}{{"bare", bare}, {"inbox", receiver()}, {"duplicates", receiver()}} {
		b.Run(c.name, func(b *testing.B) {
			h := c.make(b)
			b.SetParallelism(8)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					id := n.Add(1)
					if c.name == "duplicates" {
						id = 0
					}
					body := stripeBody(fmt.Sprint("evt_", id), "")
					req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, "/", bytes.NewReader([]byte(body)))
					if err != nil {
						b.Error(err)
						return
					}
					req.Header = s.sign(s.secret, time.Now(), body)
					w := &discard{header: http.Header{}}
					if h.ServeHTTP(w, req); w.status != http.StatusOK {
						b.Errorf("status %d", w.status)
						return
					}
				}
			})
		})
	}
}
