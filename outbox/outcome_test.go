package outbox_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/seal"
)

// bank is a remote that remembers keys, behind a gateway that knows none. It loses its first
// answer.
type bank struct {
	*httptest.Server

	mu       sync.Mutex
	requests int
	gateway  int // the status that the gateway answers; 0: it passes requests on
	applied  int
	known    map[string]bool
}

func newBank(t *testing.T) *bank {
	b := &bank{known: map[string]bool{}}
	b.Server = httptest.NewServer(b)
	t.Cleanup(b.Close)
	return b
}

func (b *bank) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	_, _ = io.Copy(io.Discard, req.Body)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests++
	if b.gateway != 0 && b.requests > 1 {
		w.WriteHeader(b.gateway)
		return
	}
	if key := req.Header.Get("Idempotency-Key"); !b.known[key] {
		b.known[key] = true
		b.applied++
	}
	if b.requests == 1 {
		c, _, _ := http.NewResponseController(w).Hijack()
		_ = c.Close()
	}
}

// repair has the gateway pass requests on, to a bank that has forgotten its keys if time has
// passed.
func (b *bank) repair(forgotten bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gateway = 0
	if forgotten {
		clear(b.known)
	}
}

func (b *bank) charges() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.applied
}

func (b *bank) sink(t *testing.T) *httpsink.Sink {
	t.Helper()
	sink, err := httpsink.New(httpsink.Config{
		Name:         "payments",
		BaseURL:      b.URL,
		KeyWindow:    24 * time.Hour,
		Timeout:      5 * time.Second,
		AllowPrivate: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	return sink
}

// redrive decides about the parked call as an operator does.
func (r *rig) redrive(in ops.ParkedInput) error {
	r.t.Helper()
	in.ID = one[int64](r, `select id from onlyonce.parked`)
	_, err := ops.Redrive(r.t.Context(), r.pool, ops.By{Reason: "the gateway is repaired"}, in)
	return err
}

// O6: an attempt is applied, and its answer lost. A gateway refuses the next one. The call stays
// open: it is not sent again once the remote may have forgotten its key, nor under another key,
// unless a person has verified that it was not applied.
func TestO6RejectedAfterAnUnknownAttempt(t *testing.T) {
	t.Parallel()
	const place = `select state || ' ' || reason from onlyonce.parked`
	for _, gateway := range []int{http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusRequestEntityTooLarge} {
		t.Run(http.StatusText(gateway), func(t *testing.T) {
			r := newRig(t)
			b := newBank(t)
			b.gateway = gateway
			running := r.start(testConfig(b.sink(t)))
			r.enqueue(charge("1"))
			r.states("waiting")
			if got := one[string](r, place); got != "waiting rejected" {
				t.Fatalf("parked as %s", got)
			}
			if err := r.redrive(ops.ParkedInput{NewKey: true}); err == nil {
				t.Error("it may have been applied, and was sent under a new key")
			}
			r.exec(`
update onlyonce.parked
   set first_attempt_at = first_attempt_at - interval '48 hours', parked_at = parked_at - interval '48 hours'`)
			b.repair(true)
			if err := r.redrive(ops.ParkedInput{}); err != nil {
				t.Fatal(err)
			}
			r.states("reconcile", "delivered")
			running.stop()
			if got := one[string](r, place); got != "reconcile window" || b.charges() != 1 {
				t.Errorf("the call is %s, and the remote has applied it %d times", got, b.charges())
			}
			if err := r.redrive(ops.ParkedInput{VerifiedApplied: true}); err != nil {
				t.Error(err)
			}
		})
	}
}

// O6: in the window, and after a person has asked the remote, an open call goes on.
func TestO6OpenCallGoesOn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in      ops.ParkedInput
		state   string
		charges int
	}{
		"redriven in its window":        {ops.ParkedInput{}, "resolved", 1},
		"verified to be applied":        {ops.ParkedInput{VerifiedApplied: true}, "resolved", 1},
		"verified, with the other word": {ops.ParkedInput{VerifiedNotApplied: true}, "resolved", 1}, // the remote still knows the key
		"verified, under a new key":     {ops.ParkedInput{VerifiedNotApplied: true, NewKey: true}, "resolved", 2},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			b := newBank(t)
			b.gateway = http.StatusNotFound
			r.start(testConfig(b.sink(t)))
			r.enqueue(charge("1"))
			r.states("waiting")
			b.repair(false)
			if err := r.redrive(c.in); err != nil {
				t.Fatal(err)
			}
			r.states("delivered")
			if b.charges() != c.charges {
				t.Errorf("applied %d times, want %d", b.charges(), c.charges)
			}
		})
	}
}

