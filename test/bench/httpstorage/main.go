// Command httpstorage measures the cost of stored answers: bytes of table, index and TOAST for
// each, WAL, and how fast expired ones are purged during traffic. docs/http.md has its output.
//
//	go run ./httpstorage [-records 200000] [-sealed] [-body 400] [-json]
//
// Requests go through idempotency.Layer with a handler that writes nothing itself, so that
// everything in the database is the layer's. They stay in this process, without HTTP. Exit status:
// 0 if it has measured, 2 if not.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/test/devenv"
)

type options struct {
	records int
	body    int
	sealed  bool
	json    bool
}

// result is what is printed. Bytes are for each record.
type result struct {
	Records   int     `json:"records"`
	Answer    int     `json:"answer"` // bytes of body and headers as the client gets them
	Sealed    bool    `json:"sealed"`
	Table     float64 `json:"table"`
	Indexes   float64 `json:"indexes"`
	Toast     float64 `json:"toast"`
	WAL       float64 `json:"wal"`           // of a request, COMMIT included
	WALPurged float64 `json:"wal_purged"`    // of a record's deletion
	Written   float64 `json:"written"`       // requests a second, alone
	Purged    float64 `json:"purged"`        // records a second, beside traffic
	Beside    float64 `json:"beside"`        // requests a second, beside the purge
	AloneP99  float64 `json:"alone_p99_ms"`  // of a request, alone
	BesideP99 float64 `json:"beside_p99_ms"` // of a request, beside the purge
	// bytes of all of it for each record that had been there, behind purge and vacuum: what is
	// reused and not given back
	AfterVacuum float64 `json:"after_vacuum"`
}

const workers = 16

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "httpstorage:", err)
		os.Exit(2)
	}
}

func run(ctx context.Context, args []string) error {
	var o options
	fs := flag.NewFlagSet("httpstorage", flag.ContinueOnError)
	fs.IntVar(&o.records, "records", 200_000, "records to write, from 1000")
	fs.IntVar(&o.body, "body", 480, "bytes of an answer's body, from 100")
	fs.BoolVar(&o.sealed, "sealed", false, "encrypt the answers")
	fs.BoolVar(&o.json, "json", false, "print one JSON object")
	if err := fs.Parse(args); err != nil {
		return err
	}
	switch {
	case fs.NArg() > 0:
		return fmt.Errorf("unexpected argument %q: values follow their flags", fs.Arg(0))
	case o.records < 1000:
		return fmt.Errorf("-records: %d is less than 1000", o.records)
	case o.body < 100 || o.body > 1<<20:
		return fmt.Errorf("-body: %d is not from 100 to %d", o.body, 1<<20)
	}
	pg, err := devenv.StartPostgres(ctx, devenv.Options{Log: func(line string) { fmt.Fprintln(os.Stderr, line) },
		PostgresSettings: map[string]string{"min_wal_size": "1GB", "max_wal_size": "8GB"}})
	if err != nil {
		return err
	}
	r, err := measure(ctx, pg.URL, o)
	if err := errors.Join(err, pg.Stop()); err != nil {
		return err
	}
	if o.json {
		return json.NewEncoder(os.Stdout).Encode(r)
	}
	r.print(os.Stdout)
	return nil
}

// measure works in a database of its own, which is dropped.
func measure(ctx context.Context, address string, o options) (r result, err error) {
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return r, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	name := fmt.Sprintf("onlyonce_httpstorage_%d", os.Getpid())
	if _, err := conn.Exec(ctx, "create database "+name); err != nil {
		return r, err
	}
	defer func() {
		_, dropErr := conn.Exec(context.WithoutCancel(ctx), "drop database "+name+" with (force)")
		err = errors.Join(err, dropErr)
	}()
	cfg, err := pgxpool.ParseConfig(address)
	if err != nil {
		return r, err
	}
	cfg.ConnConfig.Database, cfg.MaxConns = name, workers+2
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return r, err
	}
	defer pool.Close()
	c, err := pool.Acquire(ctx)
	if err != nil {
		return r, err
	}
	_, err = migrations.Apply(ctx, c.Conn())
	c.Release()
	if err != nil {
		return r, err
	}
	return phases(ctx, pool, o)
}

// expiresSoon is the TTL of records that are to be purged: the shortest there is. It has passed
// long before all is written.
const expiresSoon = time.Second

