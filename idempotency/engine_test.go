package idempotency_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestH17OneTransaction(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	g := newGate(t)
	r.handle(idempotency.Route{Pattern: "/charges"}, func(w http.ResponseWriter, req *http.Request) {
		tx, err := idempotency.TxOf(req)
		if err != nil {
			t.Error(err)
			return
		}
		if err := outbox.Enqueue(req.Context(), tx, outbox.Call{
			Sink:   "payments",
			Name:   "charge",
			Target: "/charges",
			Body:   []byte("{}"),
		}); err != nil {
			t.Error(err)
		}
		if r.runs.Load() == 1 {
			g.before(effect)(w, req)
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		effect(w, req)
	})
	counts := func() string {
		return one[string](
			r,
			`select (select count(*) from effects) || ' ' || (select count(*) from onlyonce.calls) || ' ' || (select count(*)
				from onlyonce.http_records)`,
		)
	}
	first := r.background("/charges", "k", "x")
	wait(t, "it runs", g.begun)
	if dup := r.post("/charges", "k", "x"); dup.code() != "request-in-progress" {
		t.Errorf("%v", dup)
	}
	other := newRigOn(t, r.pool, r.pool, testConfig())
	other.handle(idempotency.Route{Pattern: "/charges"}, effect)
	if dup := other.post("/charges", "k", "x"); dup.code() != "request-in-progress" || other.runs.Load() != 0 { // by the key's lock
		t.Errorf("%v", dup)
	}
	if n := counts(); n != "0 0 0" {
		t.Errorf("%s while it runs: effects, calls, records", n)
	}
	g.release()
	if got := wait(t, "it is answered", first); got.mark() != "created" { // effect has written 201; the 502 came too late
		t.Errorf("%v", got)
	}
	if n := counts(); n != "1 1 1" {
		t.Errorf("%s: effects, calls, records", n)
	}
	call := one[string](r, `select min(key::text) from onlyonce.calls`)
	r.exec(`delete from onlyonce.http_records`)
	r.post("/charges", "k", "x")
	if n := one[int](r, `select count(distinct key) from onlyonce.calls where key::text = $1`, call); n != 1 {
		t.Error("the call's key is not derived from the request's")
	}
}

// What a handler does to its transaction decides before what it answers.
func TestH17HandlersThatMisbehave(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	r.exec(`create table parents (id int primary key); create table children (id int references parents deferrable initially deferred)`)
	for name, misbehave := range map[string]func(tx consumer.Tx, exec func(sql string) error){
		"swallowed error": func(_ consumer.Tx, exec func(string) error) {
			_ = exec(`insert into effects values (null)`)
		},
		"unpreparable": func(_ consumer.Tx, exec func(string) error) { // fails before the savepoint in front of it is sent
			_ = exec(`insert into no_such_table values (1)`)
		},
		"queued error": func(tx consumer.Tx, _ func(string) error) {
			tx.Queue(`select 1 / 0`)
		},
		"deferred constraint": func(_ consumer.Tx, exec func(string) error) {
			if err := exec(`insert into children values (1)`); err != nil {
				t.Error(err)
			}
		},
		"commit": func(_ consumer.Tx, exec func(string) error) {
			if exec(`commit`) == nil {
				t.Error("a handler may commit")
			}
		},
		"commit by name": func(_ consumer.Tx, exec func(string) error) {
			_ = exec(`/* */ rollback`)
		},
		"backend terminated": func(_ consumer.Tx, exec func(string) error) {
			_ = exec(`select pg_terminate_backend(pg_backend_pid())`)
		},
	} {
		for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
			for _, status := range []int{201, 402, 500} {
				path := fmt.Sprintf("/%s/%d/%d", strings.ReplaceAll(name, " ", "-"), mode, status)
				bad := true
				r.handle(idempotency.Route{Pattern: path, Mode: mode}, func(w http.ResponseWriter, req *http.Request) {
					tx, err := idempotency.TxOf(req)
					if err != nil {
						t.Error(err)
						return
					}
					tx.Queue(`insert into effects values ($1)`, path)
					if bad {
						misbehave(tx, func(sql string) error {
							_, err := tx.Exec(req.Context(), sql)
							return err
						})
					}
					w.WriteHeader(status)
				})
				g := r.post(path, "k", "x")
				// A final refusal is stored if the rollback to the savepoint undoes its statements;
				// in all other cases it is not sent.
				final := status == 402 && !slices.Contains([]string{"commit", "commit by name", "backend terminated", "unpreparable"}, name)
				wrong := final != (g.mark() == "created") ||
					status == 201 && (g.status < 500 || g.mark() != "rejected")
				if wrong {
					t.Errorf("%s: %v", path, g)
				}
				if n := one[int](r, `select count(*) from effects where v = $1`, path); n != 0 {
					t.Errorf("%s: %d effects", path, n)
				}
				bad = false
				g = r.settledOr(path, status)
				wrong = final && g.mark() != "replayed" ||
					!final && status == 201 && g.mark() != "created"
				if wrong {
					t.Errorf("%s, the next time: %v", path, g)
				}
			}
		}
	}
}