// O6: a call whose only attempt was refused is not open, so it may be sent later, and under a new
// key.
func TestO6RejectedAtOnceIsNotOpen(t *testing.T) {
	t.Parallel()
	for _, newKey := range []bool{false, true} {
		r := newRig(t)
		var sent atomic.Int32
		sink := newScripted(func(context.Context, *outbox.Attempt) outbox.Result {
			if sent.Add(1) == 1 {
				return outbox.Result{Outcome: outbox.Rejected, Reason: "no"}
			}
			return outbox.Result{Outcome: outbox.Delivered}
		})
		r.start(testConfig(sink))
		r.enqueue(charge("1"))
		r.states("waiting")
		if one[bool](r, `select open from onlyonce.parked`) {
			t.Error("a call that was refused counts as open")
		}
		r.exec(`update onlyonce.parked set parked_at = parked_at - interval '48 hours'`)
		if err := r.redrive(ops.ParkedInput{VerifiedNotApplied: true}); err == nil {
			t.Error("there is nothing to verify, and it was accepted")
		}
		if err := r.redrive(ops.ParkedInput{NewKey: newKey}); err != nil {
			t.Fatal(err)
		}
		r.states("delivered")
	}
}

// O6: the remote is an API in our own HTTP layer, on a route that keeps no bodies. The first answer
// is lost. The copy is answered 410: it took effect, and its answer is not stored. That is a
// delivery. A handler's own 410 is kept, and rejects the call for good.
func TestO6AnswerThatOurLayerHasNotKept(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		route  idempotency.Route
		want   string
	}{
		"not kept":          {http.StatusCreated, idempotency.Route{DiscardBody: true}, "resolved, 1 charges"},
		"a handler's own":   {http.StatusGone, idempotency.Route{}, "waiting, not open, 0 charges"},
		"refused and final": {http.StatusUnprocessableEntity, idempotency.Route{}, "waiting, not open, 0 charges"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.exec(`create table charges (n int)`)
			layer, err := idempotency.New(r.pool, idempotency.Config{
				Scope:           idempotency.GlobalScope(),
				FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {1}}},
			})
			if err != nil {
				t.Fatal(err)
			}
			c.route.Pattern = "/charges"
			c.route.KeyWindow = 24 * time.Hour
			api := layer.MustHandle(c.route, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if tx, err := idempotency.TxOf(req); err == nil {
					tx.Queue(`insert into charges values (1)`)
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, "shown once")
			}))
			var requests atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if requests.Add(1) > 1 {
					api.ServeHTTP(w, req)
					return
				}
				api.ServeHTTP(httptest.NewRecorder(), req) // the answer is lost
				conn, _, _ := http.NewResponseController(w).Hijack()
				_ = conn.Close()
			}))
			t.Cleanup(server.Close)
			sink, err := httpsink.New(httpsink.Config{
				Name:         "payments",
				BaseURL:      server.URL,
				KeyWindow:    24 * time.Hour,
				Timeout:      5 * time.Second,
				AllowPrivate: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			r.start(testConfig(sink))
			r.enqueue(charge("1"))
			r.states("delivered", "waiting", "reconcile")
			got := one[string](
				r,
				`select state || case when state = 'resolved' then '' when open then ', open' else ', not open' end from onlyonce.parked`,
			)
			if got = fmt.Sprintf("%s, %d charges", got, one[int](r, `select count(*) from charges`)); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}
