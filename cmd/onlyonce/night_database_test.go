package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/queue/queuetest"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/webhook"
)

// valve is a way to the database on which nothing moves while it is shut: what hangs as a server
// does whose disk is full of other work.
type valve struct {
	mu   sync.Mutex
	open chan struct{} // closed: it lets pass
}

func newValve() *valve {
	open := make(chan struct{})
	close(open)
	return &valve{open: open}
}

func (v *valve) shut() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.open = make(chan struct{})
}

func (v *valve) reopen() {
	v.mu.Lock()
	defer v.mu.Unlock()
	select {
	case <-v.open:
	default:
		close(v.open)
	}
}

func (v *valve) pass() {
	v.mu.Lock()
	open := v.open
	v.mu.Unlock()
	<-open
}

// Write implements io.Writer of one direction.
type valved struct {
	to io.Writer
	v  *valve
}

func (w valved) Write(b []byte) (int, error) {
	w.v.pass()
	return w.to.Write(b)
}

// dial connects through the valve.
func (v *valve) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	server, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	go func() {
		_, _ = io.Copy(valved{server, v}, far)
		_ = server.Close()
	}()
	go func() {
		_, _ = io.Copy(valved{far, v}, server)
		_ = far.Close()
	}()
	return near, nil
}

// nightLog keeps what is logged, at DEBUG too.
func nightLog() (*slog.Logger, func() string) {
	var mu sync.Mutex
	var b strings.Builder
	write := writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return b.Write(p)
	})
	return slog.New(slog.NewTextHandler(write, &slog.HandlerOptions{Level: slog.LevelDebug})), func() string {
		mu.Lock()
		defer mu.Unlock()
		return b.String()
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// nightDatabaseHangs has each engine meet a database that hangs: it is one line in 30 s, with the
// name of the database, and what each of them says of it is at DEBUG.
func nightDatabaseHangs(t *testing.T) {
	t.Parallel()
	d := newDrill(t)
	d.exec(`create table effects (value text)`)
	v := newValve()
	log, text := nightLog()
	pool := valvedPool(t, d, v)
	endpoint, layer, broker := startEngines(t, d, pool, log)
	began := time.Now()
	before := len(text())
	v.shut()
	t.Cleanup(v.reopen)
	broker.Publish(queue.Delivery{ID: "2", Body: []byte("two")})
	ask := func(h http.Handler, r *http.Request) { go h.ServeHTTP(httptest.NewRecorder(), r) }
	ask(endpoint, signedPush("push-2"))
	ask(layer, keyedRequest("key-2"))
	quiet := []string{
		"reading the event log failed",
		"receiving from a queue failed",
		"a transaction of the relay failed",
		"webhook refused",
		"the HTTP layer met an error",
		"trying again",
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(text())
		}
	})
	for _, what := range quiet {
		eventually(t, what, func() bool { return strings.Contains(text(), what) })
	}
	lines := 1 + int(time.Since(began)/(30*time.Second))
	var loud []string
	for line := range strings.Lines(text()[before:]) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			loud = append(loud, line)
		}
	}
	named := fmt.Sprintf("the database does not answer; what needs it is tried again\" database=%s", addressOf(pool))
	t.Logf("%v after the start of the hang, %d lines:\n%s", time.Since(began).Round(time.Second), len(loud), strings.Join(loud, ""))
	n := 0
	for _, line := range loud {
		if strings.Contains(line, named) {
			n++
		}
	}
	if n == 0 || n > lines || len(loud) > n {
		t.Errorf("%d lines, %d of them name the database; want nothing else, and one in 30 s", len(loud), n)
	}
	v.reopen()
	eventually(t, "it answers again", func() bool { return strings.Contains(text(), "the database answers again") })
}

func addressOf(pool *pgxpool.Pool) string {
	c := pool.Config().ConnConfig
	return fmt.Sprintf("%s/%s", net.JoinHostPort(c.Host, fmt.Sprint(c.Port)), c.Database)
}