// settledOr sends until the answer is of that status.
func (r *rig) settledOr(path string, status int) (g got) {
	r.t.Helper()
	until(r.t, fmt.Sprint(status, " at ", path), func() bool {
		g = r.post(path, "k", "x")
		return g.status == status
	})
	return g
}

func TestH17SerializationFailuresRunAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
		for _, state := range []string{"40001", "40P01"} {
			for fails, status := range map[int64]int{3: 201, 4: 503} {
				path := fmt.Sprintf("/%d/%s/%d", mode, state, fails)
				r.runs.Store(0)
				r.exec(`truncate effects`)
				r.handle(idempotency.Route{Pattern: path, Mode: mode}, func(w http.ResponseWriter, req *http.Request) {
					w.Header().Add("X-Run", "fresh")
					req.Header.Add("X-Seen", "once")
					if r.runs.Load() <= fails {
						if tx, err := idempotency.TxOf(req); err == nil {
							tx.Queue(`insert into effects values ('undone')`)
							_, _ = tx.Exec(req.Context(), fmt.Sprintf(`do $$ begin raise exception using errcode = '%s'; end $$`, state))
						}
						_, _ = w.Write([]byte("spoiled"))
						w.WriteHeader(http.StatusInternalServerError)
						return
					}
					w.Header().Set("X-Seen", fmt.Sprint(len(req.Header.Values("X-Seen"))))
					effect(w, req)
				})
				g := r.post(path, "k", "x")
				if g.status != status || r.runs.Load() != 4 {
					t.Errorf("%s, %d failures: %v, %d runs", state, fails, g, r.runs.Load())
				}
				wrong := status == 201 &&
					(g.body != "effect of x" || g.header.Get("X-Seen") != "1" || len(g.header.Values("X-Run")) != 1 || r.effects() != 1)
				if wrong {
					t.Errorf("a run is not a new one: %v %v", g, g.header)
				}
				wrong = status == 503 &&
					(r.effects() != 0 || g.header.Get("Retry-After") == "" || g.code() != "rolled-back")
				if wrong {
					t.Errorf("%v, %d effects", g, r.effects())
				}
			}
		}
	}
}

