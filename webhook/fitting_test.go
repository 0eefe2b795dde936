package webhook_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/webhook"
)

// membersSample is a sender whose events hold everything in the body.
func membersSample() sample {
	return sample{
		provider: webhook.HMAC{Name: "acme", SignatureHeader: "X-Sig", IDMember: "id", TypeMember: "type"}, secret: "0123456789abcdef",
		sign: func(secret string, _ time.Time, body string) http.Header {
			return headers("X-Sig", hex.EncodeToString(mac(sha256.New, secret, body)))
		},
	}
}

func membersBody(t *testing.T, m map[string]string) string {
	t.Helper()
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// member finds a member of an event's body.
func member(name string) func(*webhook.Event) string {
	return func(e *webhook.Event) string {
		var m map[string]string
		_ = json.Unmarshal(e.Body, &m)
		return m[name]
	}
}

// W15: whatever a signed event holds, it is forwarded: with a shorter key or without a type if a
// call cannot carry them.
func TestW15ForwardFitsWhatItCan(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, account, kind, target, header string }{
		{"plain", "a b", "paid", "/payments?key=a%20b", "Webhook-Event-Type: paid"},
		{
			"key that is long once it is escaped",
			strings.Repeat("ü", 350),
			"paid",
			fmt.Sprintf("/payments?key=sha256%%3A%x", sha256.Sum256([]byte(strings.Repeat("ü", 350)))),
			"",
		},
		{"longest key that fits", strings.Repeat("a", 1024), "paid", "/payments?key=" + strings.Repeat("a", 1024), ""},
		{
			"longer key",
			strings.Repeat("a", 1025),
			"paid",
			fmt.Sprintf("/payments?key=sha256%%3A%x", sha256.Sum256([]byte(strings.Repeat("a", 1025)))),
			"",
		},
		{"type that ends with a space", "a", "paid ", "/payments?key=a", "-Event-Type"},
		{"type that begins with a space", "a", " paid", "/payments?key=a", "-Event-Type"},
		{"type that is no ASCII", "a", "bezahlt für", "/payments?key=a", "-Event-Type"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			e := r.serve(membersSample(), func(c *webhook.Config) {
				c.Mode = webhook.ForwardOnly
				c.Forward = &webhook.Forward{
					Sink:        "kafka",
					Target:      "/payments",
					KeyInTarget: true,
				}
				c.OrderingKey = member("account")
			})
			e.send(membersBody(t, map[string]string{"id": "1", "type": c.kind, "account": c.account})).want(t, 200, false)
			if got := one[string](r, `select target from onlyonce.outbox_log`); got != c.target {
				t.Errorf("target %.120s, want %.120s", got, c.target)
			}
			without := strings.HasPrefix(c.header, "-")
			if got := one[string](
				r,
				`select headers from onlyonce.outbox_log`,
			); strings.Contains(got, strings.TrimPrefix(c.header, "-")) == without {
				t.Errorf("headers %s, want %s", got, c.header)
			}
			if one[bool](r, `select order_key is null from onlyonce.outbox_log`) {
				t.Error("it has no ordering key")
			}
		})
	}
}

// W15: an event of which no call can be made is parked whole, and a copy of it is a duplicate.
func TestW15EventThatCannotBeForwarded(t *testing.T) {
	t.Parallel()
	for _, mode := range []webhook.EndpointMode{webhook.ForwardOnly, webhook.Stored, webhook.Inline} {
		r := newRig(t)
		s := membersSample()
		e := r.serve(s, func(c *webhook.Config) {
			c.KeepHeaders = []string{
				"X-A",
				"X-B",
				"X-C",
				"X-D",
			}
			c.Mode = mode
			c.Forward = &webhook.Forward{Sink: "kafka", Target: "/payments"}
			if mode == webhook.Inline {
				c.Handler = consumer.HandlerFunc(effect)
			}
		})
		body := membersBody(t, map[string]string{"id": "1", "type": strings.Repeat("t", 200)})
		h := e.sign(e.secret, time.Now(), body)
		for _, name := range []string{"X-A", "X-B", "X-C", "X-D"} { // what may be kept, and with ours is more than a call may have
			h.Set(name, strings.Repeat("x", 4060))
		}
		e.do(e.request(h, body)).want(t, 200, false)
		if got := r.last(); got != webhook.Unforwarded {
			t.Errorf("mode %d: outcome %s", mode, got)
		}
		e.do(e.request(h, body)).want(t, 200, true)
		if got := one[string](
			r,
			`select string_agg(kind || ' ' || state || ' ' || reason || ' ' || event_id, ', ') from onlyonce.parked
				where error like '%16384%'`,
		); got != "event waiting forward e/acme/1" {
			t.Errorf("mode %d: parked %q", mode, got)
		}
		if got := one[string](r, `select convert_from(body, 'UTF8') from onlyonce.parked`); got != body {
			t.Errorf("mode %d: parked body %s", mode, got)
		}
		if n := r.count("onlyonce.event_log") + r.count("onlyonce.outbox_log") + r.count("effects"); n != 0 {
			t.Errorf("mode %d: %d rows of an event that was set aside", mode, n)
		}
	}
}