func phases(ctx context.Context, pool *pgxpool.Pool, o options) (r result, err error) {
	r.Records, r.Sealed = o.records, o.sealed
	var purged atomic.Int64
	all := make(chan struct{})
	want := int64(o.records)
	layerCfg := idempotency.Config{
		Scope: idempotency.GlobalScope(), FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {1}}},
		Hooks: idempotency.Hooks{Purged: func(n int) {
			if now := purged.Add(int64(n)); now >= want && now-int64(n) < want {
				close(all)
			}
		}},
	}
	if o.sealed {
		if layerCfg.Sealer, err = sealer(); err != nil {
			return r, err
		}
	}
	layer, err := idempotency.New(pool, layerCfg)
	if err != nil {
		return r, err
	}
	s := &service{body: o.body}
	soon := layer.MustHandle(idempotency.Route{Pattern: "/v1/charges", KeyWindow: 24 * time.Hour, TTL: expiresSoon}, s)
	late := layer.MustHandle(idempotency.Route{Pattern: "/v1/refunds", KeyWindow: 24 * time.Hour}, s)

	// Written alone.
	progress("writing %d records", o.records)
	if err := checkpoint(ctx, pool); err != nil {
		return r, err
	}
	before, err := wal(ctx, pool)
	if err != nil {
		return r, err
	}
	t0 := time.Now()
	took, err := load(ctx, soon, func(n int64) bool { return n < want })
	if err != nil {
		return r, err
	}
	r.Written, r.AloneP99 = float64(o.records)/time.Since(t0).Seconds(), p99(took)
	after, err := wal(ctx, pool)
	if err != nil {
		return r, err
	}
	r.Answer, r.WAL = int(s.bytes.Load()), float64(after-before)/float64(o.records)
	if err := pool.QueryRow(ctx, sizesSQL).Scan(&r.Table, &r.Indexes, &r.Toast); err != nil {
		return r, err
	}
	r.Table = r.Table / float64(o.records)
	r.Indexes = r.Indexes / float64(o.records)
	r.Toast = r.Toast / float64(o.records)

	// A tenth of it purged alone, for the WAL of a deletion.
	progress("purging")
	if err := checkpoint(ctx, pool); err != nil {
		return r, err
	}
	if before, err = wal(ctx, pool); err != nil {
		return r, err
	}
	alone := int64(0)
	for alone < want/10 {
		var n int64
		if err := pool.QueryRow(ctx, `select onlyonce.http_purge(1000)`).Scan(&n); err != nil {
			return r, err
		}
		alone += n
		if n == 0 {
			return r, errors.New("nothing has expired")
		}
	}
	if after, err = wal(ctx, pool); err != nil {
		return r, err
	}
	r.WALPurged = float64(after-before) / float64(alone)
	want -= alone

	// The rest is purged by Layer.Run as it is, during traffic.
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	t0 = time.Now()
	go func() { ended <- layer.Run(running) }()
	var over atomic.Bool
	go func() {
		select {
		case <-all:
		case <-running.Done():
		}
		over.Store(true)
	}()
	took, err = load(running, late, func(int64) bool { return !over.Load() })
	if err != nil {
		return r, err
	}
	r.Purged = float64(want) / time.Since(t0).Seconds()
	r.Beside = float64(len(took)) / time.Since(t0).Seconds()
	r.BesideP99 = p99(took)
	stop()
	if err := <-ended; err != nil {
		return r, err
	}
	if _, err := pool.Exec(ctx, `vacuum onlyonce.http_records`); err != nil {
		return r, err
	}
	var table, indexes, toast float64
	if err := pool.QueryRow(ctx, sizesSQL).Scan(&table, &indexes, &toast); err != nil {
		return r, err
	}
	r.AfterVacuum = (table + indexes + toast) / float64(o.records)
	return r, nil
}

func sealer() (*seal.Sealer, error) {
	return seal.New(seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {7}}})
}

// load sends fresh requests until more returns false, and returns how long each took.
func load(ctx context.Context, h http.Handler, more func(n int64) bool) ([]time.Duration, error) {
	var next atomic.Int64
	var mu sync.Mutex
	var all []time.Duration
	var failed error
	var clients sync.WaitGroup
	for range workers {
		clients.Go(func() {
			var took []time.Duration
			var err error
			for ctx.Err() == nil && err == nil && more(next.Add(1)-1) {
				t := time.Now()
				err = post(ctx, h)
				took = append(took, time.Since(t))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
			if failed == nil {
				failed = err
			}
		})
	}
	clients.Wait()
	return all, errors.Join(failed, ctx.Err())
}

func post(ctx context.Context, h http.Handler) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://bench/v1/charges",
		bytes.NewReader([]byte(`{"amount":2000,"currency":"eur","source":"tok_visa"}`)))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", uuid.NewString())
	w := &written{header: http.Header{}}
	h.ServeHTTP(w, req)
	if mark := w.header.Get("Idempotency-Status"); mark != string(idempotency.Created) {
		return fmt.Errorf("answered %d, %s", w.status, mark)
	}
	return nil
}

