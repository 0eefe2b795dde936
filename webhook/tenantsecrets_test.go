package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/webhook"
	"github.com/onlyonce/onlyonce/webhook/paypal"
)

// customers receives the webhooks of customers who bring secrets of their own.
//
// docs/guide/webhooks.md shows this code; package test/docs compares them.
func customers(pool *pgxpool.Pool, mux *http.ServeMux) (*webhook.Endpoint, error) {
	secretsOf := func(ctx context.Context, customer string) ([]string, error) {
		rows, err := pool.Query(ctx, `select secret from customer_secrets where customer = $1`, customer)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, pgx.RowTo[string]) // none: there is no such customer
	}
	endpoint, err := webhook.New(pool, webhook.Config{
		Name: "orders", Provider: webhook.Stripe{},
		TenantSecrets: &webhook.TenantSecrets{
			Tenant:  func(req *http.Request) string { return req.PathValue("customer") },
			Secrets: secretsOf,
		},
	})
	if err == nil {
		mux.Handle("/hooks/orders/{customer}", endpoint)
	}
	return endpoint, err
}

// ownSecret is the secret of a customer.
func ownSecret(customer string, n int) string {
	return fmt.Sprintf("whsec_%s_0123456789abcdef_%d", customer, n)
}

// to is a request to a customer's path, signed now.
func (e *endpoint) to(customer, secret, body string) answer {
	e.t.Helper()
	req := e.request(e.sign(secret, time.Now(), body), body)
	req.URL.Path = "/hooks/orders/" + customer
	return e.do(req)
}

// customersRig serves the guide's endpoint, with its table.
func customersRig(t *testing.T) *endpoint {
	t.Helper()
	r := newRig(t)
	r.exec(`create table customer_secrets (customer text, secret text, primary key (customer, secret))`)
	mux := http.NewServeMux()
	if _, err := customers(r.recv, mux); err != nil {
		t.Fatal(err)
	}
	return r.serveMux(samples(t)["Stripe"], mux, "")
}

// rotation is a customer whose secret is replaced while requests are sent.
type rotation struct {
	*endpoint
	customer string
	under    sync.RWMutex // read by a request that is under way
	n        int          // of the secret that signs
	sent     atomic.Int64
}

// send sends one event, signed with the secret of now.
func (r *rotation) send() {
	r.under.RLock()
	defer r.under.RUnlock()
	n := r.sent.Add(1)
	r.to(r.customer, ownSecret(r.customer, r.n), stripeBody(fmt.Sprint("evt_", n), "")).want(r.t, 200, false)
}

// replace adds a secret, lets the sender sign with it at once, and removes the old one when nothing
// that it has signed is under way.
func (r *rotation) replace() {
	r.exec(`insert into customer_secrets values ($1, $2)`, r.customer, ownSecret(r.customer, r.n+1))
	r.under.Lock()
	r.n++
	r.under.Unlock()
	r.exec(`delete from customer_secrets where customer = $1 and secret = $2`, r.customer, ownSecret(r.customer, r.n-1))
}

// W24: while customers send, and strangers too, secrets are replaced again and again. No request of
// a customer is refused.
func TestW24RotationUnderLoad(t *testing.T) {
	t.Parallel()
	e := customersRig(t)
	var senders, strangers sync.WaitGroup
	stop := make(chan struct{})
	until := func(f func()) {
		for {
			select {
			case <-stop:
				return
			default:
				f()
			}
		}
	}
	var all []*rotation
	for i := range 3 {
		r := &rotation{endpoint: e, customer: fmt.Sprint("customer", i)}
		all = append(all, r)
		e.exec(`insert into customer_secrets values ($1, $2)`, r.customer, ownSecret(r.customer, 0))
		for range 2 {
			senders.Go(func() { until(r.send) })
		}
	}
	var forged atomic.Int64
	strangers.Go(func() {
		until(func() {
			name := fmt.Sprint("customer", forged.Add(1)%4) // three there are
			e.to(name, ownSecret("stranger", 0), stripeBody("evt_forged", "")).want(t, 401, false)
		})
	})
	for range 5 {
		for _, r := range all {
			before := r.sent.Load()
			r.replace()
			e.until("the new secret signs", func() bool { return r.sent.Load() > before+10 })
		}
	}
	close(stop)
	senders.Wait()
	strangers.Wait()
	sent := int64(0)
	for _, r := range all {
		sent += r.sent.Load()
	}
	if n := e.count("onlyonce.event_log"); int64(n) != sent || forged.Load() == 0 {
		t.Errorf("%d of %d events are stored, %d forged ones are refused", n, sent, forged.Load())
	}
	t.Logf("%d requests and %d forged ones during %d rotations: 0 refused", sent, forged.Load(), 5*len(all))
}

