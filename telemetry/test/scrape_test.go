package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/metrics"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/telemetry"
	"github.com/onlyonce/onlyonce/telemetry/test/system"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/webhook"
)

// running is a system with each part, and the address of its HTTP server.
type running struct {
	*system.System
	t   *testing.T
	url string
}

// start runs a system until the test ends. Its remote answers 503 to the payload "down".
func start(t *testing.T, with telemetry.Config, missed ...*webhook.Event) *running {
	t.Helper()
	remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); string(body) == "down" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(remote.Close)
	r := &running{t: t, System: &system.System{Pool: pgtest.DB(t), Remote: remote.URL, Telemetry: with,
		Orders: memlog.NewLog("orders", 1), Audits: memlog.NewLog("refunds", 1), Missed: missed}}
	ctx, stop := context.WithCancel(context.Background())
	ended, serving := make(chan error, 1), make(chan string, 1)
	go func() {
		ended <- r.Run(ctx, func(h http.Handler) {
			server := httptest.NewServer(h)
			context.AfterFunc(ctx, server.Close)
			serving <- server.URL
		})
	}()
	select {
	case r.url = <-serving:
	case err := <-ended:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return r
}

// scrape gets /metrics in a format.
func scrape(t *testing.T, url, accept string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d, error %v: %s", resp.StatusCode, err, text)
	}
	return string(text)
}

