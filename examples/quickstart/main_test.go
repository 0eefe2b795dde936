package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/onlyonce/onlyonce/internal/devenv/kafkatest"
	"github.com/onlyonce/onlyonce/internal/devenv/pgtest"
	"github.com/onlyonce/onlyonce/internal/fleet"
)

// envMain makes this test binary the program.
const envMain = "ONLYONCE_QUICKSTART_TEST_MAIN"

func TestMain(m *testing.M) {
	if fleet.IsWorker() || os.Getenv(envMain) != "" {
		main()
	}
	os.Exit(m.Run())
}

// The program as a process, small.
func TestQuickstart(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-json", "-v", "-messages", "300", "-kills", "2", "-partitions", "4", "-postgres", url,
		"-brokers", brokers(t))
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
	if !r.OK || r.Unique != 300 || r.Produced != 660 || r.Effects+r.Parked != 300 || r.Parked != 1 || r.Payments != r.Effects ||
		r.KillsInBatch != 2 || r.Kills < 2 || r.Redelivered < 330 || r.DuplicatesByKey != 360 || r.DuplicatesByFence != 330 ||
		r.Delivered < r.Unique || r.PaymentCalls < r.Payments {
		t.Errorf("%+v\n%s", r, &stderr)
	}
	for _, field := range []string{"produced", "unique", "delivered", "effects", "duplicates", "redelivered", "parked", "kills", "payment_calls", "payments", "ok"} {
		if !strings.Contains(stdout.String(), `"`+field+`":`) {
			t.Errorf("field %s is missing: %s", field, &stdout)
		}
	}
	if !strings.Contains(stderr.String(), "applied once") {
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
	err = pool.QueryRow(t.Context(), `select (select count(*) from onlyonce.inbox) + (select count(*) from onlyonce.outbox_log) + (select count(*) from onlyonce.sinks) + (select count(*) from onlyonce.parked)
		+ (select count(*) from onlyonce.leases where name not like 'ring/%') + (select count(*) from onlyonce.progress) + (select count(*) from onlyonce_quickstart.effects)`).Scan(&n)
	if err != nil || n != 0 {
		t.Errorf("%d rows are left, %v", n, err)
	}
}

// A run whose outcome was tampered with must fail: the checker is no rubber stamp.
func TestTamperedOutcomeFails(t *testing.T) {
	t.Parallel()
	tamper := func(ctx context.Context, d *demo) error {
		for _, sql := range []string{
			`insert into onlyonce_quickstart.effects select * from onlyonce_quickstart.effects where run = $1 and order_id = 'order-0000007'`,
			`delete from onlyonce_quickstart.effects where run = $1 and order_id = 'order-0000009'`,
		} {
			if _, err := d.servers.Postgres.Pool.Exec(ctx, sql, d.run); err != nil {
				return err
			}
		}
		return nil
	}
	var stdout, stderr bytes.Buffer
	status := run(t.Context(), small(t, "-json", "-kills", "0"), &stdout, &stderr, tamper)
	var r report
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v: %s\n%s", err, &stdout, &stderr)
	}
	if status != statusFailed || r.OK || r.Missing != 1 || r.Doubled != 1 {
		t.Errorf("exit status %d, %+v", status, r)
	}
	for _, want := range []string{"lost: 1 (order-0000009)", "more than once: 1 (order-0000007)", "charged, and not applied", "kept: "} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("no word of %q:\n%s", want, &stderr)
		}
	}
}

// small are arguments for a short run on servers of this test's own.
func small(t *testing.T, args ...string) []string {
	return append([]string{"-partitions", "3", "-workers", "2", "-messages", "60", "-postgres", pgtest.URL(t),
		"-brokers", brokers(t)}, args...)
}

// brokers are those of a fake that says that it allows short sessions: each kill costs one.
func brokers(t *testing.T) string {
	cluster := kafkatest.FakeCluster(t, kfake.BrokerConfigs(map[string]string{"group.min.session.timeout.ms": "1000"}))
	return strings.Join(cluster.ListenAddrs(), ",")
}