// Duplicates at each level of isolation, with handlers that conflict with each other besides.
func TestH17IsolationLevels(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.exec(`create table balance (n int not null); insert into balance values (0)`)
	other := newRigOn(t, r.pool, r.pool, testConfig())
	for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
		for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
			path := fmt.Sprintf("/%d/%s", mode, strings.ReplaceAll(string(level), " ", "-"))
			r.exec(`truncate effects`)
			r.exec(`update balance set n = 0`)
			transfer := func(w http.ResponseWriter, req *http.Request) {
				tx, err := idempotency.TxOf(req)
				if err != nil {
					http.Error(w, err.Error(), http.StatusServiceUnavailable)
					return
				}
				var n int
				err = tx.QueryRow(req.Context(), `select n from balance`).Scan(&n)
				if err == nil {
					_, err = tx.Exec(req.Context(), `update balance set n = n + 1`)
				}
				if err != nil {
					http.Error(w, err.Error(), http.StatusInternalServerError)
					return
				}
				effect(w, req)
			}
			route := idempotency.Route{Pattern: path, KeyWindow: 24 * time.Hour, Isolation: level, Mode: mode}
			r.handle(route, transfer)
			other.handle(route, transfer)
			const keys, copies = 5, 4
			both := []*rig{r, other}
			r.all(keys*copies, func(i int) (got, error) {
				return both[i%2].try(context.Background(), http.MethodPost, path, fmt.Sprint(i%keys), fmt.Sprint(i%keys))
			})
			for k := range keys {
				if g := r.settled(path, fmt.Sprint(k), fmt.Sprint(k)); g.status != http.StatusCreated ||
					g.body != fmt.Sprint("effect of ", k) {
					t.Errorf("%s: %v", level, g)
				}
			}
			if n := one[int](r, `select n from balance`); n != keys || r.effects() != keys {
				t.Errorf("mode %d, %s: balance %d, %d effects, want %d", mode, level, n, r.effects(), keys)
			}
		}
	}
}

// H18: a transaction above READ COMMITTED may be open for longer than the lease lasts, although
// leases are renewed meanwhile: its own one is not, and no other process takes it over.
func TestH18LongTransactionAboveReadCommitted(t *testing.T) {
	t.Parallel()
	cfg := leasedConfig()
	r := newRig(t, cfg)
	other := newRigOn(t, r.pool, r.pool, cfg)
	r.exec(`do $$ begin execute format('alter database %I set default_transaction_isolation = ''repeatable read''', current_database());
		end $$`)
	r.pool.Reset()
	levels := []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable, "", ""} // the server's setting is asked for once
	for n, level := range levels {
		runs := 0
		path := fmt.Sprint("/", n)
		route := idempotency.Route{Pattern: path, KeyWindow: 24 * time.Hour, Isolation: level, Mode: idempotency.Leased}
		begun := make(chan struct{}, 10)
		r.handle(route, func(w http.ResponseWriter, req *http.Request) {
			runs++
			tx, err := idempotency.TxOf(req)
			if err == nil {
				_, err = tx.Exec(req.Context(), `select count(*) from effects`) // the snapshot
			}
			if err != nil {
				t.Error(err)
			}
			begun <- struct{}{}
			if _, err := tx.Exec(
				req.Context(),
				`select pg_sleep(extract(epoch from max(until) - clock_timestamp()) + 0.5) from onlyonce.leases`,
			); err != nil {
				t.Error(err)
			}
			effect(w, req)
		})
		other.handle(route, effect)
		first := r.background(path, "k", "x")
		<-begun
		if g := other.settled(path, "k", "x"); g.status != http.StatusCreated || g.mark() != "replayed" {
			t.Errorf("%s: a copy got %v", level, g)
		}
		if g := <-first; g.status != http.StatusCreated || runs != 1 {
			t.Errorf("%s: %v, after %d runs", level, g, runs)
		}
	}
	if n := r.effects(); n != len(levels) {
		t.Errorf("%d effects of %d requests", n, len(levels))
	}
}

