package webhook_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/webhook"
)

// patience bounds the waits of tests; no result depends on how long it took.
var patience = pgtest.Patience(time.Minute)

func TestMain(m *testing.M) {
	if db := os.Getenv(childDB); db != "" {
		if err := child(db, os.Getenv(childMode)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	pgtest.Main(m)
}

// counter counts the statements that are sent to a database.
type counter struct{ asked atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.asked.Add(1)
	return ctx
}
func (*counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (c *counter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	c.asked.Add(1)
	return ctx
}
func (*counter) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*counter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}
func (c *counter) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	c.asked.Add(1)
	return ctx
}
func (*counter) TraceAcquireEnd(context.Context, *pgxpool.Pool, pgxpool.TraceAcquireEndData) {}

// rig is a database with a table of effects, and endpoints on a real server.
type rig struct {
	t    *testing.T
	pool *pgxpool.Pool // the test's own
	recv *pgxpool.Pool // the receivers'
	counter

	mu       sync.Mutex
	received []webhook.ReceiveEnd
	refused  []webhook.ReceiveEnd
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, pool: pgtest.DB(t)}
	r.recv = r.open(r.pool.Config().ConnString())
	r.exec(`create table effects (id text not null, at bigserial, constraint one unique (id) deferrable initially deferred)`)
	return r
}

func (r *rig) open(url string) *pgxpool.Pool {
	r.t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		r.t.Fatal(err)
	}
	cfg.MaxConns = 12
	cfg.ConnConfig.Tracer = &r.counter
	cfg.ConnConfig.RuntimeParams["application_name"] = "receiver"
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(pool.Close)
	return pool
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	pgtest.Exec(r.t, r.pool, sql, args...)
}

func one[T any](r *rig, sql string, args ...any) T {
	r.t.Helper()
	return pgtest.One[T](r.t, r.pool, sql, args...)
}

func (r *rig) until(what string, cond func() bool) {
	r.t.Helper()
	pgtest.Until(r.t, patience, what, cond)
}

// hooks records what the endpoint's hooks get.
func (r *rig) hooks() webhook.Hooks {
	return webhook.Hooks{
		ReceiveEnd: func(_ context.Context, x webhook.ReceiveEnd) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if x.Err != nil {
				r.refused = append(r.refused, x)
			} else {
				r.received = append(r.received, x)
			}
		},
	}
}

// last returns the outcome of the last request.
func (r *rig) last() webhook.ReceiveOutcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.received) == 0 {
		return ""
	}
	return r.received[len(r.received)-1].Outcome
}

func (r *rig) lastRefusal() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.refused) == 0 {
		return nil
	}
	return r.refused[len(r.refused)-1].Err
}

// receiver returns an endpoint for a provider's sample.
func (r *rig) receiver(s sample, more ...func(*webhook.Config)) *webhook.Endpoint {
	r.t.Helper()
	cfg := webhook.Config{Name: "e", Provider: s.provider, Secrets: []string{s.secret}, Partitions: 4, Hooks: r.hooks()}
	for _, m := range more {
		m(&cfg)
	}
	x, err := webhook.New(r.recv, cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	return x
}

// endpoint is an Endpoint on a server.
type endpoint struct {
	*rig
	sample
	url    string
	client *http.Client
}

func (r *rig) serve(s sample, more ...func(*webhook.Config)) *endpoint {
	r.t.Helper()
	server := httptest.NewServer(r.receiver(s, more...))
	r.t.Cleanup(server.Close)
	return &endpoint{rig: r, sample: s, url: server.URL, client: server.Client()}
}

// inline is a mode with a handler.
func inline(h consumer.HandlerFunc) func(*webhook.Config) {
	return func(c *webhook.Config) {
		c.Mode = webhook.Inline
		c.Handler = h
	}
}

// effect writes a row under the event's id.
func effect(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
	e, err := webhook.EventOf(m)
	if err != nil {
		return consumer.Permanent(err)
	}
	tx.Queue(`insert into effects (id) values ($1)`, e.ID)
	return nil
}

// answer is the response to a request.
type answer struct {
	status int
	header http.Header
	body   string
}

func (e *endpoint) do(req *http.Request) answer {
	e.t.Helper()
	resp, err := e.client.Do(req)
	if err != nil {
		e.t.Error(err)
		return answer{}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		e.t.Error(err)
	}
	return answer{resp.StatusCode, resp.Header, string(body)}
}

func (e *endpoint) request(h http.Header, body string) *http.Request {
	e.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, e.url, bytes.NewReader([]byte(body)))
	if err != nil {
		e.t.Fatal(err)
	}
	for name, values := range h {
		req.Header[name] = values
	}
	return req
}

