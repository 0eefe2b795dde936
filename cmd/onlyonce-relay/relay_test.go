package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onlyonce/onlyonce/internal/metrics"
	"github.com/onlyonce/onlyonce/internal/program"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
)

// The relay as a program: it delivers, reports its health, and stops in order.
func TestRelay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var mu sync.Mutex
	var got []string
	remote := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got = append(
			got,
			fmt.Sprint(r.URL.Path, " ", r.Header.Get("Authorization"), " ", r.Header.Get("Idempotency-Key") != "", " ", string(body)),
		)
	}))
	t.Cleanup(remote.Close)
	brokers := kafkatest.Fake(t)
	topic := kafkatest.Topic(t, brokers, 1, nil)
	file := fileOf(t, fmt.Sprintf(
		`{"poll_interval": "20ms", "sinks": [
		{"type": "http", "name": "payments", "base_url": "%s/v1", "key_window": "forever", "allow_private": true,
			"headers": {"Authorization": {"env": "PAYMENTS_TOKEN", "prefix": "Bearer "}}},
		{"type": "kafka", "name": "events", "brokers": ["%s"], "topics": ["%s"], "key_window": "forever"}]}`,
		remote.URL,
		brokers[0],
		topic,
	))
	p := start(t, []string{program.EnvPostgres + "=" + f.url, "PAYMENTS_TOKEN=s3cret"}, "-config", file, "-health", "127.0.0.1:0")
	err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		for _, c := range []outbox.Call{
			{Sink: "payments", Target: "/charges", Body: []byte("charge")},
			{Sink: "events", Target: "/" + topic, Body: []byte("event")},
		} {
			c.Name = "n"
			c.ID = "1"
			c.Scope = "checkout"
			if err := outbox.Enqueue(t.Context(), tx, c); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "both are delivered, and the relay has all lanes", func() bool {
		return one[int](f, `select count(*) from onlyonce.calls where state = 'delivered'`) == 2 &&
			one[int](
				f,
				`select count(*) from onlyonce.lanes a join onlyonce.leases l on l.id = a.id where l.until > clock_timestamp()`,
			) == 32
	})
	mu.Lock()
	if len(got) != 1 || got[0] != "/v1/charges Bearer s3cret true charge" {
		t.Errorf("requests %q", got)
	}
	mu.Unlock()
	cl := kafkatest.Client(t, brokers, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if recs := cl.PollFetches(ctx).Records(); len(recs) != 1 || string(recs[0].Value) != "event" {
		t.Errorf("records %v", recs)
	}
	eventually(t, "it serves its health", func() bool { return strings.Contains(p.Stderr(), "/healthz") })
	url := regexp.MustCompile(`http://127\.0\.0\.1:\d+/healthz`).FindString(p.Stderr())
	var text []byte
	eventually(t, "it says that it has them", func() bool {
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		text, _ = io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		return resp.StatusCode == 200 && string(text) == "ok\nevents: 16 lanes\npayments: 16 lanes\n"
	})
	// Its connections cannot reach the database any more: it waits, and reports that it is not
	// well.
	cfg := f.pool.Config().ConnConfig.Copy()
	name := pgx.Identifier{cfg.Database}.Sanitize()
	cfg.Database = "postgres"
	admin, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.Background())
	for _, sql := range []string{`alter database ` + name + ` allow_connections false`,
		`select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and datname = '` + strings.Trim(
			name,
			`"`,
		) + `'`} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "it says that it is not well", func() bool {
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode == 503 && string(text) == "the database does not answer\n"
	})
	if _, err := admin.Exec(t.Context(), `alter database `+name+` allow_connections true`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is well again", func() bool {
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode == 200
	})
	f.pool.Reset() // its connections were ended too
	if status := p.Stop(syscall.SIGTERM); status != 0 {
		t.Errorf("exit status %d\n%s", status, p.Stderr())
	}
	if strings.Contains(p.Stderr(), "s3cret") || strings.Contains(p.Stderr(), "charge\"") {
		t.Errorf("too much is logged:\n%s", p.Stderr())
	}
	if n := one[int](f, `select count(*) from onlyonce.leases where until > clock_timestamp()`); n != 0 {
		t.Errorf("%d leases are still held", n)
	}
}

// What a relay measures, on the address of its health.
func TestRelayMetrics(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/refused" {
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	t.Cleanup(remote.Close)
	file := fileOf(t, fmt.Sprintf(`{"poll_interval": "20ms", "sinks": [
		{"type": "http", "name": "payments", "base_url": "%s", "key_window": "1h", "allow_private": true}]}`, remote.URL))
	address := "127.0.0.1:0"
	p := start(t, []string{program.EnvPostgres + "=" + f.url}, "-config", file, "-health", address, "-metrics", address)
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"/taken", "/refused"} {
		if err := outbox.Enqueue(t.Context(), tx, outbox.Call{
			Sink:   "payments",
			Target: target,
			Name:   target,
			ID:     "1",
			Scope:  "checkout",
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	var text string
	eventually(t, "both calls are counted", func() bool {
		text = p.Scrape("/healthz")
		return strings.Contains(text, `onlyonce_outbox_delay_seconds_count{sink="payments"} 2`)
	})
	for _, m := range metrics.From(metrics.FromRelay) {
		if !strings.Contains(text, "\n# TYPE "+m.Prometheus()+" ") && !strings.HasPrefix(text, "# TYPE "+m.Prometheus()+" ") {
			t.Errorf("%s is in the table, and not served", m.Name)
		}
	}
	for _, outcome := range []string{"delivered", "rejected"} {
		if line := `onlyonce_outbox_attempts_total{sink="payments",outcome="` + outcome + `"} 1`; !strings.Contains(text, line+"\n") {
			t.Errorf("there is no %s in\n%s", line, text)
		}
	}
	if window := one[string](f, `select start_window::text from onlyonce.sinks`); window != "00:58:54" { // less the margin and the timeout
		t.Errorf("calls are started again for %s", window)
	}
	if status := p.Stop(syscall.SIGTERM); status != 0 {
		t.Errorf("exit status %d\n%s", status, p.Stderr())
	}
}