// H18: a handler above READ COMMITTED may work for longer than its lease lasts before its first
// statement, too: no copy takes the request over.
func TestH18LongWorkBeforeTheFirstStatement(t *testing.T) {
	t.Parallel()
	cfg := leasedConfig()
	r := newRig(t, cfg)
	other := newRigOn(t, r.pool, r.pool, cfg)
	runs := 0
	route := idempotency.Route{Pattern: "/", KeyWindow: 24 * time.Hour, Isolation: pgx.RepeatableRead, Mode: idempotency.Leased}
	begun := make(chan struct{}, 10)
	r.handle(route, func(w http.ResponseWriter, req *http.Request) {
		runs++
		if _, err := idempotency.TxOf(req); err != nil {
			t.Error(err)
		}
		begun <- struct{}{}
		r.exec(`select pg_sleep(extract(epoch from max(until) - clock_timestamp()) + 0.5) from onlyonce.leases`)
		effect(w, req)
	})
	other.handle(route, effect)
	first := r.background("/", "k", "x")
	<-begun
	if g := other.settled("/", "k", "x"); g.status != http.StatusCreated || g.mark() != "replayed" {
		t.Errorf("a copy got %v", g)
	}
	if g := <-first; g.status != http.StatusCreated || runs != 1 {
		t.Errorf("%v, after %d runs", g, runs)
	}
}

func TestH19ExpiredIsAbsent(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	r.handle(idempotency.Route{Pattern: "/tx", TTL: 2 * time.Hour, KeyWindow: time.Second}, effect)
	r.handle(
		idempotency.Route{Pattern: "/leased", Mode: idempotency.Leased, TTL: 3 * time.Hour, KeyWindow: time.Hour},
		charge(func(context.Context, string) ([]byte, error) { return []byte("paid"), nil }),
	)
	for path, hours := range map[string]float64{"/tx": 2, "/leased": 3} {
		r.post(path, "k", "x")
		if h := one[float64](r, `select extract(epoch from expires_at - completed_at) / 3600 from onlyonce.http_records where scope = $1`,
			"http POST "+path); h < hours-0.01 ||
			h > hours+0.01 {
			t.Errorf("%s is kept for %v h", path, h)
		}
		r.exec(`update onlyonce.http_records set expires_at = clock_timestamp() where scope = $1`, "http POST "+path)
		before := r.effects()
		other := newRigOn(t, r.pool, r.pool, leasedConfig())
		other.handle(idempotency.Route{Pattern: "/tx"}, effect)
		other.handle(
			idempotency.Route{Pattern: "/leased", Mode: idempotency.Leased},
			charge(func(context.Context, string) ([]byte, error) { return []byte("paid"), nil }),
		)
		both := []*rig{r, other}
		answers := r.all(30, func(i int) (got, error) { // another request: nothing of the old one counts
			return both[i%2].try(context.Background(), http.MethodPost, path, "k", "another")
		})
		created := 0
		for _, g := range answers {
			switch {
			case g.mark() == "created":
				created++
			case g.mark() != "replayed" && g.mark() != "in-progress":
				t.Errorf("%v", g)
			}
		}
		if created != 1 || r.effects() != before+1 {
			t.Errorf("%s: %d winners, %d effects", path, created, r.effects()-before)
		}
		if n := one[int](
			r,
			`select count(*) from onlyonce.http_steps s join onlyonce.http_records r on r.id = s.record_id where s.first_at < r.created_at`,
		); n != 0 {
			t.Error("steps of the record that has expired are still there")
		}
	}
}

// T13: a purge does not read the records that are kept.
func TestT13PurgeBesideKeptRecords(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	const records = 100_000
	r.exec(`set session_replication_role = replica;
		insert into onlyonce.http_records (id, tenant, scope, fingerprint, token, state, response, keep, completed_at, expires_at,
		watched_at, look, look_at, calls)
		select gen_random_uuid(), 'a', 's', '', gen_random_uuid(), 'completed', '', '1 day', now(), now() + interval '1 day', now(),
		       '1 hour', case when n % 2 = 0 then now() + interval '1 hour' end, case when n % 2 = 0 then array[gen_random_uuid()] end
		  from generate_series(1, `+fmt.Sprint(records)+`) n;
		set session_replication_role = origin`, pgx.QueryExecModeSimpleProtocol)
	for _, function := range []string{"http_purge", "http_look"} {
		plan := one[[]struct {
			Plan struct {
				Hit  int `json:"Shared Hit Blocks"`
				Read int `json:"Shared Read Blocks"`
			}
		}](r, `explain (analyze, buffers, format json) select onlyonce.`+function+`(500)`)
		if pages := plan[0].Plan.Hit + plan[0].Plan.Read; pages > records/100 {
			t.Errorf("%s read %d pages beside %d records that have not expired", function, pages, records)
		}
	}
}