func valvedPool(t *testing.T, d *drill, v *valve) *pgxpool.Pool {
	t.Helper()
	cfg := d.pool.Config().Copy()
	cfg.MaxConns = 20
	cfg.ConnConfig.DialFunc = v.dial
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// startEngines runs one part of each kind on a pool, until each of them has worked.
func startEngines(t *testing.T, d *drill, pool *pgxpool.Pool, log *slog.Logger) (endpoint, layer http.Handler, broker *queuetest.Memory) {
	t.Helper()
	topic := memlog.NewLog("orders", 4)
	handler := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		tx.Queue(`insert into effects values ($1)`, string(m.Value))
		return nil
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	messages, err := consumer.New(
		pool,
		&memlog.Source{Log: topic, GroupID: "g"},
		consumer.HandlerFunc(handler),
		consumer.Config{Scope: "stock", Key: consumer.HeaderKey("message-id"), Logger: log},
	)
	must(err)
	d.runs(messages.Run)
	sink, err := httpsink.New(httpsink.Config{
		Name:         "payments",
		BaseURL:      "http://127.0.0.1:1",
		KeyWindow:    outbox.Forever,
		AllowPrivate: true,
	})
	must(err)
	relay, err := outbox.NewRelay(pool, outbox.RelayConfig{Sinks: []outbox.Sink{sink}, DrainTimeout: time.Millisecond, Logger: log})
	must(err)
	d.runs(relay.Run)
	broker = new(queuetest.Memory)
	received, err := queue.New(pool, broker.Connect(), queue.Config{Name: "orders", CopiesWithin: time.Hour, Logger: log})
	must(err)
	events, err := consumer.New(pool, received, consumer.HandlerFunc(handler), consumer.Config{Scope: "events", Logger: log})
	must(err)
	d.runs(events.Run)
	hooks, err := webhook.New(pool, webhook.Config{Name: "gh", Provider: webhook.GitHub{}, Secrets: []string{pushSecret}, Logger: log})
	must(err)
	d.runs(hooks.Upkeep)
	requests, err := idempotency.New(pool, idempotency.Config{Logger: log,
		FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {31: 1}}},
		Scope:           func(*http.Request) (idempotency.Scope, error) { return idempotency.Scope{Tenant: "shop"}, nil }})
	must(err)
	d.runs(requests.Run)
	layer = requests.MustHandle(
		idempotency.Route{Pattern: "/payments", NoCalls: true},
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusCreated)
		}),
	)
	topic.Append(0, "one", consumer.Header{Name: "message-id", Value: []byte("1")})
	broker.Publish(queue.Delivery{ID: "1", Body: []byte("one")})
	answered := func(h http.Handler, r *http.Request, want int) {
		t.Helper()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want {
			t.Fatalf("%s: %d %s", r.URL.Path, w.Code, w.Body)
		}
	}
	answered(hooks, signedPush("push-1"), http.StatusOK)
	answered(layer, keyedRequest("key-1"), http.StatusCreated)
	d.until(`select count(*) = 2 from effects`)
	d.until(`select count(*) = 16 from onlyonce.lanes l join onlyonce.leases x on x.id = l.id where x.nonce is not null`)
	return hooks, layer, broker
}

const pushSecret = "It's a Secret to Everybody"

func signedPush(delivery string) *http.Request {
	body := `{"id": "` + delivery + `"}`
	mac := hmac.New(sha256.New, []byte(pushSecret))
	mac.Write([]byte(body))
	r := httptest.NewRequest(http.MethodPost, "/hooks/gh", strings.NewReader(body))
	r.Header.Set("X-GitHub-Event", "push")
	r.Header.Set("X-GitHub-Delivery", delivery)
	r.Header.Set("X-Hub-Signature-256", fmt.Sprintf("sha256=%x", mac.Sum(nil)))
	return r
}

func keyedRequest(key string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader("{}"))
	r.Header.Set("Idempotency-Key", key)
	return r
}

// A card is declined: the calls are delivered, their answers are kept, and nobody is woken. By
// default it is a refusal, and the customer's next call waits behind it: both faces say so.
func nightDeclines(t *testing.T) {
	t.Parallel()
	remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusPaymentRequired)
	}))
	t.Cleanup(remote.Close)
	d := newDrill(t)
	d.exec(`create table declined (id text)`)
	complete := func(ctx context.Context, tx dedupe.GuardedTx, of *outbox.Attempt, answer *outbox.Response) error {
		if answer.Status != http.StatusPaymentRequired {
			return fmt.Errorf("status %d", answer.Status)
		}
		_, err := tx.Exec(ctx, `insert into declined values ($1)`, of.Key)
		return err
	}
	sink, err := httpsink.New(httpsink.Config{Name: "payments", BaseURL: remote.URL, KeyWindow: outbox.Forever, AllowPrivate: true,
		Outcomes: map[int]outbox.AttemptOutcome{http.StatusPaymentRequired: outbox.Delivered}})
	if err != nil {
		t.Fatal(err)
	}
	relay, err := outbox.NewRelay(d.pool, outbox.RelayConfig{
		Sinks:        []outbox.Sink{sink},
		DrainTimeout: time.Millisecond,
		Complete:     complete,
		PassOn:       true,
	})
	if err != nil {
		t.Fatal(err)
	}
	d.runs(relay.Run)
	d.charge("ann", 20, true)
	d.until(`select count(*) = 20 from declined`)
	d.run("status").want(t, statusGood, "Nothing needs you",
		"Parked: 0 not settled\n", "Captured: 20 calls delivered, with the answer kept")
	if listed := d.run("parked", "list", "-all").out; strings.Contains(listed, "completion") {
		t.Errorf("a call that was delivered is listed as parked:\n%s", listed)
	}
	d.run("parked", "list", "-all", "-parked-for", "completion", "-limit", "30").want(t, statusGood, "completion")

	other := newDrill(t)
	other.relayTo(remote.URL, 0)
	other.charge("ann", 2, false)
	other.says("- parked: sink payments, ", "1 rejected")
	other.run("status").want(t, statusGood, "rejected", "blocked")
}

// charge enqueues calls of one customer.
func (d *drill) charge(customer string, calls int, capture bool) {
	d.t.Helper()
	err := pgx.BeginFunc(d.t.Context(), d.pool, func(tx pgx.Tx) error {
		for i := range calls {
			call := outbox.Call{
				Sink:        "payments",
				Target:      "/charges",
				Name:        "charge",
				ID:          fmt.Sprint(customer, i),
				Scope:       "checkout",
				OrderingKey: customer,
				Capture:     capture,
			}
			if err := outbox.Enqueue(d.t.Context(), tx, call); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		d.t.Fatal(err)
	}
}
