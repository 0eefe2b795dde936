package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/internal/program"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/queue/queuetest"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/devenv/self"
)

// TestNight plays what wakes people up: whatever stands still says so by its name, on both faces.
// The seconds that are logged count from when the fault could first be seen.
func TestNight(t *testing.T) {
	if !pgtest.Long(t.Name()) {
		t.Skip("a drill of minutes; see pgtest.Long")
	}
	t.Parallel()
	t.Run("the remote answers 500", nightRemote500)
	t.Run("the remote refuses connections", nightRemoteRefuses)
	t.Run("the remote answers 401", nightRemote401)
	t.Run("the remote hangs", nightRemoteHangs)
	t.Run("a queue's broker is away", nightBrokerAway)
	t.Run("a queue is full", nightQueueFull)
	t.Run("a secret is wrong", nightWrongSecret)
	t.Run("a receiver is killed", nightReceiverKilled)
	t.Run("the database hangs", nightDatabaseHangs)
	t.Run("cards are declined", nightDeclines)
}

// relayTo runs a relay whose sink payments calls an address, enqueues calls, and returns the relay.
func (d *drill) relayTo(address string, calls int) *outbox.Relay {
	d.t.Helper()
	sink, err := httpsink.New(httpsink.Config{Name: "payments", BaseURL: address, KeyWindow: outbox.Forever, AllowPrivate: true})
	if err != nil {
		d.t.Fatal(err)
	}
	relay, err := outbox.NewRelay(d.pool, outbox.RelayConfig{Sinks: []outbox.Sink{sink}, DrainTimeout: time.Millisecond})
	if err != nil {
		d.t.Fatal(err)
	}
	d.runs(relay.Run)
	eventually(d.t, "the relay is ready", func() bool { return relay.Ready() == nil })
	err = pgx.BeginFunc(d.t.Context(), d.pool, func(tx pgx.Tx) error {
		for i := range calls {
			call := outbox.Call{Sink: "payments", Target: "/charges", Name: "charge", ID: fmt.Sprint(i), Scope: "checkout"}
			if i%2 == 1 {
				call.OrderingKey = "customer" // one of them is tried, and the others wait behind it
			}
			if err := outbox.Enqueue(d.t.Context(), tx, call); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return relay
}

// runs runs a part until the test ends.
func (d *drill) runs(run func(context.Context) error) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	d.t.Cleanup(func() {
		stop()
		<-ended
	})
}

// undelivered asserts that every count of calls has them all, wherever they wait.
func (d *drill) undelivered(calls int) {
	d.t.Helper()
	d.run("status").want(d.t, statusGood, fmt.Sprintf("Calls: %d not delivered", calls))
	d.run("outbox", "status").want(d.t, statusGood, fmt.Sprint(calls))
}

func nightRemote500(t *testing.T) {
	t.Parallel()
	d := newDrill(t)
	remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
	}))
	t.Cleanup(remote.Close)
	relay := d.relayTo(remote.URL, 40)
	commands := d.says("- cannot deliver: sink payments, 40 calls not delivered, the oldest for ",
		"the last: status 500", "each under its key")
	d.undelivered(40)
	for _, c := range commands {
		d.run(shellWords(c)[1:]...).want(t, statusGood, "status 500", "40")
	}
	if err := relay.Ready(); err != nil {
		t.Errorf("a restart does not help, and the relay is not ready: %v", err)
	}
	began := time.Now()
	eventually(t, "the relay is not healthy", func() bool {
		err := relay.Healthy()
		return err != nil && strings.Contains(err.Error(), "no call was delivered since")
	})
	t.Logf("Healthy: %v later", time.Since(began).Round(time.Second))
	remote.Config.Handler = http.NotFoundHandler()
}

func nightRemoteRefuses(t *testing.T) {
	t.Parallel()
	d := newDrill(t)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	d.relayTo("http://"+address, 40)
	d.says("- cannot deliver: sink payments, 40 calls not delivered", "connection refused")
	d.undelivered(40)
	eventually(t, "it is said who holds the calls", func() bool {
		return strings.Contains(d.run("outbox", "status").want(t, statusGood).out, "(breaker)")
	})
}

