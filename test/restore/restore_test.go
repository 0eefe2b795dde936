package restore

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/storm/rig"
	"github.com/onlyonce/onlyonce/webhook"
)

// Turns of the load at which something happens. A turn is a message, a request and a webhook.
const (
	backupAt  = 100
	pointAt   = 200
	killAt    = 300
	endAt     = 400
	unfitEach = 50 // a message that its handler never applies
)

var patience = pgtest.Patience(time.Minute)

const secret = "It's a Secret to Everybody"

// drill is a program with every engine, on a database whose address leads to another server after
// the restore.
type drill struct {
	t      *testing.T
	pool   *pgxpool.Pool
	log    *memlog.Log
	http   *httptest.Server
	remote *httptest.Server
	turn   atomic.Int64

	done map[string]*atomic.Int64 // parts of turns: messages appended, requests and webhooks answered

	// The load, which may be the faster one, waits at pointAt for the backup, and halfway to killAt
	// for the restore point.
	backedUp, pointSet chan struct{}

	mu   sync.Mutex
	keys map[string]int // times that the remote got a call, by key
}

// After a recovery to a point in the past, positions go back with the effects, and messages and
// calls are made up for (F1, O3). Answered requests and accepted webhooks of the lost time are
// unknown, until their senders repeat them.
func TestRestore(t *testing.T) {
	began := time.Now()
	o := devenv.Options{Own: true, PostgresSettings: devenv.ArchiveSettings()}
	primary, err := devenv.StartPostgres(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = primary.Stop() })
	forward, err := rig.NewForwarder(rig.HostPort(primary))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = forward.Close() })
	d := newDrill(t, forward.Address(primary))
	stop := d.run()
	loaded := make(chan struct{})
	go func() { defer close(loaded); d.load() }()

	d.reaches(backupAt)
	backup, err := primary.Backup(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = backup.Stop() })
	close(d.backedUp)
	d.reaches(pointAt)
	d.must(primary.RestorePoint(t.Context(), "drill"))
	close(d.pointSet)
	d.reaches(killAt)
	d.must(primary.Archived(t.Context()))
	d.must(primary.Kill(t.Context()))
	d.must(backup.Recover(t.Context(), primary, "drill"))
	lost := d.lost(backup.URL)
	forward.Cut(rig.HostPort(backup))
	<-loaded
	d.pool = pgtest.Pool(t, forward.Address(primary)) // for the checks: the engines' may still have connections to the killed server
	d.finds(lost)
	stop()
	again := 0
	for _, n := range d.keys {
		again += min(n-1, 1)
	}
	t.Logf(
		"restore: turns=%d messages_lost=%d calls=%d sent_again=%d requests_lost=%d webhooks_lost=%d parked=%d seconds=%.1f ok=%t",
		endAt,
		lost["message"],
		len(d.keys),
		again,
		lost["request"],
		lost["webhook"],
		endAt/unfitEach,
		time.Since(began).Seconds(),
		!t.Failed(),
	)
}

func newDrill(t *testing.T, address string) *drill {
	t.Helper()
	d := &drill{
		t:        t,
		pool:     pgtest.Pool(t, address),
		log:      memlog.NewLog("orders", 2),
		keys:     map[string]int{},
		backedUp: make(chan struct{}),
		pointSet: make(chan struct{}),
		done:     map[string]*atomic.Int64{"message": {}, "request": {}, "webhook": {}},
	}
	conn, err := pgx.Connect(t.Context(), address)
	d.must(err)
	_, err = migrations.Apply(t.Context(), conn)
	d.must(err)
	_, err = conn.Exec(t.Context(), `create table effects (kind text not null, n integer not null, at bigint generated always as identity)`)
	d.must(err)
	d.must(conn.Close(t.Context()))
	d.remote = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.keys[r.Header.Get("Idempotency-Key")]++
	}))
	t.Cleanup(d.remote.Close)
	return d
}

func (d *drill) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

// effect is a statement that writes the effect of a turn.
const effect = `insert into effects (kind, n) values ($1, $2)`

