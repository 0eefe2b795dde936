package webhook_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/webhook"
	"github.com/onlyonce/onlyonce/webhook/meta"
	"github.com/onlyonce/onlyonce/webhook/twilio"
)

// delivery is a request of a sender, or of a recorder who sends it again.
type delivery struct {
	kind, id, body string
	named          bool
	recorded       bool
}

// W7: GitHub's published examples and Shopify's documented payloads. Each event comes five times
// under new ids, as five genuine changes of its kind, in an order that is drawn; a recorder sends
// what has come under ids that are made up, and the sender delivers some of it again. What
// docs/guide/webhook-bodies.md promises for each kind comes true, and no genuine event is gone.
func TestW7GenuineEventsBesideARecorder(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	all := samples(t)
	shopify := all["Shopify"]
	topics := shopifyExamples(t)
	var listed []string
	for _, e := range topics {
		listed = append(listed, e.Event)
	}
	shopify.provider = webhook.Shopify{Topics: listed}
	for _, c := range []struct {
		name     string
		sender   sample
		examples []example
		choice   webhook.SameBodies
	}{
		{"GitHub, parked", all["GitHub"], githubExamples(t), webhook.ParkSameBodies},
		{"GitHub, handled", all["GitHub"], githubExamples(t), webhook.HandleSameBodies},
		{"Shopify, parked", shopify, topics, webhook.ParkSameBodies},
		{"Shopify, handled", shopify, topics, webhook.HandleSameBodies},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			x := r.receiver(c.sender, func(cfg *webhook.Config) { cfg.SameBodies = c.choice })
			random := rand.New(rand.NewPCG(seed, 1))
			sent := genuine(t, random, c.examples)
			(&show{rig: r, to: x, sender: c.sender, handles: c.choice == webhook.HandleSameBodies, random: random}).play(sent)
		})
	}
}

// genuine are five changes of each kind, in an order that is drawn.
func genuine(t *testing.T, random *rand.Rand, examples []example) (all []delivery) {
	t.Helper()
	seen := map[string]bool{}
	for _, e := range examples {
		kind := e.Event + "." + e.Action
		if seen[kind] || e.Event == "ping" {
			continue
		}
		seen[kind] = true
		for i, body := range e.changes(t, 5) {
			all = append(all, delivery{
				kind:  e.Event,
				id:    fmt.Sprintf("%s-%d", strings.ReplaceAll(kind, "/", "."), i),
				body:  body,
				named: e.Names != "",
			})
		}
	}
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// show plays deliveries against an endpoint, and knows what each of them is promised.
type show struct {
	*rig
	to      *webhook.Endpoint
	sender  sample
	handles bool
	random  *rand.Rand

	bodies map[string]int // how often a body came, under new ids
}

// play sends the events, and after each of them what a recorder and the sender may send again.
func (s *show) play(events []delivery) {
	s.bodies = map[string]int{}
	var came []delivery
	for n, e := range events {
		s.send(e)
		came = append(came, e)
		if s.random.IntN(4) == 0 {
			again := came[s.random.IntN(len(came))]
			if got := s.post(again); got != webhook.Duplicate {
				s.t.Errorf("%s comes again: %s", again.id, got)
			}
		}
		recorded := came[s.random.IntN(len(came))]
		recorded.id = fmt.Sprint("made-up-", n)
		if n+1 < len(events) && recorded.named && s.random.IntN(3) == 0 {
			recorded.id = events[n+1].id // of an event that is still to come
		}
		recorded.recorded = true
		s.send(recorded)
	}
	ids := one[[]string](
		s.rig,
		`select array_agg(split_part(id, '/', 3))
			from (select id from onlyonce.event_log union all select event_id from onlyonce.parked where body is not null) e`,
	)
	for _, e := range events {
		if !slices.Contains(ids, e.id) {
			s.t.Errorf("%s of %s is gone", e.id, e.kind)
		}
	}
}

// send sends a body under a new id.
func (s *show) send(e delivery) {
	s.t.Helper()
	body := e.kind + " " + e.body
	before := s.bodies[body]
	s.bodies[body]++
	want := webhook.SameBody
	switch {
	case before == 0, !e.named && s.handles:
		want = webhook.Accepted
	case e.named && before > 1:
		want = webhook.Duplicate
	}
	if got := s.post(e); got != want {
		s.t.Errorf("%s of %s, which names itself: %t, recorded: %t, is %s, want %s; it came %d times before",
			e.id, e.kind, e.named, e.recorded, got, want, before)
	}
}

func (s *show) post(e delivery) webhook.ReceiveOutcome {
	req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(e.body))
	req.Header = s.sender.sign(s.sender.secret, time.Now(), e.body)
	for _, name := range []string{"X-GitHub-Event", "X-Shopify-Topic"} {
		req.Header.Set(name, e.kind)
	}
	for _, name := range []string{"X-GitHub-Delivery", "X-Shopify-Webhook-Id"} {
		req.Header.Set(name, e.id)
	}
	w := httptest.NewRecorder()
	if s.to.ServeHTTP(w, req); w.Code != http.StatusOK {
		s.t.Errorf("%s is answered %d: %v", e.id, w.Code, s.lastRefusal())
		return ""
	}
	return s.last()
}

