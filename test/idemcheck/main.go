// Idemcheck plays cmd/idemcheck, the suite that tests anybody's server, against
// examples/payments-api: a route in one transaction (/v1/charges) and one with a lease and steps
// (/v1/payouts). The API is a process of its own, which the suite's restart command kills. It needs
// a Postgres in ONLYONCE_POSTGRES_URL:
//
//	make idemcheck
//
// At the end each charge and each payout must have been paid once at the provider.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// get is the first argument of this program as a command of the suite: it gets a URL, and fails if
// the answer is not 200.
const get = "get"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "idemcheck:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case os.Getenv(envServer) != "":
		return serve(ctx)
	case len(args) == 2 && args[0] == get:
		return getURL(ctx, args[1])
	}
	within := flag.Duration("within", 8*time.Minute, "give up after `D`")
	flag.Parse()
	ctx, cancel := context.WithTimeoutCause(ctx, *within, fmt.Errorf("gave up after %s", *within))
	defer cancel()
	return errors.Join(check(ctx), context.Cause(ctx))
}

func getURL(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	said, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, said)
	}
	return err
}

// check plays the suite against each route, and counts what the provider has paid.
func check(ctx context.Context) (err error) {
	w, err := newWorld(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	program, err := buildSuite(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(program)) }()
	sum := map[string]int{}
	for _, r := range routes {
		if err := w.play(ctx, program, r, sum); err != nil {
			return err
		}
	}
	if err := w.paid(ctx); err != nil {
		return err
	}
	verdict := "ok"
	if sum["failed"] > 0 {
		verdict = "failed"
		err = errors.New("the API does not keep what it promises")
	}
	fmt.Printf("idemcheck %s passed=%d failed=%d skipped=%d restarts=%d payments=%d\n",
		verdict, sum["passed"], sum["failed"], sum["skipped"], w.restarts, w.provider.payments())
	return err
}
