package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/onlyonce/onlyonce/test/demo/command"
	"github.com/onlyonce/onlyonce/test/demo/commandtest"
	"github.com/onlyonce/onlyonce/test/demo/quickstart"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
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
func TestQuickstart(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	var r quickstart.Report
	stderr := commandtest.Program(t, &r,
		[]string{
			"produced", "unique", "delivered", "effects", "duplicates", "redelivered", "parked",
			"kills", "payment_calls", "payments", "ok",
		},
		"-json", "-v", "-messages", "300", "-kills", "2", "-partitions", "4", "-postgres", url, "-brokers", brokers(t))
	good := r.OK &&
		r.Unique == 300 &&
		r.Produced == 660 &&
		r.Effects+r.Parked == 300 &&
		r.Parked == 1 &&
		r.Payments == r.Effects &&
		r.KillsInBatch == 2 &&
		r.Kills >= 2 &&
		r.Redelivered >= 330 &&
		r.DuplicatesByKey == 360 &&
		r.DuplicatesByFence == 330 &&
		r.Delivered >= r.Unique &&
		r.PaymentCalls >= r.Payments
	if !good {
		t.Errorf("%+v\n%s", r, stderr)
	}
	commandtest.Contains(t, stderr, "applied once") // a sentence for people
	nothingLeft(t, url)
}

// nothingLeft fails the test if a run has left rows in the user's own database.
func nothingLeft(t *testing.T, url string) {
	t.Helper()
	commandtest.NothingLeft(
		t, url, "onlyonce.inbox", "onlyonce.outbox_log", "onlyonce.sinks", "onlyonce.parked",
		"onlyonce.leases where name !~ '^(ring|filters)/'", "onlyonce.progress",
		"onlyonce_quickstart.effects",
	)
}

// A run whose outcome was tampered with must fail: the checker is no rubber stamp.
func TestTamperedOutcomeFails(t *testing.T) {
	t.Parallel()
	tamper := func(ctx context.Context, pool *pgxpool.Pool, run string) error {
		for _, sql := range []string{
			`insert into onlyonce_quickstart.effects select * from onlyonce_quickstart.effects
				where run = $1 and order_id = 'order-0000007'`,
			`delete from onlyonce_quickstart.effects where run = $1 and order_id = 'order-0000009'`,
		} {
			if _, err := pool.Exec(ctx, sql, run); err != nil {
				return err
			}
		}
		return nil
	}
	var r quickstart.Report
	status, stderr := commandtest.JSON(t, &r, with(tamper), small(t, "-json", "-kills", "0")...)
	good := status == command.Failed && !r.OK && r.Missing == 1 && r.Doubled == 1
	if !good {
		t.Errorf("exit status %d, %+v", status, r)
	}
	commandtest.Contains(t, stderr, "lost: 1 (order-0000009)", "more than once: 1 (order-0000007)", "charged, and not applied", "kept: ")
}

// with is the program, whose outcome is tampered with.
func with(tamper func(context.Context, *pgxpool.Pool, string) error) commandtest.Run {
	return func(ctx context.Context, args []string, stdout, stderr io.Writer) int {
		return quickstart.Run(ctx, service, args, stdout, stderr, tamper)
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
	args := slices.DeleteFunc(small(t, "-json", "-kills", "1", "-input", name, "-key", "/order/id"), func(a string) bool {
		return a == "-messages" || a == "60"
	})
	var r quickstart.Report
	status, stderr := commandtest.JSON(t, &r, with(nil), args...)
	good := status == command.Good &&
		r.Unique == 100 &&
		r.Produced == 2*(101+10) &&
		r.Effects == 100 &&
		r.Parked == 0 &&
		r.Payments == 100
	if !good {
		t.Errorf("exit status %d, %+v\n%s", status, r, stderr)
	}
}

// Ctrl-C in the middle: everything stops, nothing is left, and the exit status says so.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	args := small(t, "-messages", "100", "-kills", "1")
	human := commandtest.NewTripwire("kill 1 of 1", cancel)
	var stderr bytes.Buffer
	if status := with(nil)(ctx, args, human, &stderr); status != command.Interrupted {
		t.Errorf("exit status %d\n%s\n%s", status, human, &stderr)
	}
	commandtest.Contains(t, stderr.String(), "interrupted")
	nothingLeft(t, args[slices.Index(args, "-postgres")+1])
}

// A broker that goes away for good: the run ends, with what is known.
func TestStuckRunEnds(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.FakeCluster(t)
	human := commandtest.NewTripwire("start: 2 worker", cluster.Close)
	var stderr bytes.Buffer
	args := []string{"-partitions", "3", "-workers", "2", "-messages", "60", "-kills", "0", "-patience", "10s", "-postgres", pgtest.URL(t),
		"-brokers", strings.Join(cluster.ListenAddrs(), ",")}
	if status := with(nil)(t.Context(), args, human, &stderr); status != command.Failed {
		t.Errorf("exit status %d\n%s\n%s", status, human, &stderr)
	}
	commandtest.Contains(t, stderr.String(), "stuck: waited 10s", "last error", "connection refused", "partition 2: ", "worker ")
}

func TestUsage(t *testing.T) {
	t.Setenv("ONLYONCE_KAFKA_BROKERS", "") // what the flags mean must not depend on where the tests run
	t.Setenv("ONLYONCE_POSTGRES_URL", "")
	missing := filepath.Join(t.TempDir(), "none.jsonl")
	run := with(nil)
	commandtest.Refuses(t, run, map[string][]string{
		"-bogus":                               {"-bogus", "-h lists"},
		"-messages 0 -duplicates 1.5 -kills x": {"-kills"},
		"-messages 0 -duplicates 1.5 -kills -1 -partitions 0 -workers 99 -patience 1ms": {
			"-messages",
			"-duplicates",
			"-kills",
			"-partitions",
			"-workers",
			"-patience",
		},
		"-messages 100 -kills 50":        {"at least 5000"},
		"-key /id":                       {"only with -input"},
		"-input x -key id -messages 500": {"begins with '/'", "-messages: not with -input"},
		"-input " + missing:              {"none.jsonl", "no such file"},
		"stray":                          {`unexpected argument "stray"`},
		"-tls":                           {"say for which brokers"},
		"-brokers 127.0.0.1:1 -postgres postgres://127.0.0.1:1/x": {
			"cannot reach kafka at 127.0.0.1:1",
			"cannot reach postgres at postgres://127.0.0.1:1/x",
			"connection refused",
			"is -brokers right?",
		},
		"-brokers nowhere -sasl plain -tls-ca none.pem": {"not host:port", "ONLYONCE_KAFKA_USER", "needs -tls"},
	})
	commandtest.Helps(t, run, "-patience")
}
