package main

import (
	"context"
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	payments "github.com/onlyonce/onlyonce/examples/payments-api"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/idempotency/client"
	"github.com/onlyonce/onlyonce/test/demo/remote"
	"github.com/onlyonce/onlyonce/test/demo/servers"
	"github.com/onlyonce/onlyonce/test/fleet"
	"github.com/onlyonce/onlyonce/test/screen"
)

// demo is one run: servers, provider, clients, and what they wanted.
type demo struct {
	opts     options
	servers  *servers.Servers
	screen   *screen.Screen
	tamper   func(context.Context, *demo) error
	run      string   // names everything of this run
	accounts []string // two customers, who may choose the same keys
	apiKeys  []string
	provider *remote.Payments
	fleet    *fleet.Fleet // nil before the servers
	wire     *wire
	patient  *http.Client // with client.Transport
	made     bool         // there are rows of this run
	opened   bool         // the servers serve

	taken atomic.Int64 // operations begun
	ended atomic.Int64
	kills int // that hit a server with requests under way

	mu    sync.Mutex
	wants []*operation
}

func newDemo(o options, srv *servers.Servers, to *screen.Screen, tamper func(context.Context, *demo) error) *demo {
	d := &demo{opts: o, servers: srv, screen: to, tamper: tamper, run: strings.ToLower(crand.Text()[:8])}
	for i := range 2 {
		d.accounts = append(d.accounts, fmt.Sprintf("acct_%s_%d", d.run, i+1))
		d.apiKeys = append(d.apiKeys, fmt.Sprintf("sk_test_%s_%d", d.run, i+1))
	}
	return d
}

func (d *demo) sink() string { return "payments-api-" + d.run }

// stopTimeout bounds how long servers may take to finish.
const stopTimeout = 30 * time.Second

// Opened is true once the servers serve.
func (d *demo) Opened() bool { return d.opened }

// Perform runs the load, and waits until all calls to the provider were made. Whatever it returns,
// its servers are gone.
func (d *demo) Perform(ctx context.Context) (err error) {
	if err := servers.CreateTables(ctx, d.servers.Postgres.Pool, payments.Schema); err != nil {
		return err
	}
	d.made = true
	if d.provider, err = remote.Listen(); err != nil {
		return err
	}
	d.provider.Takes = 6 * time.Millisecond
	cfg := serverConfig{
		Postgres: d.servers.Postgres.URL,
		API:      payments.Config{Accounts: map[string]string{}, Sink: d.sink(), Provider: d.provider.URL},
	}
	_, _ = crand.Read(cfg.API.Secret[:]) // never fails
	for i, key := range d.apiKeys {
		cfg.API.Accounts[key] = d.accounts[i]
	}
	if d.fleet, err = fleet.New(fleet.Config{Name: "payments", Template: cfg, Verbose: d.screen.Verbose}); err != nil {
		return errors.Join(err, d.provider.Close())
	}
	d.wire = newWire(d.fleet.Addresses)
	defer func() {
		d.wire.base.CloseIdleConnections()
		err = errors.Join(err, d.fleet.Stop(stopTimeout), d.provider.Close())
	}()
	transport, err := client.NewTransport(client.Config{Base: d.wire, MaxWait: 200 * time.Millisecond,
		AttemptTimeout: 10 * time.Second, TotalTime: 30 * time.Second})
	if err != nil {
		return err
	}
	d.patient = &http.Client{Transport: transport}
	for range d.opts.processes {
		if _, err := d.fleet.Start(); err != nil {
			return err
		}
	}
	if err := d.until(ctx, "the servers to serve", func(context.Context) (bool, error) {
		return len(d.fleet.Addresses()) == d.opts.processes, nil
	}); err != nil {
		return err
	}
	d.opened = true
	d.screen.Live(d.line)
	d.screen.Step("start: %d server processes; payment provider at %s", d.opts.processes, d.provider.URL)
	if err := d.load(ctx); err != nil {
		return err
	}
	d.screen.Step("load: %s operations are answered", screen.Count(d.ended.Load()))
	err = d.until(ctx, "all calls to the provider to be made", func(ctx context.Context) (bool, error) {
		pending, reason, err := servers.Pending(ctx, d.servers.Postgres.Pool, d.sink())
		if err == nil && pending > 0 {
			err = fmt.Errorf("%d calls are pending; last error of one: %q", pending, reason)
		}
		return err == nil, err
	})
	if err != nil {
		return err
	}
	d.screen.Step("outbox: all calls to the provider are made")
	return nil
}

// until waits for a condition, as long as calls to the provider are made.
func (d *demo) until(ctx context.Context, what string, is func(context.Context) (bool, error)) error {
	moves := func() string { return fmt.Sprint(d.provider.Count()) }
	return d.fleet.Until(ctx, d.opts.patience, is, moves, func(err error) error {
		return fmt.Errorf("stuck: waited %v for %s, and nothing moved; last error: %w", d.opts.patience, what, err)
	})
}

