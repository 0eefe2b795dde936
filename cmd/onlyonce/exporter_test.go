package main

import (
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/onlyonce/onlyonce/internal/gauges"
	"github.com/onlyonce/onlyonce/internal/metrics"
)

var sampleLine = regexp.MustCompile(`^([a-z_]+)(?:\{(.*)\})? (\S+)$`)

// served compares the names and labels of a scrape with the table, and returns the metrics of the
// sources that it has.
func served(t *testing.T, scrape string, sources ...string) map[*metrics.Metric]bool {
	t.Helper()
	label := regexp.MustCompile(`([a-z]+)="(?:[^"\\]|\\.)*"`)
	found := map[*metrics.Metric]bool{}
	for line := range strings.Lines(scrape) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		parts := sampleLine.FindStringSubmatch(strings.TrimSpace(line))
		if parts == nil {
			t.Errorf("not a line of Prometheus's format: %q", line)
			continue
		}
		m := metrics.ByPrometheus(parts[1])
		if m == nil || !slices.Contains(sources, m.From) {
			t.Errorf("%s is not in the table of what a %s measures", parts[1], strings.Join(sources, " or a "))
			continue
		}
		var labels []string
		for _, l := range label.FindAllStringSubmatch(parts[2], -1) {
			if l[1] != "le" {
				labels = append(labels, l[1])
			}
		}
		if !slices.Equal(labels, m.Labels()) && len(labels)+len(m.Labels()) > 0 {
			t.Errorf("%s has the labels %q, and the table says %q", parts[1], labels, m.Labels())
		}
		found[m] = true
	}
	return found
}

