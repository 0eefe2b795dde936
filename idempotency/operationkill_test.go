package idempotency_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// workerURL makes this test's program a process that works on operations, in that database.
const workerURL = "ONLYONCE_TEST_OPERATIONS_WORKER"

// TestOperationsWorker is that process. Its work says that it has begun, and ends at once if the
// database says so.
func TestOperationsWorker(t *testing.T) {
	url := os.Getenv(workerURL)
	if url == "" {
		return // only TestH23WorkSurvivesKills starts it
	}
	pool := pgtest.Pool(t, url+"&pool_max_conns=16") // a connection for each operation that runs
	layer, err := idempotency.New(pool, testConfig())
	if err != nil {
		t.Fatal(err)
	}
	ops, err := idempotency.NewOperations(
		layer,
		idempotency.OperationsConfig{Partitions: 4, LeaseTTL: time.Second, PollInterval: 20 * time.Millisecond},
		map[string]idempotency.Work{
			"export": func(ctx context.Context, tx consumer.Tx, _ *idempotency.Operation) (json.RawMessage, error) {
				if _, err := tx.Exec(ctx, `insert into effects values ($1)`, "export"); err != nil {
					return nil, err
				}
				fmt.Println("begun")
				var ends bool
				if err := tx.QueryRow(ctx, `select exists (select from effects where v = 'go on')`).Scan(&ends); err != nil {
					return nil, err
				}
				if !ends {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return json.RawMessage(`"done"`), nil
			}},
	)
	if err != nil {
		t.Fatal(err)
	}
	if err := ops.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// H23: an operation whose process is killed in the middle of it is done by the next one, and once.
func TestH23WorkSurvivesKills(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.operations(map[string]idempotency.Work{"export": func(context.Context, consumer.Tx, *idempotency.Operation) (json.RawMessage, error) {
		panic("this process does not work")
	}})
	accepted := r.post("/exports", "k1", "x")
	if accepted.status != http.StatusAccepted {
		t.Fatalf("%+v", accepted)
	}
	location := accepted.header.Get("Location")
	for range 2 {
		kill := r.worker()
		if s := r.state(location); s.State != "running" {
			t.Fatalf("%+v", s)
		}
		kill()
	}
	r.exec(`insert into effects values ('go on')`)
	defer r.worker()()
	if s := r.untilState(location, "succeeded"); string(s.Result) != `"done"` {
		t.Errorf("%+v", s)
	}
	if n := one[int](r, `select count(*) from effects where v = 'export'`); n != 1 {
		t.Errorf("%d effects", n)
	}
}

// worker starts a process that works, and returns when its work has begun.
func (r *rig) worker() (kill func()) {
	r.t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestOperationsWorker$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), workerURL+"="+r.pool.Config().ConnString())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == "begun" {
			return kill
		}
	}
	kill()
	r.t.Fatal("the worker ended before it began to work")
	return nil
}
