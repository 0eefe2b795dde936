package python_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// patience bounds what tests wait for; nothing is judged by how long it took.
var patience = pgtest.Patience(time.Minute)

// python returns an interpreter that has psycopg 3. Debian's is asked first: another one in the
// path may not see its packages.
func python(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"/usr/bin/python3", "python3"} {
		if exec.CommandContext(t.Context(), name, "-c", "import psycopg").Run() == nil {
			return name
		}
	}
	const missing = "no python3 with psycopg 3 on this machine: apt-get install python3-psycopg"
	if os.Getenv("CI") == "true" {
		t.Fatal(missing)
	}
	t.Skip(missing)
	return ""
}

func TestVectors(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), python(t), "-m", "unittest", "-v", "test_onlyonce").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// worker is a process of worker.py.
type worker struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	acks *bufio.Scanner
}

func start(t *testing.T, interpreter, database string) *worker {
	t.Helper()
	w := &worker{cmd: exec.Command(interpreter, "worker.py", database)}
	w.cmd.Stderr = os.Stderr
	var err error
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.acks = bufio.NewScanner(out)
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return w
}

// deliver is the broker's part: it hands a worker messages until each was acknowledged once at
// least, and kills it after the kills-th acknowledgement with more of them under way; then another
// one gets everything that was not acknowledged, and some that was.
func deliver(t *testing.T, interpreter, database string, messages []string, kills int, told func(id, outcome string)) {
	for len(messages) > 0 {
		w := start(t, interpreter, database)
		go func() {
			defer w.in.Close()
			for _, m := range messages {
				if _, err := io.WriteString(w.in, m+"\n"); err != nil {
					return // it was killed
				}
			}
		}()
		acked := 0
		for w.acks.Scan() {
			id, outcome, _ := strings.Cut(w.acks.Text(), " ")
			told(id, outcome)
			if acked++; kills > 0 && acked == 40 {
				_ = w.cmd.Process.Kill()
			}
		}
		err := w.cmd.Wait()
		if acked == len(messages) && err == nil {
			return
		}
		if kills == 0 {
			t.Errorf("the worker ended after %d of %d messages: %v", acked, len(messages), err)
			return
		}
		kills--
		messages = messages[max(acked-10, 0):] // acknowledgements may be lost too
	}
}

// Messages come from three loops at once, in any order, most of them more than once, with workers
// killed among them; one id comes with two payloads. Each order has one row, each conflict is set
// aside, and a Go relay makes one charge for each order, under the key that Go derives too.
func TestWorker(t *testing.T) {
	t.Parallel()
	interpreter := python(t)
	pool := pgtest.DB(t)
	// No unique constraint: doubles show.
	if _, err := pool.Exec(
		t.Context(),
		`create table orders (id text, sku text, cents integer); create table set_aside (id text, payload bytea)`,
	); err != nil {
		t.Fatal(err)
	}
	const orders = 120
	var messages []string
	for i := range orders {
		m, err := json.Marshal(map[string]any{"id": fmt.Sprintf("order-%d", i), "sku": `a"b\c'd`, "cents": 100 + i})
		if err != nil {
			t.Fatal(err)
		}
		messages = append(messages, string(m))
	}
	var loops sync.WaitGroup
	var mu sync.Mutex
	outcomes := map[string]int{}
	for range 3 {
		mine := slices.Clone(messages)
		mine = append(mine, messages[:orders/2]...)
		rand.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
		loops.Go(func() {
			deliver(t, interpreter, pool.Config().ConnString(), mine, 2, func(_, outcome string) {
				mu.Lock()
				defer mu.Unlock()
				outcomes[outcome]++
			})
		})
	}
	loops.Wait()
	deliver(
		t,
		interpreter,
		pool.Config().ConnString(),
		[]string{`{"id":"order-7","sku":"another","cents":1}`},
		0,
		func(id, outcome string) {
			if outcome != "conflict" {
				t.Errorf("%s: %s", id, outcome)
			}
		},
	)
	t.Logf("acknowledged: %v", outcomes)
	if outcomes["duplicate"] == 0 || outcomes["conflict"] != 0 {
		t.Errorf("acknowledged: %v", outcomes)
	}
	for sql, want := range map[string]int{
		`select count(*) from orders`:              orders,
		`select count(distinct id) from orders`:    orders,
		`select count(*) from set_aside`:           1,
		`select count(*) from onlyonce.outbox_log`: orders,
		`select count(*) from onlyonce.inbox`:      2 * orders, // an order's own key and its call's
	} {
		if n := count(t, pool, sql); n != want {
			t.Errorf("%s: %d, want %d", sql, n, want)
		}
	}
	sameCallInGo(t, pool)

	keys := relayed(t, pool, orders)
	if len(keys) != orders {
		t.Errorf("%d charges of %d orders", len(keys), orders)
	}
	for key, body := range keys {
		var charge struct{ Order string }
		if err := json.Unmarshal([]byte(body), &charge); err != nil || len(key) != 36 {
			t.Errorf("%s: %s", key, body)
		}
	}
}

func count(t *testing.T, pool *pgxpool.Pool, sql string) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// sameCallInGo asks in Go for a call and a key that Python has asked for.
func sameCallInGo(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	before := count(t, pool, `select count(*) from onlyonce.outbox_log`)
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		o, err := dedupe.Claim(t.Context(), tx, dedupe.Key{
			Scope:       "shop",
			ID:          "order-3",
			Fingerprint: dedupe.FingerprintOf([]byte(`{"cents":103,"id":"order-3","sku":"a\"b\\c'd"}`)),
		})
		if err != nil || o != dedupe.Duplicate {
			t.Errorf("the key in Go: %v, %v", o, err)
		}
		return outbox.Enqueue(t.Context(), tx, outbox.Call{
			Sink:   "payments",
			Name:   "charge",
			Scope:  "shop",
			ID:     "order-3",
			Target: "/charges",
			Header: http.Header{"Content-Type": {"application/json"}},
			Body:   []byte(`{"order": "order-3", "cents": 103}`),
		})
	})
	if err != nil || count(t, pool, `select count(*) from onlyonce.outbox_log`) != before {
		t.Errorf("the call in Go is another one: %v", err)
	}
}

// relayed runs a relay until the remote has seen n keys, and returns their bodies.
func relayed(t *testing.T, pool *pgxpool.Pool, n int) map[string]string {
	t.Helper()
	var mu sync.Mutex
	charged := map[string]string{}
	all := make(chan struct{})
	done := sync.OnceFunc(func() { close(all) }) // a call may come more than once
	remote := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		key := r.Header.Get("Idempotency-Key")
		if was, ok := charged[key]; ok && was != string(body) {
			t.Errorf("%s came with two bodies", key)
		}
		if r.URL.Path != "/charges" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %v", r.URL, r.Header)
		}
		charged[key] = string(body)
		if len(charged) == n {
			done()
		}
	}))
	defer remote.Close()
	sink, err := httpsink.New(httpsink.Config{Name: "payments", BaseURL: remote.URL, KeyWindow: 24 * time.Hour, AllowPrivate: true})
	if err != nil {
		t.Fatal(err)
	}
	relay, err := outbox.NewRelay(pool, outbox.RelayConfig{Sinks: []outbox.Sink{sink}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	select {
	case <-all:
	case <-time.After(patience):
		t.Error("the relay did not get through")
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	return charged
}
