package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/queue/queuetest"
	"github.com/onlyonce/onlyonce/seal"
)

// first is the first sentence of what explain says, after the line that names the key.
func (d *drill) first(args ...string) string {
	d.t.Helper()
	lines := strings.Split(d.run(append([]string{"explain"}, args...)...).want(d.t, statusGood).out, "\n")
	if strings.HasPrefix(lines[0], "key ") {
		lines = lines[1:]
	}
	return lines[0]
}

// explains asserts what explain says first.
func (d *drill) explains(want string, args ...string) {
	d.t.Helper()
	if got := d.first(args...); !strings.HasPrefix(got, want) {
		d.t.Errorf("explain %s: %s\nwant %s", strings.Join(args, " "), got, want)
	}
}

// A customer's Idempotency-Key is found without a scope and a tenant, also if it is a UUID.
func TestExplainFindsARequest(t *testing.T) {
	t.Parallel()
	d := newDrill(t)
	layer, err := idempotency.New(d.pool, idempotency.Config{
		Scope: func(r *http.Request) (idempotency.Scope, error) {
			return idempotency.Scope{Tenant: r.Header.Get("X-Tenant")}, nil
		},
		FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {31: 1}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /payments",
		layer.MustHandle(
			idempotency.Route{Pattern: "/payments", NoCalls: true},
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }),
		))
	const key = "684047a3-2f0e-4c5e-9d8b-0e9b2c6a7f11"
	for _, tenant := range []string{"shop", "other"} {
		keyOf := map[string]string{"shop": key, "other": "order-7"}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/payments", strings.NewReader("{}"))
		r.Header.Set("X-Tenant", tenant)
		r.Header.Set("Idempotency-Key", keyOf[tenant])
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		if w.Code != http.StatusCreated {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	const said = "It is the Idempotency-Key of POST /payments, tenant shop: answered at 20"
	d.explains(said, key)
	d.explains(said, key, "-scope", "http POST /payments")
	d.explains(said, key, "-scope", "http POST /payments", "-tenant", "shop")
	d.explains("It is the Idempotency-Key of POST /payments, tenant other: answered at 20", "order-7")
	d.run("explain", key).want(t, statusGood, "a copy gets that answer until").without(t, "was never claimed")
	d.run("explain", "order-8").want(t, statusFailed, "nothing is stored of the id")
}

// A queue's message: stored, applied, parked by its consumer, set aside as another one of its id.
func TestExplainSaysWhatBecameOfAnEvent(t *testing.T) {
	t.Parallel()
	d := newDrill(t)
	var broker queuetest.Memory
	q, err := queue.New(d.pool, broker.Connect(), queue.Config{Name: "orders", CopiesWithin: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	d.runs(q.Receive)
	broker.Publish(queue.Delivery{ID: "ship-1", Body: []byte("1")}, queue.Delivery{ID: "ship-2", Body: []byte("bad")})
	d.until(`select count(*) = 2 from onlyonce.event_log`)
	d.explains("It is stored (queue.orders/", "ship-1")
	d.run("explain", "ship-1").want(t, statusGood, "not applied yet: no consumer has begun to read the stream",
		"A copy that comes now is a duplicate (remembered).")

	source, err := queue.New(d.pool, nil, queue.Config{Name: "orders", CopiesWithin: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	c, err := consumer.New(d.pool, source, consumer.HandlerFunc(func(_ context.Context, _ consumer.Tx, m *consumer.Message) error {
		if string(m.Value) == "bad" {
			return consumer.Permanent(errors.New("no such article"))
		}
		return nil
	}), consumer.Config{Scope: "stock"})
	if err != nil {
		t.Fatal(err)
	}
	d.runs(c.Run)
	eventually(t, "ship-1 is applied", func() bool { return strings.HasPrefix(d.first("ship-1"), "It was applied") })
	eventually(t, "ship-2 is parked", func() bool {
		return strings.HasPrefix(d.first("ship-2"), "It is not applied: the consumer of scope stock has parked it (queue.orders/")
	})
	d.run("explain", "ship-2").want(t, statusGood, "It is parked as row ",
		"(permanent)", "no such article", "Next: onlyonce parked show -id ")
	d.run("events", "list", "-topic", "queue.orders").want(t, statusGood, "parked by stock", "handled")

	broker.Publish(queue.Delivery{ID: "ship-1", Body: []byte("another")})
	d.until(`select count(*) = 1 from onlyonce.parked where reason = 'conflict'`)
	d.explains("It was applied", "ship-1")
	d.run("explain", "ship-1").want(t, statusGood, "Another one of its id, with another content, is parked as row ", "(conflict)")
	d.run("explain", "ship-9").want(t, statusFailed, "nothing is stored of the id")
}