// W7: orders/create, orders/paid and orders/updated with one body are three events, each under its
// topic, if the topics are listed. Under another topic the body does not name itself, and is kept.
func TestW7OneBodyUnderSeveralTopics(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := samples(t)["Shopify"]
	const body = `{"id":1,"updated_at":"2026-01-31T16:23:39-05:00"}`
	s.provider = webhook.Shopify{Topics: []string{"orders/create", "orders/paid", "orders/updated"}}
	x := &show{rig: r, sender: s, to: r.receiver(s)}
	for i, topic := range []string{"orders/create", "orders/paid", "orders/updated", "orders/delete"} {
		for n, want := range []webhook.ReceiveOutcome{webhook.Accepted, webhook.SameBody, webhook.Duplicate} {
			if topic == "orders/delete" && n == 2 {
				want = webhook.SameBody
			}
			if got := x.post(delivery{kind: topic, id: fmt.Sprintf("w-%d-%d", i, n), body: body}); got != want {
				t.Errorf("%s, time %d: %s, want %s", topic, n, got, want)
			}
		}
	}
	s.provider = webhook.Shopify{}
	x.to = r.receiver(s, func(c *webhook.Config) { c.Name = "without" })
	for i, topic := range []string{"orders/create", "orders/paid", "orders/paid"} {
		want := webhook.SameBody
		if i == 0 {
			want = webhook.Accepted
		}
		if got := x.post(delivery{kind: topic, id: fmt.Sprint("w-", i), body: body}); got != want {
			t.Errorf("%s: %s, want %s", topic, got, want)
		}
	}
}

// W7: with HandleSameBodies a recorded body that names itself is no event under the name of one
// whose bodies do not: an event's name is not signed.
func TestW7NamedBodyUnderAnotherName(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := samples(t)["GitHub"]
	x := &show{rig: r, sender: s, to: r.receiver(s, func(c *webhook.Config) { c.SameBodies = webhook.HandleSameBodies })}
	for i, c := range []struct {
		kind string
		want webhook.ReceiveOutcome
	}{
		{"push", webhook.Accepted},
		{"watch", webhook.SameBody},
		{"watch", webhook.SameBody},
		{"push", webhook.SameBody},
		{"push", webhook.Duplicate},
	} {
		if got := x.post(delivery{kind: c.kind, id: fmt.Sprint("d-", i), body: push("1")}); got != c.want {
			t.Errorf("%d, %s: %s, want %s", i, c.kind, got, c.want)
		}
	}
}

// W7: a body may name itself under several names, for example because a stranger has sent it under
// another one. It is set aside once for each name: the genuine event may be any of them.
func TestW7BodyThatIsNamedUnderTwoNames(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := samples(t)["GitHub"]
	x := &show{rig: r, sender: s, to: r.receiver(s)}
	const body = `{"action":"edited","repository":{"pushed_at":1},"issue":{"updated_at":"2026-11-28T10:00:00Z"}}`
	for i, c := range []struct {
		kind string
		want webhook.ReceiveOutcome
	}{
		{"push", webhook.Accepted}, {"push", webhook.SameBody}, {"push", webhook.Duplicate},
		{"issues", webhook.SameBody}, {"issues", webhook.Duplicate}, {"push", webhook.Duplicate},
	} {
		if got := x.post(delivery{kind: c.kind, id: fmt.Sprint("d-", i), body: body}); got != c.want {
			t.Errorf("%d, %s: %s, want %s", i, c.kind, got, c.want)
		}
	}
	if got := one[string](r, `select string_agg(event_id, ' ' order by id) from onlyonce.parked`); got != "e/github/d-1 e/github/d-3" {
		t.Errorf("kept: %s", got)
	}
}

