// Dashboards checks what package monitoring ships against a real Prometheus: it runs a workload
// with telemetry, has Prometheus scrape it, and asks the query of each panel, which must return
// data. It also looks for each metric that rules and dashboards name, and lets Prometheus
// evaluate the rules.
//
// The workload is a process with consumers, a relay, an HTTP layer and a webhook endpoint. It is
// killed twice, one message is parked, one partition halts, one call needs reconciliation, and
// one ring rotates; each must be seen in Prometheus.
//
// It needs prometheus (Debian's package of that name), and a Postgres in ONLYONCE_POSTGRES_URL:
//
//	make dashboards
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if os.Getenv(envWorker) != "" {
		err = worker(ctx)
	} else {
		dir := flag.String("monitoring", "../../deploy/monitoring", "the folder of rules and dashboards")
		within := flag.Duration("within", 5*time.Minute, "give up after `D`")
		flag.Parse()
		bounded, cancel := context.WithTimeoutCause(ctx, *within, fmt.Errorf("gave up after %s", *within))
		defer cancel()
		err = check(bounded, *dir)
		if cause := context.Cause(bounded); cause != nil {
			err = errors.Join(err, cause)
		}
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "dashboards:", err)
		os.Exit(1)
	}
}

func check(ctx context.Context, dir string) error {
	wanted, err := read(dir)
	if err != nil {
		return err
	}
	w, err := newWorkload(ctx)
	if err != nil {
		return err
	}
	defer w.end()
	p, err := startPrometheus(ctx, dir, w.address)
	if err != nil {
		return err
	}
	defer p.end()
	if err := w.run(ctx, p); err != nil {
		return err
	}
	if err := p.answers(ctx, wanted, w.traffic); err != nil {
		return err
	}
	fmt.Printf("dashboards ok panels=%d queries=%d metrics=%d\n", wanted.panels, len(wanted.queries), len(wanted.metrics))
	return nil
}