// send sends a body, signed now.
func (e *endpoint) send(body string) answer {
	e.t.Helper()
	return e.do(e.request(e.sign(e.secret, time.Now(), body), body))
}

// push is a body of GitHub's event push, which names itself.
func push(text string) string {
	return fmt.Sprintf(`{"repository":{"pushed_at":1764360000},"after":%q}`, text)
}

// unknownSender is a sender that does not sign an event's id, and of which nothing else is known.
func unknownSender() sample {
	return sample{provider: webhook.HMAC{Name: "acme", SignatureHeader: "X-Sig", IDHeader: "X-GitHub-Delivery"}, secret: "0123456789abcdef",
		sign: func(secret string, _ time.Time, body string) http.Header {
			return headers("X-GitHub-Delivery", "d-0", "X-Sig", fmt.Sprintf("%x", mac256(secret, body)))
		}}
}

// sendAs is send for providers that have the id in a header.
func (e *endpoint) sendAs(id, body string) answer {
	e.t.Helper()
	h := e.sign(e.secret, time.Now(), body)
	h.Set("X-GitHub-Delivery", id)
	return e.do(e.request(h, body))
}

func (a answer) want(t testing.TB, status int, duplicate bool) {
	t.Helper()
	if a.status != status || (a.header.Get("Webhook-Duplicate") == "true") != duplicate {
		t.Errorf("answer %d %q, duplicate %q; want %d and %t", a.status, a.body, a.header.Get("Webhook-Duplicate"), status, duplicate)
	}
	if retry := a.header.Get("Retry-After"); (retry != "") != (status == http.StatusServiceUnavailable) {
		t.Errorf("status %d has Retry-After %q", a.status, retry)
	}
}

// asks runs f, and fails the test unless the receivers' pool was used, or was not used.
func (r *rig) asks(want bool, f func()) {
	r.t.Helper()
	before := r.asked.Load()
	f()
	if n := r.asked.Load() - before; (n > 0) != want {
		r.t.Errorf("the database was asked %d times", n)
	}
}

func (r *rig) count(table string) int {
	r.t.Helper()
	return one[int](r, `select count(*) from `+table)
}

// stripeBody is an event of Stripe's.
func stripeBody(id string, more string) string {
	return fmt.Sprintf(`{"id":%q,"type":"invoice.paid","data":{"object":{"id":"in_1"}}%s}`, id, more)
}

// work runs a consumer of the stored events until the test's end.
func (r *rig) work(h consumer.HandlerFunc, more ...func(*consumer.Config)) {
	r.t.Helper()
	c := r.consumer(h, more...)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
}

// consumer returns a consumer of the stored events.
func (r *rig) consumer(h consumer.HandlerFunc, more ...func(*consumer.Config)) *consumer.Consumer {
	r.t.Helper()
	source, err := webhook.NewSource(r.pool, webhook.SourceConfig{
		Group:        "g",
		Endpoints:    []string{"e"},
		Partitions:   4,
		PollInterval: 20 * time.Millisecond,
		LeaseTTL:     3 * time.Second,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	cfg := consumer.Config{
		Scope:   webhook.Scope("e"),
		Backoff: dedupe.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond},
		Linger:  time.Millisecond,
	}
	for _, m := range more {
		m(&cfg)
	}
	c, err := consumer.New(r.pool, source, h, cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// serveMux is serve for a handler that has the receiver somewhere.
func (r *rig) serveMux(s sample, h http.Handler, path string) *endpoint {
	r.t.Helper()
	server := httptest.NewServer(h)
	r.t.Cleanup(server.Close)
	return &endpoint{rig: r, sample: s, url: server.URL + path, client: server.Client()}
}