// post sends a request and returns its answer's status.
func (r *running) post(path, body string, headers func(http.Header)) int {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	headers(req.Header)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

var (
	typeLine   = regexp.MustCompile(`(?m)^# TYPE (onlyonce_\S+) (\S+)$`)
	helpLine   = regexp.MustCompile(`(?m)^# HELP (onlyonce_\S+) (.*)$`)
	sampleLine = regexp.MustCompile(`(?m)^(onlyonce_[a-z_]+)(?:\{(.*)\})? \S+$`)
	label      = regexp.MustCompile(`([a-z_]+)="((?:[^"\\]|\\.)*)"`)
)

// shapes returns what a scrape says about each metric of a source but its values: its type, its
// help and its labels. The SDK adds labels about itself.
func shapes(text, source string) map[string]string {
	types := map[string]string{}
	helps := map[string]string{}
	shapes := map[string]string{}
	for _, l := range typeLine.FindAllStringSubmatch(text, -1) {
		types[l[1]] = l[2]
	}
	for _, l := range helpLine.FindAllStringSubmatch(text, -1) {
		helps[l[1]] = l[2]
	}
	for _, l := range sampleLine.FindAllStringSubmatch(text, -1) {
		m := metrics.ByPrometheus(l[1])
		if m == nil || m.From != source {
			continue
		}
		var labels []string
		for _, of := range label.FindAllStringSubmatch(l[2], -1) {
			if !strings.HasPrefix(of[1], "otel_") && of[1] != "le" {
				labels = append(labels, of[1])
			}
		}
		slices.Sort(labels)
		shapes[l[1]] = fmt.Sprint(types[m.Prometheus()], " ", labels, " ", helps[m.Prometheus()])
	}
	return shapes
}

// same compares what two programs say about the same metrics, and that they are all of a source.
func same(t *testing.T, source string, ours, theirs map[string]string) {
	t.Helper()
	for name := range theirs {
		if ours[name] != theirs[name] {
			t.Errorf("%s: telemetry serves %q, and the program %q", name, ours[name], theirs[name])
		}
	}
	if len(ours) != len(theirs) {
		t.Errorf("telemetry serves %d series of the %s, and the program %d", len(ours), source, len(theirs))
	}
}

// absent returns a metric of the table that a scrape does not have.
func absent(text string, sources ...string) string {
	for _, m := range metrics.All() {
		if slices.Contains(sources, m.From) && !strings.Contains(text, "\n"+m.Prometheus()) {
			return m.Name
		}
	}
	return ""
}

// drive gives each metric of a system a value.
func (r *running) drive() {
	r.t.Helper()
	for i, payload := range []string{"a", "b", system.Poison, "down"} {
		system.Order(r.Orders, i, payload, time.Now())
	}
	if status := r.post(system.Route, "{}", func(h http.Header) { h.Set("Idempotency-Key", "k1") }); status != http.StatusCreated {
		r.t.Fatalf("the layer answers %d", status)
	}
	if status := r.post("/hooks", "{}", func(h http.Header) { system.Sign(h, "one", []byte("{}")) }); status != http.StatusOK {
		r.t.Fatalf("the endpoint answers %d", status)
	}
	if status := r.post(system.Messages, "one", func(http.Header) {}); status != http.StatusOK {
		r.t.Fatalf("publishing: %d", status)
	}
	if _, err := r.Pool.Exec(
		r.t.Context(),
		`insert into onlyonce.frontiers select id, run, clock_timestamp() from onlyonce.cursors on conflict do nothing`,
	); err != nil {
		r.t.Fatal(err)
	}
}

// telemetry serves each metric of the table. onlyonce exporter and onlyonce-relay serve those of
// the database and of relays under the same names, with the same types, helps and labels.
func TestTelemetryAndProgramServeTheSameMetrics(t *testing.T) {
	t.Parallel()
	r := start(t, telemetry.Config{Interval: time.Second})
	pgtest.Until(t, patience, "the consumers own their partitions", func() bool {
		var n int
		err := r.Pool.QueryRow(t.Context(), `select count(*) from onlyonce.cursors where scope in ('stock', 'audit')`).Scan(&n)
		return err == nil && n == 2
	})
	r.drive()
	text, all := "", []string{
		metrics.FromConsumer,
		metrics.FromRelay,
		metrics.FromLayer,
		metrics.FromEndpoint,
		metrics.FromQueue,
		metrics.FromProcess,
		metrics.FromDatabase,
	}
	missing := ""
	defer func() {
		if missing != "" {
			t.Errorf("there is no %s", missing)
		}
	}()
	pgtest.Until(t, patience, "each metric is there", func() bool {
		text = scrape(t, r.url+"/metrics", "text/plain")
		missing = absent(text, all...)
		return missing == ""
	})
	for _, m := range metrics.All() {
		if got := typeLine.FindString(
			text[strings.Index(text, "# TYPE "+m.Prometheus()+" "):],
		); got != "# TYPE "+m.Prometheus()+" "+string(m.Kind) {
			t.Errorf("%s: %q, want %s", m.Name, got, m.Kind)
		}
	}
	exporter := serve(t, build(t, "onlyonce"), "exporter", "-postgres", r.Pool.Config().ConnString(), "-listen", "127.0.0.1:0")
	same(t, "database", shapes(text, metrics.FromDatabase), shapes(scrape(t, exporter, "text/plain"), metrics.FromDatabase))
	relay := scrapeRelay(t, build(t, "onlyonce-relay"), r.Remote)
	same(t, "relay", shapes(text, metrics.FromRelay), shapes(relay, metrics.FromRelay))
	same(t, "process", shapes(text, metrics.FromProcess), shapes(relay, metrics.FromProcess))
}

// scrapeRelay returns what onlyonce-relay serves when it has sent a call, in a database of its own.
func scrapeRelay(t *testing.T, program, remote string) (text string) {
	t.Helper()
	pool := pgtest.DB(t)
	file := filepath.Join(t.TempDir(), "relay.json")
	config, err := json.Marshal(map[string]any{"poll_interval": "20ms", "sinks": []any{
		map[string]any{"type": "http", "name": system.Sink, "base_url": remote, "key_window": "1h", "allow_private": true}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	relay := serve(t, program, "-postgres", pool.Config().ConnString(), "-config", file, "-metrics", "127.0.0.1:0")
	if missing := absent("\n"+scrape(t, relay, "text/plain"), metrics.FromRelay); missing == metrics.OutboxAttempts.Name {
		t.Errorf("before the first call there is no %s", missing)
	}
	enqueue(t, pool)
	pgtest.Until(t, patience, "the relay has sent a call", func() bool {
		text = scrape(t, relay, "text/plain")
		return absent("\n"+text, metrics.FromRelay) == ""
	})
	return text
}

func enqueue(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.Enqueue(t.Context(), tx, outbox.Call{
		Sink:   system.Sink,
		Target: "/pay",
		Name:   "order",
		ID:     "1",
		Scope:  "stock",
	}); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// build builds a program of cmd.
func build(t *testing.T, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	cmd.Dir = filepath.Join("..", "..", "cmd", name)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// serve runs the program until the test ends, and returns the address of its /metrics.
func serve(t *testing.T, program string, args ...string) string {
	t.Helper()
	logger, text := pgtest.Logged()
	cmd := exec.Command(program, args...)
	cmd.Stderr = writer(func(p []byte) { logger.Info(string(p)) })
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s %s: %v\n%s", filepath.Base(program), args[0], err, text())
		}
	})
	address := regexp.MustCompile(`http://127\.0\.0\.1:\d+/metrics`)
	pgtest.Until(t, patience, "it serves /metrics", func() bool { return address.MatchString(text()) })
	return address.FindString(text())
}

type writer func(p []byte)

func (w writer) Write(p []byte) (int, error) { w(bytes.Clone(p)); return len(p), nil }