func nightRemote401(t *testing.T) {
	t.Parallel()
	d := newDrill(t)
	remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	t.Cleanup(remote.Close)
	d.relayTo(remote.URL, 100)
	d.says("- parked: sink payments, ", "calls waiting for a decision (", "rejected")
	d.says("- calls are refused: sink payments", "status 401", "an expired token")
}

func nightRemoteHangs(t *testing.T) {
	t.Parallel()
	d := newDrill(t)
	over := make(chan struct{})
	remote := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-over:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(remote.Close)
	t.Cleanup(func() { close(over) })
	d.relayTo(remote.URL, 40)
	d.says("- cannot deliver: sink payments, 40 calls not delivered", "no answer yet", "calls are under way for over 10s")
	d.says("- cannot deliver: sink payments, 40 calls not delivered", "attempts in a row were not delivered")
	d.undelivered(40)
}

// The broker is one in memory: how NATS behaves when it is away is for the tests of its adapter.
func nightBrokerAway(t *testing.T) {
	t.Parallel()
	d := newDrill(t)
	var broker queuetest.Memory
	q, err := queue.New(d.pool, broker.Connect(), queue.Config{Name: "orders", CopiesWithin: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	d.runs(q.Receive)
	eventually(t, "the receiver is seen", func() bool {
		return strings.Contains(d.run("status").want(t, statusGood).out, "receiver orders")
	})
	broker.SetAway(true)
	d.says("- cannot receive: receiver of queue orders, 1 process", "the broker keeps the messages meanwhile")
	broker.SetAway(false)
	d.quiet("- cannot receive")
}

// What a broker says is for the tests of its adapter.
func nightQueueFull(t *testing.T) {
	t.Parallel()
	d := newDrill(t)
	var broker queuetest.Memory
	broker.SetFull("stream ORDERS has its 3 messages (MaxMsgs), and discards new ones")
	q, err := queue.New(d.pool, broker.Connect(), queue.Config{Name: "orders", CopiesWithin: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	d.runs(q.Receive)
	d.says("- the queue is full: receiver of queue orders, 1 process", "stream ORDERS has its 3 messages", "raise the limit at the broker")
	broker.SetFull("")
	d.quiet("- the queue is full")
}

func nightWrongSecret(t *testing.T) {
	t.Parallel()
	d := newDrill(t)
	layer := func(secret seal.Key) *idempotency.Layer {
		l, err := idempotency.New(d.pool, idempotency.Config{
			Scope:           func(*http.Request) (idempotency.Scope, error) { return idempotency.Scope{Tenant: "shop"}, nil },
			FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: secret}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	right := layer(seal.Key{31: 1})
	d.runs(right.Run)
	eventually(t, "the layer is ready", func() bool { return right.Ready() == nil })
	if err := layer(seal.Key{31: 2}).Run(t.Context()); err == nil {
		t.Fatal("a process with another secret starts")
	}
	d.says("- wrong secret: HTTP layer", "another secret under the id 1 of FingerprintKeys", "give the process the secret that it had")
}

// receiverChild makes this test binary receive from a broker in memory until it is killed.
const receiverChild = "receiver"

func receiveForEver() {
	pool, err := pgxpool.New(context.Background(), os.Getenv(program.EnvPostgres))
	if err != nil {
		panic(err)
	}
	q, err := queue.New(pool, new(queuetest.Memory).Connect(), queue.Config{Name: "orders", CopiesWithin: time.Hour})
	if err != nil {
		panic(err)
	}
	panic(q.Receive(context.Background()))
}

func nightReceiverKilled(t *testing.T) {
	t.Parallel()
	d := newDrill(t)
	start := func() *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), self.Env+"="+receiverChild, program.EnvPostgres+"="+d.url)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		pid := cmd.Process.Pid
		d.until(fmt.Sprintf(`select exists (select from onlyonce.owners where part = 'receiver' and pid = %d)`, pid))
		return cmd
	}
	first := start()
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	d.says("- not running: receiver of queue orders was killed", fmt.Sprintf("pid %d", first.Process.Pid))
	start()
	d.quiet("- not running")
}