// W15: what would keep every event from being forwarded is a fault of the configuration.
func TestW15FaultsOfForward(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := membersSample()
	scheme, err := s.provider.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	scheme.Name = "grüße"
	for want, cfg := range map[string]webhook.Config{
		"Target: \"payments\"": {
			Forward:  &webhook.Forward{Sink: "s", Target: "payments"},
			Provider: s.provider,
			Secrets:  []string{s.secret},
		},
		"are more than 2048": {
			Forward:  &webhook.Forward{Sink: "s", Target: "/" + strings.Repeat("x", 1980), KeyInTarget: true},
			Provider: s.provider,
			Secrets:  []string{s.secret},
		},
		"X-Auth-Token": {
			Forward:     &webhook.Forward{Sink: "s", Target: "/payments"},
			Provider:    s.provider,
			Secrets:     []string{s.secret},
			KeepHeaders: []string{"X-Auth-Token"},
		},
		"the provider's name": {
			Forward:  &webhook.Forward{Sink: "s", Target: "/payments"},
			Provider: broken{scheme},
			Secrets:  []string{s.secret},
		},
	} {
		cfg.Name = "e"
		cfg.Mode = webhook.ForwardOnly
		if _, err := webhook.New(r.pool, cfg); !errors.Is(err, webhook.ErrConfig) ||
			!strings.Contains(err.Error(), "Config.Forward") ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// W16: if the tenant of an event is not known, the event is refused, whatever the function does.
// Under a wrong tenant it could be taken for a copy of another customer's event.
func TestW16TenantThatIsNotNamed(t *testing.T) {
	t.Parallel()
	s := membersSample()
	for name, f := range map[string]func(*webhook.Event) string{
		"panics":            func(e *webhook.Event) string { return e.Header["X-Customer"][0] },
		"no UTF-8":          func(e *webhook.Event) string { return "\xff" + member("customer")(e) },
		"NUL":               func(e *webhook.Event) string { return member("customer")(e) + "\x00" },
		"control character": func(e *webhook.Event) string { return member("customer")(e) + "\n" },
		"too long":          func(e *webhook.Event) string { return strings.Repeat(member("customer")(e), 256) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			e := r.serve(s, func(c *webhook.Config) { c.Tenant = f })
			for _, customer := range []string{"alice", "bob"} {
				r.asks(false, func() { e.send(membersBody(t, map[string]string{"id": "1", "customer": customer})).want(t, 500, false) })
			}
			if err := r.lastRefusal(); !errors.Is(err, webhook.ErrTenant) {
				t.Error(err)
			}
			if n := r.count("onlyonce.event_log") + r.count("onlyonce.parked") + r.count("onlyonce.inbox"); n != 0 {
				t.Errorf("%d rows of events whose tenant is not known", n)
			}
		})
	}
	r := newRig(t)
	e := r.serve(s, func(c *webhook.Config) { c.Tenant = member("customer") })
	for _, customer := range []string{"alice", "bob", strings.Repeat("ü", 127), ""} { // ids of two customers are two
		e.send(membersBody(t, map[string]string{"id": "1", "customer": customer})).want(t, 200, false)
		e.send(membersBody(t, map[string]string{"id": "1", "customer": customer})).want(t, 200, true)
	}
}

// W16: a function for an ordering key that panics keeps no event from being stored: it has none.
func TestW16OrderingKeyThatPanics(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := r.serve(membersSample(), func(c *webhook.Config) {
		c.OrderingKey = func(e *webhook.Event) string { return e.Header["X-Customer"][0] }
	})
	e.send(membersBody(t, map[string]string{"id": "1", "customer": "alice"})).want(t, 200, false)
	if n := one[int](r, `select count(*) from onlyonce.event_log where order_key is null`); n != 1 {
		t.Errorf("%d events are stored without a key", n)
	}
}

// An event is compared with those of its own scope only, so a transaction that does not know its
// scope is refused.
func TestStaleWithAnotherTx(t *testing.T) {
	t.Parallel()
	type foreign struct{ consumer.Tx }
	r := newRig(t)
	h, err := webhook.InOrder(webhook.Ordered{Version: versionOf, DropStale: true}, consumer.HandlerFunc(effect))
	if err != nil {
		t.Fatal(err)
	}
	e := r.serve(samples(t)["Stripe"], inline(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		return h.Handle(ctx, foreign{tx}, m)
	}))
	e.send(versioned("evt_a1", "a", 1)).want(t, 500, false)
	if err := r.lastRefusal(); err == nil || !strings.Contains(err.Error(), "InOrder") || r.count("onlyonce.webhook_objects") != 0 {
		t.Errorf("%v; %d objects", err, r.count("onlyonce.webhook_objects"))
	}
}