// load has all clients at work until every operation is answered, and kills servers meanwhile.
func (d *demo) load(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var clients, killer sync.WaitGroup
	over := make(chan struct{})
	killer.Go(func() {
		if err := d.attack(ctx, over); err != nil {
			cancel(err)
		}
	})
	for range d.opts.clients {
		clients.Go(func() {
			for ctx.Err() == nil && d.hasMore() {
				if err := d.session(ctx); err != nil {
					cancel(err)
				}
			}
		})
	}
	clients.Wait()
	close(over)
	killer.Wait()
	return context.Cause(ctx)
}

// attack kills a server whenever another part of the operations is answered, and replaces it. If
// the load is over before, the report says that kills are missing.
func (d *demo) attack(ctx context.Context, over <-chan struct{}) error {
	random := rand.New(rand.NewPCG(rand.Uint64(), 0))
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	var shot *fleet.Shot
	missed := false
	for {
		if err := d.fleet.Failure(); err != nil {
			return err
		}
		if shot == nil && d.kills < d.opts.kills && d.ended.Load() >= int64((d.kills+1)*d.opts.requests/(d.opts.kills+1)) {
			shot = d.fleet.Shoot(random, missed)
		}
		var hit chan *fleet.ShotDown
		if shot != nil {
			hit = shot.Hit
		}
		select {
		case <-over:
			return nil
		case <-ctx.Done():
			return nil
		case <-tick.C:
			continue
		case down := <-hit:
			p, err := d.fleet.Start()
			if err != nil {
				return err
			}
			shot = nil
			missed = !down.InBatch
			if down.InBatch {
				d.kills++
			}
			d.screen.Step("kill %d of %d: server %d (pid %d) got SIGKILL; server %d replaces it",
				d.kills, d.opts.kills, down.Worker, down.PID, p.Number)
		}
	}
}

// nextNumber begins an operation, unless there are enough.
func (d *demo) nextNumber() (number int, ok bool) {
	n := d.taken.Add(1)
	return int(n), n <= int64(d.opts.requests)
}

func (d *demo) hasMore() bool { return d.taken.Load() < int64(d.opts.requests) }

// new makes an operation. fields are its body, to which the reference is added.
func (d *demo) new(customer int, path string, status int, fields map[string]any) *operation {
	number, ok := d.nextNumber()
	if !ok {
		return nil
	}
	op := &operation{
		apiKey:    d.apiKeys[customer],
		path:      path,
		status:    status,
		reference: fmt.Sprintf("op-%07d", number),
		key:       client.NewV7(),
	}
	if rand.IntN(4) == 0 {
		op.hasty = 1 + rand.IntN(3)
	}
	if rand.IntN(5) == 0 { // as Stripe's libraries write it
		form := url.Values{"metadata[reference]": {op.reference}}
		for name, v := range fields {
			form.Set(name, fmt.Sprint(v))
		}
		op.body = []byte(form.Encode())
	} else {
		all := map[string]any{"metadata": map[string]string{"reference": op.reference}}
		for name, v := range fields {
			all[name] = v
		}
		body, err := json.Marshal(all)
		if err != nil {
			panic(err) // strings, numbers, bools
		}
		op.body = body
	}
	d.mu.Lock()
	d.wants = append(d.wants, op)
	d.mu.Unlock()
	return op
}

// get asks for an operation, asks again, and makes mistakes with its key. It returns the answer's
// body, nil when there were enough.
func (d *demo) get(ctx context.Context, op *operation) (map[string]any, error) {
	if op == nil {
		return nil, nil
	}
	s, err := d.send(ctx, op)
	if err != nil {
		return nil, err
	}
	if op.follows && s.status < http.StatusMultipleChoices {
		if err := d.follow(ctx, op, s.header.Get("Location")); err != nil {
			return nil, err
		}
	} else if s.status != op.status {
		return nil, fmt.Errorf("POST %s (%s): answered %d, and not %d: %s", op.path, op.reference, s.status, op.status, s.body)
	}
	d.ended.Add(1)
	if rand.Float64() < d.opts.retries {
		if _, err := d.send(ctx, op); err != nil {
			return nil, err
		}
	}
	if rand.IntN(30) == 0 {
		if err := d.sendMismatch(ctx, op); err != nil {
			return nil, err
		}
	}
	object := map[string]any{}
	return object, json.Unmarshal(s.body, &object)
}