// run starts the engines, and returns a function that stops them.
func (d *drill) run() (stop func()) {
	c, err := consumer.New(
		d.pool,
		&memlog.Source{Log: d.log, GroupID: "g"},
		consumer.HandlerFunc(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			n := numberOf(string(m.Value))
			if n%unfitEach == 0 {
				return consumer.Permanent(errors.New("unfit"))
			}
			tx.Queue(effect, "message", n)
			return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "charge", Target: "/charges", Body: m.Value})
		}),
		consumer.Config{Scope: "stock", Key: consumer.HeaderKey("message-id")},
	)
	d.must(err)
	sink, err := httpsink.New(httpsink.Config{Name: "payments", BaseURL: d.remote.URL, KeyWindow: 24 * time.Hour, AllowPrivate: true})
	d.must(err)
	relay, err := outbox.NewRelay(d.pool, outbox.RelayConfig{
		Sinks:        []outbox.Sink{sink},
		PollInterval: 20 * time.Millisecond,
		LeaseTTL:     5 * time.Second,
	})
	d.must(err)
	endpoint, err := webhook.New(d.pool, webhook.Config{
		Name:     "github",
		Provider: webhook.GitHub{},
		Secrets:  []string{secret},
		Mode:     webhook.Inline,
		Handler: consumer.HandlerFunc(func(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
			e, err := webhook.EventOf(m)
			if err != nil {
				return err
			}
			tx.Queue(effect, "webhook", numberOf(e.ID))
			return nil
		}),
	})
	d.must(err)
	layer, err := idempotency.New(d.pool, idempotency.Config{
		Scope:           idempotency.GlobalScope(),
		FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {1}}},
	})
	d.must(err)
	charges, err := layer.Handle(
		idempotency.Route{Pattern: "/charges", NoCalls: true},
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			tx, err := idempotency.TxOf(r)
			if err == nil {
				body, _ := io.ReadAll(r.Body)
				_, err = tx.Exec(r.Context(), effect, "request", numberOf(string(body)))
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.WriteHeader(http.StatusCreated)
		}),
	)
	d.must(err)
	mux := http.NewServeMux()
	mux.Handle("/charges", charges)
	mux.Handle("/hooks", endpoint)
	d.http = httptest.NewServer(mux)
	d.t.Cleanup(d.http.Close)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for name, run := range map[string]func(context.Context) error{
		"consumer": c.Run,
		"relay":    relay.Run,
		"endpoint": endpoint.Upkeep,
		"layer":    layer.Run,
	} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				d.t.Errorf("%s: %v", name, err)
			}
		})
	}
	stop = func() { cancel(); running.Wait() }
	d.t.Cleanup(stop)
	return stop
}

func numberOf(s string) (n int) {
	_, _ = fmt.Sscanf(s, "%d", &n)
	return n
}

// load makes all turns, one after the other. A request that is not answered, or with 5xx, is
// repeated, as a client does.
func (d *drill) load() {
	for n := range endAt {
		switch n {
		case pointAt:
			<-d.backedUp
		case (pointAt + killAt) / 2:
			<-d.pointSet
		}
		id := fmt.Sprint(n)
		d.log.AppendMessage(int32(n%2), &consumer.Message{
			Value:   []byte(id),
			Time:    time.Now(),
			Headers: []consumer.Header{{Name: "message-id", Value: []byte(id)}},
		})
		d.done["message"].Add(1)
		for _, part := range []struct {
			kind string
			ask  func(int) *http.Response
		}{{"request", d.charge}, {"webhook", d.hook}} {
			pgtest.Until(d.t, patience, part.kind+" "+id+" is answered", func() bool {
				r := part.ask(n)
				return r != nil && r.StatusCode < 300
			})
			d.done[part.kind].Add(1)
		}
		d.turn.Store(int64(n + 1))
	}
}

func (d *drill) charge(n int) *http.Response {
	return d.post("/charges", fmt.Sprint(n), http.Header{"Idempotency-Key": {fmt.Sprintf("request-%d", n)}})
}

func (d *drill) hook(n int) *http.Response {
	body := fmt.Sprintf(`{"n":%d}`, n)
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = mac.Write([]byte(body))
	return d.post("/hooks", body, http.Header{
		"X-Github-Event":      {"push"},
		"X-Github-Delivery":   {fmt.Sprint(n)},
		"X-Hub-Signature-256": {"sha256=" + hex.EncodeToString(mac.Sum(nil))},
	})
}

