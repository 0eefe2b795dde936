package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/devenv/pgtest"
)

// envMain makes this test binary the program.
const envMain = "ONLYONCE_PAYMENTS_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(envServer) != "" || os.Getenv(envMain) != "" {
		main()
	}
	os.Exit(m.Run())
}

// The program as a process, small.
func TestPaymentsAPI(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-json", "-v", "-requests", "300", "-clients", "8", "-kills", "2", "-postgres", url)
	cmd.Env = slices.DeleteFunc(append(os.Environ(), envMain+"=1"), func(v string) bool { return strings.HasPrefix(v, "ONLYONCE_ENV=") })
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	var r report
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("standard output is not one JSON object: %v\n%s", err, &stdout)
	}
	if !r.OK || r.Unique != 300 || r.Effects+r.Refused != 300 || r.Payments != r.Effects || r.Kills != 2 || r.Requests <= 300 || r.Replays == 0 ||
		r.PaymentCalls < r.Payments {
		t.Errorf("%+v\n%s", r, &stderr)
	}
	for _, field := range []string{"requests", "unique", "effects", "refused", "replays", "in_progress", "mismatches", "kills", "payment_calls", "payments", "ok"} {
		if !strings.Contains(stdout.String(), `"`+field+`":`) {
			t.Errorf("field %s is missing: %s", field, &stdout)
		}
	}
	if !strings.Contains(stderr.String(), "done once") {
		t.Errorf("no sentence for people:\n%s", &stderr)
	}
	nothingLeft(t, url)
}

// nothingLeft fails the test if a run has left rows in the user's own database.
func nothingLeft(t *testing.T, url string) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var n int
	err = pool.QueryRow(t.Context(), `select (select count(*) from onlyonce.http_records) + (select count(*) from onlyonce.http_steps) + (select count(*) from onlyonce.outbox_log)
		+ (select count(*) from onlyonce.sinks) + (select count(*) from onlyonce.parked) + (select count(*) from onlyonce.leases where name not like 'ring/%')
		+ (select count(*) from onlyonce_payments.charges) + (select count(*) from onlyonce_payments.captures) + (select count(*) from onlyonce_payments.payouts)`).Scan(&n)
	if err != nil || n != 0 {
		t.Errorf("%d rows are left, %v", n, err)
	}
}

// Every answer that the load's clients get is as openapi.yaml says, and so is every request that they mean.
func TestLoadKeepsToOpenAPI(t *testing.T) {
	t.Parallel()
	c := newContract(t)
	var stdout, stderr bytes.Buffer
	status := run(t.Context(), []string{"-requests", "200", "-clients", "8", "-kills", "1", "-postgres", pgtest.URL(t)}, &stdout, &stderr,
		hooks{seen: func(s seen) { c.check(s, s.Status < 300) }})
	if status != statusGood {
		t.Errorf("exit status %d\n%s\n%s", status, &stdout, &stderr)
	}
	met := 0
	for _, n := range c.answered {
		met += n
	}
	if met < 300 || c.answered["POST /v1/charges 201 created"] == 0 || c.answered["POST /v1/charges 201 replayed"] == 0 {
		t.Errorf("%d answers: %v", met, c.answered)
	}
}

// A run whose outcome was tampered with must fail: the checker is no rubber stamp.
func TestTamperedOutcomeFails(t *testing.T) {
	t.Parallel()
	tamper := func(ctx context.Context, d *demo) error {
		pool := d.servers.Postgres.Pool
		var done []string
		for _, w := range d.wants {
			if w.path == "/v1/charges" && w.first.Status < 300 {
				done = append(done, w.reference)
			}
		}
		for _, step := range []struct{ sql, reference string }{
			{`insert into onlyonce_payments.charges (id, account, reference, amount, currency, at_once, captured) select id || 'x', account, reference, amount, currency, at_once, captured from onlyonce_payments.charges where reference = $1`, done[0]},
			{`delete from onlyonce_payments.charges where reference = $1`, done[1]},
		} {
			if _, err := pool.Exec(ctx, step.sql, step.reference); err != nil {
				return err
			}
		}
		d.wants[0].differ = true
		return nil
	}
	var stdout, stderr bytes.Buffer
	status := run(t.Context(), []string{"-json", "-requests", "40", "-clients", "4", "-kills", "0", "-retries", "0", "-postgres", pgtest.URL(t)}, &stdout, &stderr, hooks{tamper: tamper})
	var r report
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v: %s\n%s", err, &stdout, &stderr)
	}
	if status != statusFailed || r.OK || r.Missing < 1 || r.Doubled != 1 || r.Differing != 1 {
		t.Errorf("exit status %d, %+v", status, r)
	}
	for _, want := range []string{"answered with success, and not there", "done more than once: 1", "answers that differ: 1", "paid, and not done", "kept: "} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("no word of %q:\n%s", want, &stderr)
		}
	}
}

// tripwire is a writer that acts when a text has been written to it.
type tripwire struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	text string
	act  func()
}

func (w *tripwire) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf.Write(b)
	if w.act != nil && strings.Contains(w.buf.String(), w.text) {
		w.act()
		w.act = nil
	}
	return len(b), nil
}

// Ctrl-C in the middle: everything stops, nothing is left, and the exit status says so.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	human := &tripwire{text: "start: 2 server", act: cancel}
	var stderr bytes.Buffer
	if status := run(ctx, []string{"-requests", "5000", "-postgres", url}, human, &stderr, hooks{}); status != statusInterrupted {
		t.Errorf("exit status %d\n%s\n%s", status, &human.buf, &stderr)
	}
	if !strings.Contains(stderr.String(), "interrupted") {
		t.Errorf("%s", &stderr)
	}
	nothingLeft(t, url)
}

func TestUsage(t *testing.T) {
	t.Setenv("ONLYONCE_POSTGRES_URL", "") // what the flags mean must not depend on where the tests run
	for _, c := range []struct {
		args string
		want []string
	}{
		{"-bogus", []string{"-bogus", "-h lists"}},
		{"-requests 0 -clients 0 -retries 1.5 -kills -1 -servers 99 -patience 1ms", []string{"-requests", "-clients", "-retries", "-kills", "-servers", "-patience"}},
		{"-requests 100 -kills 50", []string{"at least 1500"}},
		{"stray", []string{`unexpected argument "stray"`}},
		{"-postgres postgres://127.0.0.1:1/x", []string{"cannot reach postgres at postgres://127.0.0.1:1/x", "connection refused"}},
	} {
		var stdout, stderr bytes.Buffer
		if status := run(t.Context(), strings.Fields(c.args), &stdout, &stderr, hooks{}); status != statusEnvironment {
			t.Errorf("%s: exit status %d", c.args, status)
		}
		for _, want := range c.want {
			if !strings.Contains(stderr.String(), want) {
				t.Errorf("%s: no word of %q:\n%s", c.args, want, &stderr)
			}
		}
	}
	var stdout, stderr bytes.Buffer
	if status := run(t.Context(), []string{"-h"}, &stdout, &stderr, hooks{}); status != statusGood || !strings.Contains(stdout.String(), "-patience") || stderr.Len() > 0 {
		t.Errorf("-h: exit status %d, %s%s", status, &stdout, &stderr)
	}
}