// session is what one customer does: a payment with what follows it, or a payout.
func (d *demo) session(ctx context.Context) error {
	customer := rand.IntN(2)
	switch rand.IntN(16) {
	case 0, 1:
		return d.payOut(ctx, customer)
	case 2:
		op := d.new(customer, "/v1/settlements", http.StatusAccepted, map[string]any{"amount": 1000 + rand.IntN(100_000)})
		if op != nil {
			op.follows = true
		}
		_, err := d.get(ctx, op)
		return err
	}
	amount := 100 + rand.IntN(50_000)
	atOnce := rand.IntN(3) == 0
	fields := map[string]any{"amount": amount, "currency": "eur", "source": "tok_visa"}
	if !atOnce {
		fields["capture"] = false
	}
	if rand.IntN(20) == 0 {
		fields["source"] = "tok_chargeDeclined"
		_, err := d.get(ctx, d.new(customer, "/v1/charges", http.StatusPaymentRequired, fields))
		return err
	}
	if rand.IntN(40) == 0 {
		fields["source"] = "tok_issuerUnsteady" // refused every other time, until it is not
	}
	op := d.new(customer, "/v1/charges", http.StatusCreated, fields)
	charge, err := d.get(ctx, op)
	if err != nil || charge == nil {
		return err
	}
	if rand.IntN(20) == 0 { // the other customer happens to choose the same key: nothing to do with this one
		if twin := d.new(1-customer, "/v1/charges", http.StatusCreated, map[string]any{
			"amount":   amount,
			"currency": "eur",
			"source":   "tok_visa",
		}); twin != nil {
			twin.key = op.key
			if _, err := d.get(ctx, twin); err != nil {
				return err
			}
		}
	}
	id := charge["id"].(string)
	captured := amount
	if !atOnce {
		path := "/v1/charges/" + id + "/capture"
		if rand.IntN(10) == 0 {
			if _, err := d.get(
				ctx,
				d.new(customer, path, http.StatusUnprocessableEntity, map[string]any{"amount": amount + 1}),
			); err != nil {
				return err
			}
		}
		captured = amount - rand.IntN(amount/2)
		if _, err := d.get(ctx, d.new(customer, path, http.StatusOK, map[string]any{"amount": captured})); err != nil {
			return err
		}
		if !d.hasMore() {
			return nil // the capture may not have been begun
		}
	}
	if rand.IntN(3) > 0 {
		return nil
	}
	if rand.IntN(4) == 0 {
		if _, err := d.get(
			ctx,
			d.new(customer, "/v1/refunds", http.StatusUnprocessableEntity, map[string]any{"charge": id, "amount": captured + 1}),
		); err != nil {
			return err
		}
	}
	_, err = d.get(ctx, d.new(customer, "/v1/refunds", http.StatusCreated, map[string]any{"charge": id, "amount": captured}))
	return err
}

func (d *demo) payOut(ctx context.Context, customer int) error {
	amount := 1000 + rand.IntN(100_000)
	status := http.StatusCreated
	if rand.IntN(10) == 0 {
		amount = remote.RefusedAmount
		status = http.StatusPaymentRequired
	}
	destination := "ba_17"
	if rand.IntN(10) == 0 {
		destination = "ba_blocked"
		status = http.StatusForbidden
	}
	_, err := d.get(ctx, d.new(customer, "/v1/payouts", status, map[string]any{"amount": amount, "destination": destination}))
	return err
}

// line is the live line of a run.
func (d *demo) line() string {
	_, paid, _ := d.provider.Count()
	d.wire.mu.Lock()
	requests := d.wire.requests
	replayed := d.wire.marks[idempotency.Replayed]
	d.wire.mu.Unlock()
	return fmt.Sprintf(
		"answered %s of %s  requests %s  replays %s  paid %s  servers %d",
		screen.Count(d.ended.Load()),
		screen.Count(int64(d.opts.requests)),
		screen.Count(int64(requests)),
		screen.Count(int64(replayed)),
		screen.Count(int64(paid)),
		d.fleet.Size(),
	)
}

// follow waits until an operation that was accepted has succeeded, and its result is the one that
// was asked for.
func (d *demo) follow(ctx context.Context, op *operation, location string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d.opts.patience, errPatience)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, origin+location, nil)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+op.apiKey)
		var now struct {
			State  string
			Result struct{ Metadata map[string]string }
		}
		if resp, err := d.wire.base.RoundTrip(req); err == nil {
			err = json.NewDecoder(resp.Body).Decode(&now)
			_ = resp.Body.Close()
			answered := err == nil && resp.StatusCode == http.StatusOK
			if answered && now.State == "succeeded" && now.Result.Metadata["reference"] == op.reference {
				return nil
			}
			if now.State == "failed" || now.State == "succeeded" {
				return fmt.Errorf("GET %s (%s): %+v", location, op.reference, now)
			}
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("GET %s (%s): %w", location, op.reference, err)
		}
	}
}