func (d *drill) post(path, body string, header http.Header) *http.Response {
	req, err := http.NewRequest(http.MethodPost, d.http.URL+path, strings.NewReader(body))
	if err != nil {
		d.t.Error(err)
		return nil
	}
	req.Header = header
	header.Set("Content-Type", "application/json")
	r, err := d.http.Client().Do(req)
	if err != nil {
		return nil
	}
	_, _ = io.Copy(io.Discard, r.Body)
	_ = r.Body.Close()
	return r
}

func (d *drill) reaches(turn int64) {
	d.t.Helper()
	pgtest.Until(d.t, patience, fmt.Sprintf("turn %d", turn), func() bool { return d.turn.Load() >= turn })
}

// lost counts the messages, and the answered requests and webhooks, whose effects the restored
// server does not have. It waits for nothing: no engine is connected to that server yet.
func (d *drill) lost(address string) map[string]int {
	d.t.Helper()
	pool := pgtest.Pool(d.t, address)
	lost := map[string]int{}
	for kind, done := range d.done {
		n := 0
		d.must(
			pool.QueryRow(
				d.t.Context(),
				`select count(*) from generate_series(0, $2 - 1) n
					where ($1 <> 'message' or n % $3 <> 0) and not exists (select from effects e where e.kind = $1 and e.n = n.n)`,
				kind,
				done.Load(),
				unfitEach,
			).Scan(&n),
		)
		lost[kind] = n
		if n == 0 {
			d.t.Errorf("the restore lost no %s", kind)
		}
	}
	return lost
}

func (d *drill) count(sql string, args ...any) (n int) {
	d.t.Helper()
	d.must(d.pool.QueryRow(d.t.Context(), sql, args...).Scan(&n))
	return n
}

const (
	onceSQL = `select count(*) from (select n from effects where kind = $1 group by n having count(*) = 1) x`
	allSQL  = `select count(*) from effects where kind = $1`
)

// finds checks what the table says, and has senders repeat what was lost.
func (d *drill) finds(lost map[string]int) {
	d.t.Helper()
	fit := endAt - endAt/unfitEach
	pgtest.Until(d.t, patience, "messages are handled again", func() bool { return d.count(onceSQL, "message") == fit })
	pgtest.Until(d.t, patience, "calls are delivered", func() bool {
		return d.count(`select count(*) from onlyonce.calls where state = 'delivered'`) == fit
	})
	if n := d.count(allSQL, "message"); n != fit {
		d.t.Errorf("%d effects of %d messages", n, fit)
	}
	if n := d.count(`select count(*) from onlyonce.parked where kind = 'message'`); n != endAt/unfitEach {
		d.t.Errorf("%d messages are parked, want %d", n, endAt/unfitEach)
	}
	d.mu.Lock()
	if len(d.keys) != fit {
		d.t.Errorf("calls came under %d keys, want %d", len(d.keys), fit)
	}
	d.mu.Unlock()
	for kind, c := range map[string]struct {
		repeat func(int) *http.Response
		mark   string
	}{"request": {d.charge, "Idempotent-Replayed"}, "webhook": {d.hook, "Webhook-Duplicate"}} {
		if got := endAt - d.count(onceSQL, kind); got != lost[kind] {
			d.t.Errorf("%d %ss have no effect, want the %d that were lost", got, kind, lost[kind])
		}
		fresh := 0
		for n := range endAt {
			if r := c.repeat(n); r == nil || r.StatusCode >= 300 {
				d.t.Fatalf("%s %d, repeated: %v", kind, n, r)
			} else if r.Header.Get(c.mark) == "" {
				fresh++
			}
		}
		once := d.count(onceSQL, kind)
		all := d.count(allSQL, kind)
		if fresh != lost[kind] || once != endAt || all != endAt {
			d.t.Errorf("%ss, repeated: %d were new, want %d; %d of %d effects are single, want %d",
				kind, fresh, lost[kind], once, all, endAt)
		}
	}
}
