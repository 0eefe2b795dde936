package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/telemetry"
	"github.com/onlyonce/onlyonce/telemetry/test/system"
	"github.com/onlyonce/onlyonce/webhook"
)

// What the worker's process gets from the program that starts it.
const (
	envWorker   = "DASHBOARDS_WORKER" // how often it was started
	envDatabase = "DASHBOARDS_DATABASE"
	envRemote   = "DASHBOARDS_REMOTE"
	envAddress  = "DASHBOARDS_ADDRESS"
)

const (
	lives    = 3   // of the worker
	perLife  = 500 // orders that are new in each life
	halfway  = 250 // the order that is poison
	pauseFor = 50 * time.Millisecond
)

// worker is the process that is scraped and killed. Its logs are in memory: each life appends the
// same records, and then more.
func worker(ctx context.Context) error {
	life, err := strconv.Atoi(os.Getenv(envWorker))
	if err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(os.Getenv("ONLYONCE_POSTGRES_URL"))
	if err != nil {
		return err
	}
	config.ConnConfig.Database = os.Getenv(envDatabase)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	s := &system.System{Pool: pool, Remote: os.Getenv(envRemote), Orders: memlog.NewLog("orders", 1), Audits: memlog.NewLog("refunds", 1),
		Missed:    []*webhook.Event{{ID: "missed", Time: time.Now(), Body: []byte("{}")}},
		Telemetry: telemetry.Config{TracerProvider: trace.NewTracerProvider(), Interval: 2 * time.Second}}
	midnight := time.Now().UTC().Truncate(24 * time.Hour)
	order := func(n int) {
		payload := "order"
		switch n {
		case halfway:
			payload = system.Poison
		case halfway + 1:
			payload = system.Failing
		}
		system.Order(s.Orders, n, payload, midnight.Add(time.Duration(n)*time.Second))
	}
	n := 0
	for ; n < perLife*life; n++ {
		order(n)
	}
	for i := range 10 {
		system.Order(s.Audits, i, "refund", midnight)
	}
	listener, err := net.Listen("tcp", os.Getenv(envAddress))
	if err != nil {
		return err
	}
	return s.Run(ctx, func(h http.Handler) {
		go func() {
			server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
			if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				fmt.Fprintln(os.Stderr, "dashboards: worker:", err)
			}
		}()
		if life < lives {
			return
		}
		// The last life goes on: orders come, and a topic is created anew, so its consumer halts.
		s.Audits.Recreate()
		go func() {
			for ctx.Err() == nil {
				order(n)
				system.Order(s.Orders, n, "order", time.Now()) // a copy
				n++
				time.Sleep(pauseFor)
			}
		}()
	})
}
