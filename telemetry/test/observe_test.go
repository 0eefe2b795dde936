package telemetry_test

import (
	"context"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/onlyonce/onlyonce/telemetry"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// observer is a process that runs telemetry.Observe.
type observer struct {
	t      *testing.T
	reader *metric.ManualReader
	stop   context.CancelFunc
	ended  chan error
}

func observe(t *testing.T, pool *pgxpool.Pool) *observer {
	t.Helper()
	o := &observer{t: t, reader: metric.NewManualReader(), ended: make(chan error, 1)}
	ctx, stop := context.WithCancel(context.Background())
	o.stop = stop
	with := telemetry.Config{
		MeterProvider: metric.NewMeterProvider(metric.WithReader(o.reader)),
		Interval:      time.Second,
		Logger:        slog.New(slog.DiscardHandler),
	}
	go func() { o.ended <- telemetry.Observe(ctx, pool, with) }()
	t.Cleanup(stop)
	return o
}

// end stops it, and waits until it has ended.
func (o *observer) end() {
	o.t.Helper()
	o.stop()
	select {
	case err := <-o.ended:
		if err != nil {
			o.t.Error(err)
		}
	case <-time.After(patience):
		o.t.Fatal("telemetry.Observe does not end")
	}
}

// values returns what it reports, by the metric's name: the first value of each.
func (o *observer) values() map[string]float64 {
	o.t.Helper()
	var all metricdata.ResourceMetrics
	if err := o.reader.Collect(o.t.Context(), &all); err != nil {
		o.t.Fatal(err)
	}
	has := map[string]float64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			var points []metricdata.DataPoint[float64]
			switch data := m.Data.(type) {
			case metricdata.Gauge[float64]:
				points = data.DataPoints
			case metricdata.Sum[float64]:
				points = data.DataPoints
			}
			if len(points) > 0 {
				has[m.Name] = points[0].Value
			}
		}
	}
	return has
}

// asks reports whether it reports what the database has answered.
func (o *observer) asks() bool {
	of := o.values()
	_, has := of["onlyonce.segments.free"]
	return has && of["onlyonce.database.up"] == 1
}

// Of two processes one asks the database, and only that one reports. When it ends, the other one
// takes over.
func TestOneProcessObserves(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	a, b := observe(t, pool), observe(t, pool)
	first, second := a, b
	pgtest.Until(t, patience, "one of two processes asks the database", func() bool {
		if b.asks() {
			first, second = b, a
		}
		return first.asks()
	})
	if of := second.values(); len(of) != 0 {
		t.Errorf("the other process reports %v too", of)
	}
	first.end()
	if of := first.values(); len(of) != 0 {
		t.Errorf("a process that has ended reports %v", of)
	}
	pgtest.Until(t, patience, "the other process asks the database", second.asks)
	second.end()
}

// A database that does not answer: it is reported as down, and what it said before is left out
// after three intervals. When it answers again, its values are back.
func TestObserveDatabaseThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	o := observe(t, pool)
	pgtest.Until(t, patience, "the database answers", o.asks)
	lock, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(t.Context(), `lock table onlyonce.leases in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, patience, "only the failure is reported", func() bool {
		of := o.values()
		return len(of) == 2 && of["onlyonce.database.up"] == 0 && of["onlyonce.observe.failed"] > 0
	})
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, patience, "the database answers again", o.asks)
	o.end()
}

// The guide says which rights the login needs: to read, and to take the lease.
func TestObserveWithLeastPrivileges(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil) // of its own, because roles are the whole server's
	owner := pgtest.Pool(t, server)
	roles, err := os.ReadFile("../../docs/roles.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		string(roles),
		`create role reader login in role onlyonce_viewer`,
		`create role service login in role onlyonce_viewer, onlyonce_app`,
	} {
		if _, err := owner.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	as := func(login string) *observer {
		u, err := url.Parse(server)
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.User(login)
		return observe(t, pgtest.Pool(t, u.String()))
	}
	reader := as("reader")
	pgtest.Until(t, patience, "a login that can take no lease reports that it fails", func() bool {
		return reader.values()["onlyonce.observe.failed"] > 0
	})
	reader.end()
	service := as("service")
	pgtest.Until(t, patience, "a login that can take the lease asks", service.asks)
	service.end()
}

func TestObserveRefusesLongIntervals(t *testing.T) {
	t.Parallel()
	err := telemetry.Observe(t.Context(), pgtest.DB(t), telemetry.Config{Interval: time.Hour})
	if err == nil || !strings.Contains(err.Error(), "Config.Interval") {
		t.Errorf("an interval of an hour: %v", err)
	}
}