// valueOf returns the value of one line of a scrape, by its name with labels.
func valueOf(t *testing.T, scrape, series string) float64 {
	t.Helper()
	for line := range strings.Lines(scrape) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), series+" "); ok {
			v, err := strconv.ParseFloat(rest, 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Errorf("there is no %s in\n%s", series, scrape)
	return -1
}

// watched makes a database in which every metric has a value.
func watched(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	f.populate()
	f.calls()
	f.exec(`update onlyonce.sinks set start_window = interval '1 hour', paused_at = case when name = 'mail' then clock_timestamp() end`)
	f.exec(`insert into onlyonce.parked (kind, state, reason, scope, sink, open, first_attempt_at) values
		('call', 'retrying', 'failed', 'stock', 'payments', true, clock_timestamp() - interval '50 minutes'),
		('call', 'retrying', 'postponed', 'stock', 'payments', false, clock_timestamp() - interval '55 minutes'),
		('call', 'retrying', 'completion', 'stock', 'payments', false, clock_timestamp() - interval '2 hours')`)
	f.exec(`insert into onlyonce.frontiers select id, run, clock_timestamp() - interval '2 hours' from onlyonce.cursors`)
	f.exec(`insert into onlyonce.owners (id, scope, host, pid, partitions, faults) values (gen_random_uuid(), 'stock', 'h1', 1,
		'[{"topic": "orders", "partition": 0, "lag": 42, "halted": "truncated"}, {"topic": "orders", "partition": 1, "lag": 0}]',
		'[{"kind": "read", "topic": "orders", "partitions": 1, "for": 3, "text": "broker away"}]')`)
	return f
}

func TestExporter(t *testing.T) {
	t.Parallel()
	f := watched(t)
	name := f.pool.Config().ConnConfig.Database
	down := "postgres://nobody@127.0.0.1:1/down"
	p := startProgram(t, nil, "exporter", "-postgres", f.url, "-postgres", down, "-listen", "127.0.0.1:0", "-interval", "10h")
	text := p.Scrape("/metrics")

	found := served(t, text, metrics.FromDatabase)
	for _, m := range metrics.From(metrics.FromDatabase) {
		if !found[m] {
			t.Errorf("%s is in the table, and not served", m.Name)
		}
	}
	db := `{database="` + name + `"`
	for series, want := range map[string]float64{
		`onlyonce_database_up` + db + `}`:                                                                        1,
		`onlyonce_database_up{database="down"}`:                                                                  0,
		`onlyonce_observe_failed_total{database="down"}`:                                                         1,
		`onlyonce_consumer_lag` + db + `,scope="stock",topic="orders",partition="0"}`:                            42,
		`onlyonce_consumer_partitions` + db + `,scope="stock",state="halted",reason="truncated"}`:                1,
		`onlyonce_consumer_partitions` + db + `,scope="stock",state="unowned",reason=""}`:                        0,
		`onlyonce_consumer_partitions` + db + `,scope="stock",state="working",reason=""}`:                        1,
		`onlyonce_faults` + db + `,part="consumer",scope="stock",topic="orders",kind="read"}`:                    1,
		`onlyonce_faults` + db + `,part="",scope="",topic="",kind="read-only"}`:                                  0,
		`onlyonce_consumer_processes` + db + `,scope="stock"}`:                                                   1,
		`onlyonce_parked` + db + `,kind="message",scope="stock",sink="",state="waiting",reason="exhausted"}`:     2,
		`onlyonce_parked` + db + `,kind="call",scope="stock",sink="payments",state="reconcile",reason="window"}`: 1,
		`onlyonce_outbox_pending` + db + `,sink="payments",state="log"}`:                                         2,
		`onlyonce_outbox_relays` + db + `,sink="payments"}`:                                                      0,
		`onlyonce_outbox_paused` + db + `,sink="mail"}`:                                                          1,
		`onlyonce_http_open` + db + `,state="reconcile"}`:                                                        0,
	} {
		if got := valueOf(t, text, series); got != want {
			t.Errorf("%s is %v, want %v", series, got, want)
		}
	}
	for series, least := range map[string]float64{
		`onlyonce_outbox_oldest_seconds` + db + `,sink="payments"}`:   1800,
		`onlyonce_consumer_frontier_seconds` + db + `,scope="stock"}`: 7200,
	} {
		if got := valueOf(t, text, series); got < least {
			t.Errorf("%s is %v, want at least %v", series, got, least)
		}
	}
	// A call that is only to be completed needs no key any more.
	if left := valueOf(t, text, `onlyonce_outbox_window_left_seconds`+db+`,sink="payments"}`); left <= 0 || left > 600 {
		t.Errorf("the window has %v s left, want up to 600", left)
	}

	f.exec(`delete from onlyonce.parked`)
	if again := p.Scrape("/metrics"); valueOf(t, again, `onlyonce_parked`+db+
		`,kind="message",scope="stock",sink="",state="waiting",reason="exhausted"}`) != 2 {
		t.Error("a scrape within the interval asked the database again")
	}
	if status := p.Stop(syscall.SIGTERM); status != 0 {
		t.Errorf("exit status %d\n%s", status, p.Stderr())
	}
}

func TestExporterNamesDatabases(t *testing.T) {
	t.Parallel()
	s := session{t: t}
	s.run("exporter", "-postgres", "postgres://u@h/shop", "-postgres", "postgres://u@h/shop").want(t, statusEnvironment, "given twice")
	s.run("exporter", "-interval", "0s").want(t, statusEnvironment, "must be positive")
	e := &exporter{}
	for _, url := range []string{"postgres://u@a/shop", "postgres://u@b:6/shop", "postgres://u@b/bank", "postgres://me@c"} {
		pool, err := newApp(nil, io.Discard, io.Discard, func(string) string { return "" }).pool(t.Context(), url, "test")
		if err != nil {
			t.Fatal(err)
		}
		e.databases = append(e.databases, &observed{pool, &gauges.Rounds{}})
	}
	defer e.close()
	if err := e.name(); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range e.databases {
		names = append(names, d.rounds.Database)
	}
	if got := strings.Join(names, " "); got != "a:5432/shop b:6/shop bank me" {
		t.Errorf("the databases are named %s", got)
	}
}