// W24, W16: ids count within the tenant whose secret has signed, and a secret signs for its own
// tenant alone. The handler gets the tenant.
func TestW16TenantOfTheSecret(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`create table owners (tenant text, id text)`)
	s := samples(t)["Stripe"]
	mux := http.NewServeMux()
	mux.Handle(
		"/hooks/orders/{customer}",
		r.receiver(s, ofPath(known), inline(func(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
			event, err := webhook.EventOf(m)
			if err != nil {
				return err
			}
			tx.Queue(`insert into owners values ($1, $2)`, event.Tenant, event.ID)
			return nil
		})),
	)
	e := r.serveMux(s, mux, "")
	body := stripeBody("evt_1", "")
	for _, customer := range []string{"alice", "bob"} {
		e.to(customer, ownSecret(customer, 0), body).want(t, 200, false)
		e.to(customer, ownSecret(customer, 1), body).want(t, 200, true)
	}
	e.to("alice", ownSecret("bob", 0), stripeBody("evt_2", "")).want(t, 401, false)
	if got := one[string](r, `select string_agg(tenant || ' ' || id, ', ' order by tenant) from owners`); got != "alice evt_1, bob evt_1" {
		t.Errorf("handled: %s", got)
	}
}

// known are customers alice and bob, with two secrets each.
func known(_ context.Context, customer string) ([]string, error) {
	if customer != "alice" && customer != "bob" {
		return nil, nil
	}
	return []string{ownSecret(customer, 0), ownSecret(customer, 1)}, nil
}

// ofPath has the secrets of the customer in the path.
func ofPath(secrets func(context.Context, string) ([]string, error)) func(*webhook.Config) {
	return func(c *webhook.Config) {
		c.Secrets = nil
		c.TenantSecrets = &webhook.TenantSecrets{
			Tenant:  func(req *http.Request) string { return req.PathValue("customer") },
			Secrets: secrets,
		}
	}
}

// W6: a tenant that does not exist, or cannot, is refused as a bad signature is, byte for byte, and
// the endpoint sends no statement.
func TestW6TenantThatDoesNotExist(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := samples(t)["Stripe"]
	var asked atomic.Int64
	mux := http.NewServeMux()
	mux.Handle("/hooks/orders/{customer}", r.receiver(s, ofPath(func(ctx context.Context, customer string) ([]string, error) {
		asked.Add(1)
		return known(ctx, customer)
	})))
	e := r.serveMux(s, mux, "")
	body := stripeBody("evt_1", "")
	r.asks(false, func() {
		want := e.to("alice", ownSecret("stranger", 0), body)
		want.want(t, 401, false)
		for _, name := range []string{"mallory", strings.Repeat("m", 256), "m\x00", "m\n", "\xff"} {
			got := e.to(name, ownSecret("stranger", 0), body)
			got.header.Set("Date", want.header.Get("Date"))
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%q: %v, and a bad signature: %v", name, got, want)
			}
		}
	})
	if n := asked.Load(); n != 2 { // alice and mallory
		t.Errorf("%d look-ups", n)
	}
}

