package outbox_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// Every connection of the relay is cut while a call is under way. Its result is settled over a new
// one, and the call is not made again.
func TestConnectionsCut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := r.gate()
	sink := newScripted(g.accept)
	admin := r.pool
	r.pool = r.namedPool("relay")
	x := r.start(testConfig(sink))
	r.pool = admin
	r.enqueue(charge("1"))
	g.wait()
	if n := one[int](
		r,
		`
select count(pg_terminate_backend(pid))
  from pg_stat_activity where datname = current_database() and application_name = 'relay'`,
	); n == 0 {
		t.Fatal("there was no connection to cut")
	}
	g.release()
	r.states("delivered")
	x.stop()
	if n := len(sink.calls()); n != 1 {
		t.Errorf("%d calls, want 1", n)
	}
}

// Two relays, one row after the other, connections cut all the time: every row ends delivered, each
// under one key with one body.
func TestManyCuts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	m := newRemote(t)
	cfg := testConfig(m.sink())
	cfg.LeaseTTL = time.Second
	admin := r.pool
	var relays []*running
	for i, name := range []string{"relay-a", "relay-b"} {
		r.pool = r.namedPool(name)
		relays = append(relays, r.start(cfg))
		r.pool = admin
		// Run ends if it cannot check the schema when it starts, so the cuts begin later.
		until(t, name+" has begun", func() bool {
			return one[int](r, `select count(*) from onlyonce.leases where name like 'relays/payments/%' and until > clock_timestamp()`) > i
		})
	}
	const n = 300
	var cuts sync.WaitGroup
	stop := make(chan struct{})
	cuts.Go(func() {
		delivered := func() (n int) {
			_ = admin.QueryRow(context.Background(), `select count(*) from onlyonce.calls where state = 'delivered'`).Scan(&n)
			return n
		}
		// On a slow machine 100 ms may be too short for anything: cuts come less often until
		// something is delivered between two of them.
		for wait, before := 100*time.Millisecond, 0; ; {
			select {
			case <-time.After(wait):
			case <-stop:
				return
			}
			now := delivered()
			wait = min(2*wait, 2*time.Second)
			if now != before {
				wait = 100 * time.Millisecond
			}
			before = now
			_, _ = admin.Exec(
				context.Background(),
				`
select pg_terminate_backend(pid)
  from pg_stat_activity where datname = current_database() and application_name like 'relay-%'`,
			)
		}
	})
	for i := range n {
		r.enqueue(charge(fmt.Sprint(i)))
	}
	until(t, "most are delivered", func() bool {
		return one[int](r, `select count(*) from onlyonce.calls where state = 'delivered'`) > n/2
	})
	close(stop)
	cuts.Wait()
	r.states("delivered")
	for _, x := range relays {
		x.stop()
	}
	body := map[string]string{}
	for _, c := range m.calls() {
		if other, again := body[c.key]; again && other != c.body {
			t.Errorf("key %s with two bodies", c.key)
		}
		body[c.key] = c.body
	}
	if len(body) != n {
		t.Errorf("%d keys, want %d", len(body), n)
	}
	t.Logf("%d calls for %d rows", len(m.calls()), n)
}

// Names of the child process's environment.
const (
	childDB  = "ONLYONCE_TEST_CHILD_DB"
	childURL = "ONLYONCE_TEST_CHILD_URL"
)

// child is a relay in a process of its own, to be killed.
func child(db, url string) error {
	pool, err := pgxpool.New(context.Background(), db)
	if err != nil {
		return err
	}
	sink, err := httpsink.New(httpsink.Config{Name: "payments", BaseURL: url, KeyWindow: 24 * time.Hour, AllowPrivate: true})
	if err != nil {
		return err
	}
	cfg := testConfig(sink)
	cfg.LeaseTTL = time.Second
	relay, err := outbox.NewRelay(pool, cfg)
	if err != nil {
		return err
	}
	return relay.Run(context.Background())
}

// child starts a relay in a process of its own; kill ends it with SIGKILL.
func (r *rig) child(m *remote) (kill func()) {
	r.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDB+"="+r.pool.Config().ConnString(), childURL+"="+m.server.URL+"/v1")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// The process dies after the remote has accepted the call and before that is settled. Another relay
// sends the call again, under the same key and with the same bytes.
func TestKilledBetweenJournalAndSettlement(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	begun := make(chan struct{})
	m := newRemote(t, func(w http.ResponseWriter, req *http.Request) {
		close(begun)
		<-req.Context().Done() // the process is gone
	})
	r.enqueue(charge("1"))
	kill := r.child(m)
	pgtest.Receive(t, patience, "it has begun", begun)
	kill()
	if got := one[string](r, `select state from onlyonce.calls`); got != "pending" && got != "retrying" {
		t.Fatalf("row %s", got)
	}
	// it may have been killed after the lane had gone on without the call
	r.exec(`update onlyonce.parked set next_attempt_at = clock_timestamp()`)
	r.start(testConfig(m.sink()))
	r.states("delivered")
	m.same(2)
}

// Relay processes are killed while producers commit and roll back and the remote fails in every way
// it can. Each committed row ends delivered, and was called under its own key only and with its own
// bytes. No other call was made.
func TestKills(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	script := make([]http.HandlerFunc, 4000)
	ways := []http.HandlerFunc{status(200), dropped, status(200), status(500), truncated, status(200), status(429)}
	for i := range script {
		script[i] = ways[i%len(ways)]
	}
	m := newRemote(t, script...)
	kill := r.child(m)
	var produced []string
	for round := range 4 {
		before := len(m.calls()) // a relay that is quick calls while the round is still being written
		for i := range 40 {
			id := fmt.Sprintf("%d-%d", round, i)
			tx, err := r.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := outbox.Enqueue(t.Context(), tx, charge(id)); err != nil {
				t.Fatal(err)
			}
			if i%4 == 3 {
				err = tx.Rollback(t.Context())
			} else {
				produced = append(produced, string(charge(id).Body))
				err = tx.Commit(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		until(t, "the relay of this round calls", func() bool { return len(m.calls()) > before+10 })
		kill()
		if round < 3 {
			kill = r.child(m)
		}
	}
	r.start(testConfig(m.sink()))
	r.states("delivered")
	slices.Sort(produced)
	rows := map[string]string{}
	for _, pair := range one[[]string](r, `select array_agg(key::text || convert_from(body, 'UTF8')) from onlyonce.outbox_log`) {
		rows[pair[:36]] = pair[36:]
	}
	if got := slices.Sorted(maps.Values(rows)); !slices.Equal(got, produced) {
		t.Errorf("%d rows, %d produced", len(got), len(produced))
	}
	called := map[string]bool{}
	for _, c := range m.calls() {
		called[c.key] = true
		if rows[c.key] != c.body {
			t.Errorf("called %s with %s, its row has %q", c.key, c.body, rows[c.key])
		}
	}
	if len(called) != len(rows) {
		t.Errorf("%d keys were called, want %d", len(called), len(rows))
	}
	t.Logf("%d calls for %d rows", len(m.calls()), len(rows))
}