// T13: a database that is slow deletes all expired records too, in smaller portions.
func TestT13PurgeOfASlowDatabase(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.PurgeInterval = 100 * time.Millisecond
	r := newRig(t, cfg)
	r.handle(idempotency.Route{Pattern: "/charges"}, effect)
	for i := range 30 {
		r.post("/charges", fmt.Sprint(i), "x")
	}
	r.exec(`update onlyonce.http_records set expires_at = clock_timestamp()`)
	pgtest.Bound(t, r.pool, "onlyonce.http_records", 5)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.layer.Run(ctx) }()
	until(t, "all are purged", func() bool { return one[int](r, `select count(*) from onlyonce.http_records`) == 0 })
	cancel()
	if err := pgtest.Receive(t, patience, "Run ends", ended); err != nil {
		t.Fatal(err)
	}
}

func TestH20Purge(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.PurgeInterval = 100 * time.Millisecond
	var mu sync.Mutex
	var batches []int
	cfg.Hooks.Purged = func(n int) { mu.Lock(); defer mu.Unlock(); batches = append(batches, n) }
	r := newRig(t, cfg)
	r.layer.SetPurgeBatch(7)
	r.handle(idempotency.Route{Pattern: "/charges"}, effect)
	for i := range 40 {
		r.post("/charges", fmt.Sprint(i%20), "x", "X-Tenant", fmt.Sprint(i/20)) // two tenants with the same keys
	}
	r.exec(`update onlyonce.http_records set expires_at = clock_timestamp() where tenant = '0'`)
	// One of them is locked by another transaction, and the purge does not wait for it.
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // or the pool would wait for it
	if _, err := tx.Exec(
		t.Context(),
		`select from onlyonce.http_records where id = onlyonce.key('0', 'http POST /charges', '3') for update`,
	); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.layer.Run(ctx) }()
	left := func() int { return one[int](r, `select count(*) from onlyonce.http_records where tenant = '0'`) }
	until(t, "all but the one are purged", func() bool { return left() == 1 })
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "it is purged too", func() bool { return left() == 0 })
	// Beside traffic: keys that expire all the time, and are used again all the time.
	stop := make(chan struct{})
	var expirer sync.WaitGroup
	expirer.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = r.pool.Exec(
					context.Background(),
					`update onlyonce.http_records set expires_at = clock_timestamp() where tenant = 'busy'`,
				)
			}
		}
	})
	created := 0
	for _, g := range r.all(60, func(i int) (got, error) {
		return r.try(context.Background(), http.MethodPost, "/charges", fmt.Sprint(i%5), "busy", "X-Tenant", "busy")
	}) {
		switch g.mark() {
		case "created":
			created++
		case "replayed", "in-progress":
		default:
			t.Errorf("%v", g)
		}
	}
	close(stop)
	expirer.Wait()
	if n := one[int](r, `select count(*) from effects where v = 'busy'`); n != created {
		t.Errorf("%d effects, %d created", n, created)
	}
	cancel()
	if err := wait(t, "Run returns", ended); err != nil {
		t.Error(err)
	}
	if n := one[int](r, `select count(*) from onlyonce.http_records where tenant = '1'`); n != 20 {
		t.Errorf("%d of 20 records that have not expired are left", n)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, n := range batches {
		if n > 7 {
			t.Errorf("a batch of %d", n)
		}
	}
}

// A record that was replaced while the purge waited for it is not the one that was found.
func TestH20ReplacedRecordStays(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.handle(idempotency.Route{Pattern: "/charges"}, effect)
	r.post("/charges", "k", "x")
	r.exec(`update onlyonce.http_records set expires_at = clock_timestamp()`)
	r.post("/charges", "k", "y")
	if n := one[int](r, `select onlyonce.http_purge(100)`); n != 0 {
		t.Errorf("%d purged", n)
	}
	if g := r.post("/charges", "k", "y"); g.mark() != "replayed" {
		t.Errorf("%v", g)
	}
}