// service answers as a charge does, with random bytes in hexadecimal, which compress as ids and
// tokens do.
type service struct {
	body  int
	bytes atomic.Int64
}

func (s *service) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	filler := make([]byte, (s.body-80)/2)
	for i := range filler {
		filler[i] = byte(rand.Uint32())
	}
	body := fmt.Appendf(nil, `{"id":"ch_%s","object":"charge","amount":2000,"x":"%x"}`, uuid.NewString(), filler)
	h := w.Header()
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("Location", "/v1/charges/ch_"+uuid.NewString())
	h.Set("Cache-Control", "no-store")
	s.bytes.Store(int64(len(body)) + headerBytes(h))
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(body)
}

func headerBytes(h http.Header) (n int64) {
	for name, values := range h {
		for _, v := range values {
			n += int64(len(name) + len(": ") + len(v) + len("\r\n"))
		}
	}
	return n
}

// written is a ResponseWriter that discards what is written.
type written struct {
	header http.Header
	status int
}

func (w *written) Header() http.Header         { return w.header }
func (w *written) WriteHeader(status int)      { w.status = status }
func (w *written) Write(b []byte) (int, error) { return io.Discard.Write(b) }

// sizesSQL returns one row: bytes of the table, of its indexes, and of its TOAST table with its
// index.
const sizesSQL = `
select pg_relation_size(c.oid)::float8,
       pg_indexes_size(c.oid)::float8,
       coalesce(pg_total_relation_size(nullif(c.reltoastrelid, 0)), 0)::float8
  from pg_class c where c.oid = 'onlyonce.http_records'::regclass`

func wal(ctx context.Context, pool *pgxpool.Pool) (n int64, err error) {
	err = pool.QueryRow(ctx, `select (pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&n)
	return n, err
}

func checkpoint(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, "checkpoint")
	return err
}

func p99(took []time.Duration) float64 {
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return float64(took[len(took)*99/100].Microseconds()) / 1000
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// perDay is what the extrapolation is for.
const perDay = 10_000_000

func (r result) print(w io.Writer) {
	sealed := ""
	if r.Sealed {
		sealed = ", sealed"
	}
	fmt.Fprintf(w, "%d records of an answer of %d bytes, headers included%s\n\n", r.Records, r.Answer, sealed)
	total := r.Table + r.Indexes + r.Toast
	for _, l := range []struct {
		name  string
		value float64
		unit  string
	}{
		{"table", r.Table, "B a record"},
		{"indexes", r.Indexes, "B a record"},
		{"TOAST", r.Toast, "B a record"},
		{"together", total, "B a record"},
		{"behind purge and vacuum", r.AfterVacuum, "B a record, which are used again"},
		{"WAL of a request", r.WAL, "B"},
		{"WAL of a deletion", r.WALPurged, "B"},
		{"requests alone", r.Written, fmt.Sprintf("a second, p99 %.1f ms", r.AloneP99)},
		{"requests beside the purge", r.Beside, fmt.Sprintf("a second, p99 %.1f ms", r.BesideP99)},
		{"purged beside them", r.Purged, "records a second"},
	} {
		fmt.Fprintf(w, "  %-26s %10.0f  %s\n", l.name, l.value, l.unit)
	}
	fmt.Fprintf(w, "\n%d million keys a day:\n", perDay/1_000_000)
	for _, ttl := range []struct {
		name  string
		hours float64
	}{{"1 h", 1}, {"24 h", 24}, {"7 d", 7 * 24}, {"30 d", 30 * 24}} {
		records := perDay / 24 * ttl.hours
		fmt.Fprintf(w, "  TTL %-5s %12.0f records %8.1f GB\n", ttl.name, records, records*total/1e9)
	}
	fmt.Fprintf(w, "  WAL %.1f GB a day\n", perDay*(r.WAL+r.WALPurged)/1e9)
}