// W6: such a request is compared with a key, too, so that its answer comes no sooner.
func TestW6TenantThatDoesNotExistCostsAsMuch(t *testing.T) {
	for name, s := range samples(t) {
		header := s.sign(s.secret, now, s.body+" ")
		allocations := func(cfg webhook.Config) float64 {
			v, err := webhook.NewVerifier(cfg)
			if err != nil {
				t.Fatal(err)
			}
			return testing.AllocsPerRun(100, func() {
				if _, err := v.VerifyAt(now, header, []byte(s.body)); !errors.Is(err, webhook.ErrSignature) {
					t.Fatal(err)
				}
			})
		}
		tenants := webhook.Config{Provider: s.provider}
		ofPath(known)(&tenants)
		bad := allocations(webhook.Config{Provider: s.provider, Secrets: []string{s.secret}})
		none := allocations(tenants)
		if none < bad {
			t.Errorf("%s: %v allocations without a tenant, %v for a bad signature", name, none, bad)
		}
	}
}

// W17, W24: a request that is refused without its signature has nothing looked up.
func TestW17MalformedRequestsAreNotLookedUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := samples(t)["Stripe"]
	var asked atomic.Int64
	e := r.serve(s, func(c *webhook.Config) {
		c.MaxBody = 100
		c.Secrets = nil
		c.TenantSecrets = &webhook.TenantSecrets{
			Tenant: func(*http.Request) string { return "alice" },
			Secrets: func(context.Context, string) ([]string, error) {
				asked.Add(1)
				return []string{s.secret}, nil
			},
		}
	})
	e.do(e.request(headers("Stripe-Signature", "none"), "{}")).want(t, 400, false)
	e.do(e.request(e.sign(s.secret, time.Now(), ""), strings.Repeat("x", 101))).want(t, 413, false)
	if n := asked.Load(); n != 0 {
		t.Errorf("%d look-ups", n)
	}
	e.send(`{"id":"evt_1"}`).want(t, 200, false)
}

// W24: if the secrets cannot be had, the sender gets 503, and the log says why, without a secret.
func TestW24SecretsThatCannotBeHad(t *testing.T) {
	t.Parallel()
	s := samples(t)["Stripe"]
	for name, c := range map[string]struct {
		tenant  func(*http.Request) string
		secrets func(context.Context, string) ([]string, error)
		want    string
	}{
		"error": {
			nil,
			func(context.Context, string) ([]string, error) { return nil, errors.New("the vault is sealed") },
			"the vault is sealed",
		},
		"panic": {nil, func(context.Context, string) ([]string, error) { panic("no vault") }, "no vault"},
		"hangs": {nil, func(ctx context.Context, _ string) ([]string, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, "deadline"},
		"short": {
			nil,
			func(context.Context, string) ([]string, error) { return []string{"hush"}, nil },
			"TenantSecrets.Secrets[0]: must have 16",
		},
		"too many": {
			nil,
			func(context.Context, string) ([]string, error) { return strings.Split("123456789", ""), nil },
			"must list 1 to 8",
		},
		"no tenant":       {func(*http.Request) string { panic("hush") }, known, "Tenant panicked"},
		"tenant of a row": {func(req *http.Request) string { return req.Header["X-Customer"][0] }, known, "Tenant panicked"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			var text func() string
			e := r.serve(s, func(cfg *webhook.Config) {
				ofPath(c.secrets)(cfg)
				cfg.Logger, text = pgtest.Logged()
				cfg.TenantSecrets.Timeout = 100 * time.Millisecond
				cfg.TenantSecrets.Tenant = c.tenant
				if c.tenant == nil {
					cfg.TenantSecrets.Tenant = func(*http.Request) string { return "alice" }
				}
			})
			r.asks(false, func() { e.send(stripeBody("evt_1", "")).want(t, 503, false) })
			if err := r.lastRefusal(); !errors.Is(err, webhook.ErrUnavailable) {
				t.Error(err)
			}
			if log := text(); !strings.Contains(log, c.want) || strings.Contains(log, "hush") {
				t.Errorf("no %q in %s", c.want, log)
			}
		})
	}
}