func TestH22StoreDown(t *testing.T) {
	t.Parallel()
	var failed int
	var mu sync.Mutex
	cfg := leasedConfig()
	cfg.AcquireTimeout = 300 * time.Millisecond
	cfg.Hooks.StoreFailed = func(error) { mu.Lock(); defer mu.Unlock(); failed++ }
	r := newRig(t, cfg)
	r.handle(idempotency.Route{Pattern: "/tx"}, effect)
	r.handle(idempotency.Route{Pattern: "/leased", Mode: idempotency.Leased}, effect)
	r.pool.Close()
	for _, path := range []string{"/tx", "/leased"} {
		g := r.post(path, "k", "x")
		good := g.status == 503 &&
			g.code() == "store-unavailable" &&
			g.header.Get("Retry-After") != "" &&
			r.runs.Load() == 0
		if !good {
			t.Errorf("%s: %v", path, g)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if failed != 2 {
		t.Errorf("%d failures are told", failed)
	}
}

// A record that the engine has not sealed does not commit, in either mode.
func TestH17RecordNeedsTheSeal(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	const record = `select onlyonce.http_complete(gen_random_uuid(), '', 's', '\x00', gen_random_uuid(), '\x00', false, '1 day')`
	const byHand = `insert into onlyonce.http_records (id, tenant, scope, fingerprint, token, state, keep, completed_at, expires_at)
		values (gen_random_uuid(), '', 's', '\x00', gen_random_uuid(), 'completed', '1 day', now(), now() + interval '1 day')`
	const running = `insert into onlyonce.http_records (id, tenant, scope, fingerprint, token, state, keep)
		values ('8d1f2c9a-0000-8000-8000-000000000001', '', 's', '\x00', gen_random_uuid(), 'running', '1 day')`
	const completed = `update onlyonce.http_records set state = 'completed', completed_at = now(), expires_at = now()
		where state = 'running'`
	const open, seal = `select onlyonce.http_open('1s', '1s', '1s')`, `select onlyonce.seal()`
	for _, c := range []struct {
		statements []string
		commits    bool
	}{
		{[]string{open, record}, true},
		{[]string{open, byHand, seal}, true},
		{[]string{running}, true},
		{[]string{record}, false},
		{[]string{open, byHand}, false},
		{[]string{open, completed}, false},
		{[]string{open, completed, seal}, true},
	} {
		err := pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) (err error) {
			for _, s := range c.statements {
				if err == nil {
					_, err = tx.Exec(t.Context(), s)
				}
			}
			return err
		})
		wrong := c.commits && err != nil ||
			!c.commits && (err == nil || !strings.Contains(err.Error(), "OO002"))
		if wrong {
			t.Errorf("%q: %v", c.statements, err)
		}
	}
}

// A principal of the greatest length, each byte of which is escaped in the scope, behind a long
// pattern: its requests enqueue calls, too.
func TestEnqueueOfALongPrincipal(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.Scope = func(*http.Request) (idempotency.Scope, error) {
		return idempotency.Scope{Tenant: "acme", Principal: strings.Repeat("ж", 100)}, nil
	}
	r := newRig(t, cfg)
	path := "/" + strings.Repeat("x", 199)
	r.handle(idempotency.Route{Pattern: path, KeyWindow: 24 * time.Hour}, func(w http.ResponseWriter, req *http.Request) {
		tx, err := idempotency.TxOf(req)
		if err == nil {
			err = outbox.Enqueue(req.Context(), tx, outbox.Call{Sink: "payments", Name: "charge", Target: "/charges"})
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		effect(w, req)
	})
	if g := r.post(path, "k", "x"); g.status != http.StatusCreated {
		t.Errorf("%v", g)
	}
	if n := one[int](r, `select count(*) from onlyonce.outbox_log`); n != 1 {
		t.Errorf("%d calls", n)
	}
}
