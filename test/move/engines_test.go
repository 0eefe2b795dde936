package move

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
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/webhook"
)

// Turns before the move, those that wait during it, and those after it. A turn is a message and a
// webhook; of each ten messages one is parked.
const (
	before    = 60
	waiting   = 20
	after     = 40
	unfitEach = 10
)

const secret = "It's a Secret to Everybody"

var patience = pgtest.Patience(time.Minute)

// program has a consumer, a relay and a webhook endpoint. It outlives its database.
type program struct {
	t      *testing.T
	log    *memlog.Log
	remote *httptest.Server
	hooks  *httptest.Server // while it runs
	turns  int
	calls  int // of the user's own

	mu   sync.Mutex
	keys map[string]int // times that the remote got a call, by key
}

func newProgram(t *testing.T) *program {
	t.Helper()
	p := &program{t: t, log: memlog.NewLog("orders", 1), keys: map[string]int{}}
	p.remote = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.keys[r.Header.Get("Idempotency-Key")]++
	}))
	t.Cleanup(p.remote.Close)
	return p
}

func (p *program) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// makes migrates an empty database, with a table of the user's.
func (p *program) makes(pool *pgxpool.Pool) {
	p.t.Helper()
	conn, err := pool.Acquire(p.t.Context())
	p.must(err)
	defer conn.Release()
	_, err = migrations.Apply(p.t.Context(), conn.Conn())
	p.must(err)
	_, err = conn.Exec(
		p.t.Context(),
		`create table effects (kind text not null, n integer not null, primary key (kind, n, at), at bigint generated always as identity)`,
	)
	p.must(err)
}

const effect = `insert into effects (kind, n) values ($1, $2)`

// runs starts the engines on a database, and returns a function that stops them.
func (p *program) runs(pool *pgxpool.Pool) (stop func()) {
	p.t.Helper()
	c, err := consumer.New(
		pool,
		&memlog.Source{Log: p.log, GroupID: "g"},
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
	p.must(err)
	sink, err := httpsink.New(httpsink.Config{Name: "payments", BaseURL: p.remote.URL, KeyWindow: 24 * time.Hour, AllowPrivate: true})
	p.must(err)
	relay, err := outbox.NewRelay(pool, outbox.RelayConfig{
		Sinks:        []outbox.Sink{sink},
		PollInterval: 20 * time.Millisecond,
		LeaseTTL:     5 * time.Second,
	})
	p.must(err)
	endpoint, err := webhook.New(pool, webhook.Config{
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
	p.must(err)
	p.hooks = httptest.NewServer(endpoint)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for name, run := range map[string]func(context.Context) error{"consumer": c.Run, "relay": relay.Run, "endpoint": endpoint.Upkeep} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				p.t.Errorf("%s: %v", name, err)
			}
		})
	}
	return sync.OnceFunc(func() {
		p.hooks.Close()
		cancel()
		running.Wait()
	})
}

func numberOf(s string) (n int) {
	_, _ = fmt.Sscanf(s, "%d", &n)
	return n
}

// appends appends so many messages to the log.
func (p *program) appends(messages int) {
	for range messages {
		p.append(p.turns)
		p.turns++
	}
}

func (p *program) append(n int) {
	id := fmt.Sprint(n)
	header := []consumer.Header{{Name: "message-id", Value: []byte(id)}}
	p.log.AppendMessage(0, &consumer.Message{Value: []byte(id), Time: time.Now(), Headers: header})
}

// delivers sends webhooks, each until it is answered 200, and returns how many were copies.
func (p *program) delivers(from, to int) (copies int) {
	p.t.Helper()
	for n := from; n < to; n++ {
		pgtest.Until(p.t, patience, fmt.Sprintf("webhook %d is answered", n), func() bool {
			duplicate, ok := p.post(n)
			if duplicate {
				copies++
			}
			return ok
		})
	}
	return copies
}

func (p *program) post(n int) (duplicate, ok bool) {
	body := fmt.Sprintf(`{"n":%d}`, n)
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = mac.Write([]byte(body))
	req, err := http.NewRequest(http.MethodPost, p.hooks.URL, strings.NewReader(body))
	if err != nil {
		p.t.Error(err)
		return false, false
	}
	req.Header = http.Header{"Content-Type": {"application/json"}, "X-Github-Event": {"push"}, "X-Github-Delivery": {fmt.Sprint(n)},
		"X-Hub-Signature-256": {"sha256=" + hex.EncodeToString(mac.Sum(nil))}}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return false, false
	}
	_, _ = io.Copy(io.Discard, r.Body)
	_ = r.Body.Close()
	return r.Header.Get("Webhook-Duplicate") != "", r.StatusCode == http.StatusOK
}

// enqueues enqueues calls of the user's own.
func (p *program) enqueues(pool *pgxpool.Pool, calls int) {
	p.t.Helper()
	p.must(pgx.BeginFunc(p.t.Context(), pool, func(tx pgx.Tx) error {
		for range calls {
			p.calls++
			call := outbox.Call{
				Sink:   "payments",
				Scope:  "own",
				ID:     fmt.Sprint(p.calls),
				Name:   "charge",
				Target: "/charges",
				Body:   []byte("own"),
			}
			if err := outbox.Enqueue(p.t.Context(), tx, call); err != nil {
				return err
			}
		}
		return nil
	}))
}

// settled waits until all messages so far are applied or parked, and all calls delivered.
func (p *program) settled(pool *pgxpool.Pool) {
	p.t.Helper()
	fit := p.fit()
	pgtest.Until(p.t, patience, "messages are applied", func() bool {
		return pgtest.One[int](p.t, pool, `select count(*) from effects where kind = 'message'`) == fit
	})
	pgtest.Until(p.t, patience, "calls are delivered", func() bool {
		return pgtest.One[int](p.t, pool, `select count(*) from onlyonce.calls where state = 'delivered'`) == fit+p.calls
	})
	unfit := p.turns - fit
	pgtest.Until(p.t, patience, "messages are parked", func() bool {
		return pgtest.One[int](p.t, pool, `select count(*) from onlyonce.parked where kind = 'message'`) == unfit
	})
}

// fit is how many of the messages so far are applied.
func (p *program) fit() int { return p.turns - (p.turns+unfitEach-1)/unfitEach }

// once checks that each effect is there once, and that the remote got each call once.
func (p *program) once(pool *pgxpool.Pool, kind string, want int) {
	p.t.Helper()
	const sql = `select format('%s in %s', count(distinct n), count(*)) from effects where kind = $1`
	if got := pgtest.One[string](p.t, pool, sql, kind); got != fmt.Sprintf("%d in %[1]d", want) {
		p.t.Errorf("effects of %ss: %s, want %d", kind, got, want)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, n := range p.keys {
		if n != 1 {
			p.t.Errorf("the call %s was sent %d times", key, n)
		}
	}
	if want := p.fit() + p.calls; len(p.keys) != want {
		p.t.Errorf("calls came under %d keys, want %d", len(p.keys), want)
	}
}