// W7: a body that a stranger has sent first, under the name of an event whose bodies name
// themselves, leaves the genuine event of another name to be kept each time.
func TestW7GenuineEventAfterAFalseName(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := samples(t)["GitHub"]
	x := &show{rig: r, sender: s, to: r.receiver(s)}
	for i, c := range []struct {
		kind string
		want webhook.ReceiveOutcome
	}{{"push", webhook.Accepted}, {"push", webhook.SameBody}, {"member", webhook.SameBody}, {"member", webhook.SameBody}} {
		if got := x.post(delivery{
			kind: c.kind,
			id:   fmt.Sprint("d-", i),
			body: `{"action":"added","repository":{"pushed_at":1}}`,
		}); got != c.want {
			t.Errorf("%d, %s: %s, want %s", i, c.kind, got, c.want)
		}
	}
	if got := one[string](
		r,
		`select string_agg(event_id, ' ' order by id) from onlyonce.parked`,
	); got != "e/github/d-1 e/github/d-2 e/github/d-3" {
		t.Errorf("kept: %s", got)
	}
}

// W7, Meta: a body without a time does not name itself, and the second one is kept; another is a
// copy. Microsoft Graph and PayPal have tests of their own.
func TestW7BodiesWithoutAnID(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		body string
		want webhook.ReceiveOutcome
	}{
		{`{"object":"page","entry":[{"id":"1","time":1764360000}]}`, webhook.Duplicate},
		{`{"object":"page","entry":[{"id":"1","time":1764360000},{"id":"2"}]}`, webhook.SameBody},
		{
			`{"object":"whatsapp_business_account","entry":[{"changes":[{"value":{"statuses":[{"id":"1","timestamp":"1"}]}}]}]}`,
			webhook.Duplicate,
		},
		{`{"object":"whatsapp_business_account","entry":[{"changes":[{"value":{"messages":[{"id":"1"}]}}]}]}`, webhook.SameBody},
		{`{"object":"page","entry":[]}`, webhook.SameBody},
	} {
		r := newRig(t)
		s := ofMeta()
		x := &show{rig: r, sender: s, to: r.receiver(s)}
		for i, want := range []webhook.ReceiveOutcome{webhook.Accepted, c.want, c.want} {
			if got := x.post(delivery{body: c.body}); got != want {
				t.Errorf("%s, time %d: %s, want %s", c.body, i, got, want)
			}
		}
	}
}

func ofMeta() sample {
	const secret = "e0b3d1bb44d6a1d2c9f8"
	return sample{
		provider: meta.Provider{VerifyToken: metaToken},
		secret:   secret,
		sign: func(secret string, _ time.Time, body string) http.Header {
			return headers("X-Hub-Signature-256", fmt.Sprintf("sha256=%x", mac256(secret, body)))
		},
	}
}

// W7, Twilio: the same characters as other parameters are no copy. A stranger sends them first,
// because the genuine delivery has failed; the genuine event is then kept, however often a stranger
// comes before it.
func TestW7OtherParametersThatComeFirst(t *testing.T) {
	t.Parallel()
	const secret = "0123456789abcdef0123456789abcdef"
	r := newRig(t)
	e := r.serve(sample{provider: twilio.Provider{URL: "https://a.example/t"}, secret: secret})
	form := url.Values{"Body": {"STOP"}, "MessageSid": {"SM1"}}
	h := headers("X-Twilio-Signature", signTwilio(secret, "https://a.example/t", form), "Content-Type", formType)
	for i, body := range []string{
		"BodySTOP=&MessageSid=SM1",
		"Body=STOPMessageSidSM1",
		"BodySTOP=&MessageSidSM1=",
		form.Encode(),
		form.Encode(),
	} {
		e.do(e.request(h, body)).want(t, http.StatusOK, i > 0)
	}
	if n := one[int](r, `select count(*) from onlyonce.parked where body = $1`, []byte(form.Encode())); n != 1 {
		t.Errorf("the genuine event is set aside %d times", n)
	}
	if n := r.count("onlyonce.event_log"); n != 1 {
		t.Errorf("%d events are stored", n)
	}
}
