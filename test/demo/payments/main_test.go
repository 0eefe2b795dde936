package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"testing"

	"github.com/onlyonce/onlyonce/test/demo/command"
	"github.com/onlyonce/onlyonce/test/demo/commandtest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/fleet"
)

func TestMain(m *testing.M) {
	if fleet.IsWorker() || commandtest.IsProgram() {
		main()
	}
	os.Exit(m.Run())
}

// The program as a process, small.
func TestPayments(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	var r report
	stderr := commandtest.Program(t, &r,
		[]string{
			"requests", "unique", "effects", "refused", "replays", "in_progress", "mismatches",
			"kills", "payment_calls", "payments", "ok",
		},
		"-json", "-v", "-requests", "300", "-clients", "8", "-kills", "2", "-postgres", url)
	good := r.OK &&
		r.Unique == 300 &&
		r.Effects+r.Refused == 300 &&
		r.Payments == r.Effects &&
		r.Kills == 2 &&
		r.Requests > 300 &&
		r.Replays != 0 &&
		r.PaymentCalls >= r.Payments
	if !good {
		t.Errorf("%+v\n%s", r, stderr)
	}
	commandtest.Contains(t, stderr, "done once") // a sentence for people
	nothingLeft(t, url)
}

// nothingLeft fails the test if a run has left rows in the user's own database.
func nothingLeft(t *testing.T, url string) {
	t.Helper()
	commandtest.NothingLeft(
		t, url, "onlyonce.http_records", "onlyonce.http_steps", "onlyonce.outbox_log",
		"onlyonce.sinks", "onlyonce.parked", "onlyonce.leases where name !~ '^(ring|filters)/'",
		"onlyonce_payments.charges", "onlyonce_payments.captures", "onlyonce_payments.settlements",
		"onlyonce.operations", "onlyonce.streams", "onlyonce.cursors", "onlyonce_payments.payouts",
	)
}

// with is the program, whose outcome is tampered with.
func with(tamper func(context.Context, *demo) error) commandtest.Run {
	return func(ctx context.Context, args []string, stdout, stderr io.Writer) int {
		return run(ctx, args, stdout, stderr, tamper)
	}
}

// A run whose outcome was tampered with must fail: the checker is no rubber stamp.
func TestTamperedOutcomeFails(t *testing.T) {
	t.Parallel()
	tamper := func(ctx context.Context, d *demo) error {
		pool := d.servers.Postgres.Pool
		var done []string
		for _, w := range d.wants {
			if w.path == "/v1/charges" && w.first.status < 300 {
				done = append(done, w.reference)
			}
		}
		for _, step := range []struct{ sql, reference string }{
			{
				`insert into onlyonce_payments.payouts (id, account, reference, amount, destination)
					select id || 'x', account, reference, amount, '' from onlyonce_payments.charges where reference = $1`,
				done[0],
			},
			{`delete from onlyonce_payments.charges where reference = $1`, done[1]},
		} {
			if _, err := pool.Exec(ctx, step.sql, step.reference); err != nil {
				return err
			}
		}
		d.wants[0].differ = true
		return nil
	}
	var r report
	status, stderr := commandtest.JSON(
		t,
		&r,
		with(tamper),
		"-json",
		"-requests",
		"40",
		"-clients",
		"4",
		"-kills",
		"0",
		"-retries",
		"0",
		"-postgres",
		pgtest.URL(t),
	)
	good := status == command.Failed &&
		!r.OK &&
		r.Missing >= 1 &&
		r.Doubled == 1 &&
		r.Differing == 1
	if !good {
		t.Errorf("exit status %d, %+v", status, r)
	}
	commandtest.Contains(t, stderr, "answered with success, and not there",
		"done more than once: 1", "answers that differ: 1", "paid, and not done", "kept: ")
}

// Ctrl-C in the middle: everything stops, nothing is left, and the exit status says so.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	human := commandtest.NewTripwire("start: 2 server", cancel)
	var stderr bytes.Buffer
	if status := run(ctx, []string{"-requests", "5000", "-postgres", url}, human, &stderr, nil); status != command.Interrupted {
		t.Errorf("exit status %d\n%s\n%s", status, human, &stderr)
	}
	commandtest.Contains(t, stderr.String(), "interrupted")
	nothingLeft(t, url)
}

func TestUsage(t *testing.T) {
	t.Setenv("ONLYONCE_POSTGRES_URL", "") // what the flags mean must not depend on where the tests run
	run := with(nil)
	commandtest.Refuses(t, run, map[string][]string{
		"-bogus": {"-bogus", "-h lists"},
		"-requests 0 -clients 0 -retries 1.5 -kills -1 -servers 99 -patience 1ms": {
			"-requests",
			"-clients",
			"-retries",
			"-kills",
			"-servers",
			"-patience",
		},
		"-requests 100 -kills 50":            {"at least 1500"},
		"stray":                              {`unexpected argument "stray"`},
		"-postgres postgres://127.0.0.1:1/x": {"cannot reach postgres at postgres://127.0.0.1:1/x", "connection refused"},
	})
	commandtest.Helps(t, run, "-patience")
}