// W16: what a backfill lists has a tenant, too.
func TestW16TenantsOfListedEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, list := r.lists(samples(t)["Stripe"], func(each func(*webhook.Event) error) error {
		at := time.Now()
		return errors.Join(each(&webhook.Event{ID: "evt_1", Time: at, Body: []byte("{}")}),
			each(&webhook.Event{Tenant: "alice", ID: "evt_1", Time: at, Body: []byte("{}")}),
			each(&webhook.Event{Tenant: "bob", ID: "evt_1", Time: at, Body: []byte("{}")}))
	}, ofPath(known))
	if of := list(); of.Missed != 2 || !errors.Is(of.Err, webhook.ErrTenant) {
		t.Errorf("%+v", of)
	}
	if got := one[string](r, `select string_agg(tenant, ' ' order by tenant) from onlyonce.event_log`); got != "alice bob" {
		t.Errorf("stored: %q", got)
	}
}

// Every fault at once.
func TestTenantSecretsFaults(t *testing.T) {
	t.Parallel()
	none := &webhook.TenantSecrets{}
	full := func(c webhook.TenantSecrets) *webhook.TenantSecrets {
		c.Tenant = func(*http.Request) string { return "" }
		c.Secrets = known
		return &c
	}
	for i, c := range []struct {
		cfg  webhook.Config
		want []string
	}{
		{webhook.Config{Provider: webhook.Stripe{}, TenantSecrets: none}, []string{"TenantSecrets: Tenant and Secrets must be set"}},
		{webhook.Config{Provider: webhook.Stripe{}, TenantSecrets: full(webhook.TenantSecrets{}), Secrets: []string{"0123456789abcdef"},
			Tenant: func(*webhook.Event) string { return "" }}, []string{"and Secrets exclude", "and Tenant exclude"}},
		{
			webhook.Config{
				Provider:      webhook.Stripe{},
				TenantSecrets: full(webhook.TenantSecrets{MaxAge: time.Second, Timeout: time.Minute, Lookups: 65, MaxTenants: -1}),
			},
			[]string{
				"TenantSecrets.MaxAge: is 1s",
				"TenantSecrets.Timeout: is 1m0s",
				"TenantSecrets.Lookups: is 65",
				"TenantSecrets.MaxTenants: is -1",
			},
		},
		{
			webhook.Config{Provider: paypal.Provider{WebhookID: "A"}, TenantSecrets: full(webhook.TenantSecrets{})},
			[]string{"TenantSecrets: must be nil"},
		},
	} {
		_, err := webhook.NewVerifier(c.cfg)
		if !errors.Is(err, webhook.ErrConfig) || strings.Count(err.Error(), "\n")+1 != len(c.want) {
			t.Errorf("%d: %v", i, err)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%d: no %q in %v", i, want, err)
			}
		}
	}
}

// A Verifier alone takes the tenant with the request.
func TestVerifierOfATenant(t *testing.T) {
	t.Parallel()
	cfg := webhook.Config{Provider: webhook.Stripe{}}
	ofPath(known)(&cfg)
	v, err := webhook.NewVerifier(cfg)
	if err != nil {
		t.Fatal(err)
	}
	body := stripeBody("evt_1", "")
	header := samples(t)["Stripe"].sign(ownSecret("bob", 1), time.Now(), body)
	if e, err := v.VerifyRequest(t.Context(), webhook.Request{Header: header, Body: []byte(body), Tenant: "bob"}); err != nil ||
		e.Tenant != "bob" {
		t.Errorf("%+v, %v", e, err)
	}
	if _, err := v.Verify(header, []byte(body)); !errors.Is(err, webhook.ErrSignature) {
		t.Error(err)
	}
}

// The cost of a request whose tenant's secrets are kept, beside that of a configured secret.
func BenchmarkTenantSecrets(b *testing.B) {
	s := samples(b)["Stripe"]
	body := []byte(s.body)
	header := s.sign(ownSecret("bob", 0), now, s.body)
	configured := webhook.Config{Provider: s.provider, Secrets: []string{ownSecret("bob", 0), ownSecret("bob", 1)}}
	kept := webhook.Config{Provider: s.provider}
	ofPath(known)(&kept)
	for name, cfg := range map[string]webhook.Config{"configured": configured, "kept": kept} {
		b.Run(name, func(b *testing.B) {
			v, err := webhook.NewVerifier(cfg)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := v.VerifyRequest(b.Context(), webhook.Request{
						Header: header,
						Body:   body,
						Tenant: "bob",
						Time:   now,
					}); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