func TestOwnMessages(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "mine.jsonl")
	lines := ""
	for i := range 100 {
		lines += `{"order":{"id":` + strconv.Itoa(i+1) + `},"what":"tea"}` + "\n"
	}
	lines += "\n" + `{"order":{"id":1},"what":"tea"}` + "\n"
	if err := os.WriteFile(name, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	args := slices.DeleteFunc(small(t, "-json", "-kills", "1", "-input", name, "-key", "/order/id"), func(a string) bool { return a == "-messages" || a == "60" })
	var stdout, stderr bytes.Buffer
	status := run(t.Context(), args, &stdout, &stderr, nil)
	var r report
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v: %s\n%s", err, &stdout, &stderr)
	}
	if status != statusGood || r.Unique != 100 || r.Produced != 2*(101+10) || r.Effects != 100 || r.Parked != 0 || r.Payments != 100 {
		t.Errorf("exit status %d, %+v\n%s", status, r, &stderr)
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
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	args := small(t, "-messages", "100", "-kills", "1")
	human := &tripwire{text: "kill 1 of 1", act: cancel}
	var stderr bytes.Buffer
	if status := run(ctx, args, human, &stderr, nil); status != statusInterrupted {
		t.Errorf("exit status %d\n%s\n%s", status, &human.buf, &stderr)
	}
	if !strings.Contains(stderr.String(), "interrupted") {
		t.Errorf("%s", &stderr)
	}
	nothingLeft(t, args[slices.Index(args, "-postgres")+1])
}

// A broker that goes away for good: the run ends, with what is known.
func TestStuckRunEnds(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.FakeCluster(t)
	human := &tripwire{text: "start: 2 worker", act: cluster.Close}
	var stderr bytes.Buffer
	args := []string{"-partitions", "3", "-workers", "2", "-messages", "60", "-kills", "0", "-patience", "2s", "-postgres", pgtest.URL(t),
		"-brokers", strings.Join(cluster.ListenAddrs(), ",")}
	if status := run(t.Context(), args, human, &stderr, nil); status != statusFailed {
		t.Errorf("exit status %d\n%s\n%s", status, &human.buf, &stderr)
	}
	for _, want := range []string{"stuck: waited 2s", "last error", "connection refused", "partition 2: ", "worker "} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("no word of %q:\n%s", want, &stderr)
		}
	}
}

func TestUsage(t *testing.T) {
	t.Setenv("ONLYONCE_KAFKA_BROKERS", "") // what the flags mean must not depend on where the tests run
	t.Setenv("ONLYONCE_POSTGRES_URL", "")
	missing := filepath.Join(t.TempDir(), "none.jsonl")
	for _, c := range []struct {
		args string
		want []string
	}{
		{"-bogus", []string{"-bogus", "-h lists"}},
		{"-messages 0 -duplicates 1.5 -kills x", []string{"-kills"}},
		{"-messages 0 -duplicates 1.5 -kills -1 -partitions 0 -workers 99 -patience 1ms", []string{"-messages", "-duplicates", "-kills", "-partitions", "-workers", "-patience"}},
		{"-messages 100 -kills 50", []string{"at least 5000"}},
		{"-key /id", []string{"only with -input"}},
		{"-input x -key id -messages 500", []string{"begins with '/'", "-messages: not with -input"}},
		{"-input " + missing, []string{"none.jsonl", "no such file"}},
		{"stray", []string{`unexpected argument "stray"`}},
		{"-tls", []string{"say for which brokers"}},
		{"-brokers 127.0.0.1:1 -postgres postgres://127.0.0.1:1/x", []string{"cannot reach kafka at 127.0.0.1:1", "cannot reach postgres at postgres://127.0.0.1:1/x", "connection refused", "is -brokers right?"}},
		{"-brokers nowhere -sasl plain -tls-ca none.pem", []string{"not host:port", "ONLYONCE_KAFKA_USER", "needs -tls"}},
	} {
		var stdout, stderr bytes.Buffer
		if status := run(t.Context(), strings.Fields(c.args), &stdout, &stderr, nil); status != statusEnvironment {
			t.Errorf("%s: exit status %d", c.args, status)
		}
		for _, want := range c.want {
			if !strings.Contains(stderr.String(), want) {
				t.Errorf("%s: no word of %q:\n%s", c.args, want, &stderr)
			}
		}
	}
	var stdout, stderr bytes.Buffer
	if status := run(t.Context(), []string{"-h"}, &stdout, &stderr, nil); status != statusGood || !strings.Contains(stdout.String(), "-patience") || stderr.Len() > 0 {
		t.Errorf("-h: exit status %d, %s%s", status, &stdout, &stderr)
	}
}
