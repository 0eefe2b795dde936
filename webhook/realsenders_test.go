package webhook_test

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/webhook"
	"github.com/onlyonce/onlyonce/webhook/meta"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// W15: Slack signs app_rate_limited as its other events, and gives it no event_id. Its id is made
// of the body, so that Slack's next try is a copy.
func TestW15SlackEventWithoutAnID(t *testing.T) {
	t.Parallel()
	s := samples(t)["Slack"]
	v := verifier(t, s.provider, s.secret)
	const body = `{"token":"x","team_id":"T1","minute_rate_limited":1518467820,"api_app_id":"A1","type":"app_rate_limited"}`
	for _, at := range []time.Time{now, now.Add(time.Minute)} {
		e, err := v.VerifyAt(at, s.sign(s.secret, at, body), []byte(body))
		good := err == nil &&
			e.ID == contentID(body) &&
			e.Type == "app_rate_limited" &&
			e.IDSigned &&
			!e.Probe
		if !good {
			t.Errorf("%v: %v %+v", at, err, e)
		}
	}
	for _, other := range []string{
		`{}`,
		`{"type":""}`,
		`{"type":7}`,
		`{"type":"a","event_id":null}`,
		`{"type":"a","event_id":"b","event_id":"b"}`,
		"payload=%7B%22type%22%3A%22a%22%7D",
	} {
		refuses(t, v, s.sign(s.secret, now, other), other, s.secret, webhook.ErrMalformed)
	}
}

// W2: the longest body is the sender's, if that is known.
func TestW2LongestBodyOfASender(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		provider webhook.Provider
		set      int
		want     int
	}{
		"GitHub":               {webhook.GitHub{}, 0, 25 << 20},
		"GitHub, as set":       {webhook.GitHub{}, 2 << 20, 2 << 20},
		"Meta":                 {meta.Provider{VerifyToken: metaToken}, 0, 3 << 20},
		"Stripe":               {webhook.Stripe{}, 0, 1 << 20},
		"a sender of little":   {altered{webhook.Stripe{}, func(s *scheme.Scheme) { s.MaxBody = 1000 }}, 0, 1 << 20},
		"a sender of too much": {altered{webhook.GitHub{}, func(s *scheme.Scheme) { s.MaxBody = 1 << 30 }}, 0, 32 << 20},
	} {
		v, err := webhook.NewVerifier(webhook.Config{Provider: c.provider, Secrets: []string{"0123456789abcdef"}, MaxBody: c.set})
		if err != nil {
			t.Fatal(err)
		}
		body := make([]byte, c.want)
		if _, err := v.Verify(headers(), body); errors.Is(err, webhook.ErrTooLarge) {
			t.Errorf("%s: a body of %d bytes: %v", name, c.want, err)
		}
		if _, err := v.Verify(headers(), append(body, 0)); !errors.Is(err, webhook.ErrTooLarge) {
			t.Errorf("%s: a byte more than %d: %v", name, c.want, err)
		}
	}
}

// patientGitHub waits longer for an answer than GitHub: a busy machine with the race detector needs
// more than 10 s for 24 MB.
type patientGitHub struct{ webhook.GitHub }

func (p patientGitHub) Scheme() (*scheme.Scheme, error) {
	s, err := p.GitHub.Scheme()
	if err == nil {
		s.Answer = 0
	}
	return s, err
}

// W2: a push of nearly 25 MB is stored whole, and handled.
func TestW2LargestPush(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(func(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
		sum := sha256.Sum256(m.Value)
		tx.Queue(`insert into effects (id) values ($1)`, hex.EncodeToString(sum[:]))
		return nil
	})
	github := samples(t)["GitHub"]
	github.provider = patientGitHub{}
	e := r.serve(github, func(c *webhook.Config) { c.HandlerTimeout = 30 * time.Second })
	body := `{"ref":"refs/heads/main","commits":"` + strings.Repeat("c", 24<<20) + `"}`
	// A busy machine may not store it in time: then it is delivered again, as by GitHub.
	pgtest.Until(t, 5*patience, "the push is stored", func() bool {
		got := e.send(body)
		if got.status != http.StatusOK {
			t.Logf("refused: %v", r.lastRefusal())
		}
		return got.status == http.StatusOK
	})
	want := sha256.Sum256([]byte(body))
	r.until("the push is handled", func() bool { return r.count("effects") == 1 })
	if got := one[string](r, `select id from effects`); got != hex.EncodeToString(want[:]) {
		t.Errorf("handled: %s", got)
	}
}

// W7: the headers of Shopify's events have no "X-". If a request has both, only those count that
// stand beside the signature that counts.
func TestW7ShopifysFamiliesOfHeaders(t *testing.T) {
	t.Parallel()
	s := samples(t)["Shopify"]
	signature := b64(mac256(s.secret, s.body))
	without := headers(
		"Shopify-Hmac-Sha256", signature, "Shopify-Topic", "product", "Shopify-Action", "update",
		"Shopify-Webhook-Id", "w-1", "Shopify-Event-Id", "e-1", "Shopify-Shop-Domain",
		"a.myshopify.com", "Shopify-API-Version", "2026-04", "Shopify-Triggered-At",
		"2026-01-01T00:00:00Z", "Shopify-Handle", "h",
	)
	with := func(h http.Header, pairs ...string) http.Header {
		h = h.Clone()
		for i := 0; i < len(pairs); i += 2 {
			h.Set(pairs[i], pairs[i+1])
		}
		return h
	}
	v := verifier(t, webhook.Shopify{}, s.secret)
	e, err := v.Verify(without, []byte(s.body))
	good := err == nil && e.ID == "w-1" && e.Type == "product" && !e.IDSigned
	if !good {
		t.Fatalf("%v %+v", err, e)
	}
	if len(e.Header) != 8 || e.Header.Get("Shopify-Action") != "update" {
		t.Errorf("kept: %v", e.Header)
	}
	if e, err := verifier(t, webhook.Shopify{ByEvent: true}, s.secret).Verify(without, []byte(s.body)); err != nil ||
		e.ID != "product/e-1" {
		t.Errorf("by event: %v %+v", err, e)
	}
	both := with(without, "X-Shopify-Hmac-Sha256", signature, "X-Shopify-Topic", "products/update", "X-Shopify-Webhook-Id", "w-0")
	if e, err := v.Verify(both, []byte(s.body)); err != nil || e.ID != "w-1" || e.Type != "product" {
		t.Errorf("both: %v %+v", err, e)
	}
	refuses(t, v, with(both, "Shopify-Hmac-Sha256", b64(make([]byte, 32))), s.body, s.secret, webhook.ErrSignature)
	both.Del("Shopify-Webhook-Id") // the other family's does not stand in for it
	refuses(t, v, both, s.body, s.secret, webhook.ErrMalformed)
	if _, err := webhook.NewVerifier(webhook.Config{
		Provider:    webhook.Shopify{},
		Secrets:     []string{s.secret},
		KeepHeaders: []string{"Shopify-Hmac-Sha256"},
	}); err == nil {
		t.Error("the new signature may be kept")
	}
}

// Secrets count as their senders show them.
func TestStandardSecrets(t *testing.T) {
	t.Parallel()
	_, public := ed25519Pair(t)
	s := samples(t)["Standard v1"]
	header := s.sign(s.secret, now, s.body)
	for _, secret := range []string{standardSecret, strings.TrimPrefix(standardSecret, "whsec_"), "v1," + standardSecret} {
		if _, err := verifier(t, webhook.Standard{}, secret).VerifyAt(now, header, []byte(s.body)); err != nil {
			t.Errorf("%s: %v", secret, err)
		}
	}
	a := samples(t)["Svix v1a"]
	if _, err := verifier(t, webhook.Standard{}, "v1a,"+public).VerifyAt(now, a.sign(public, now, a.body), []byte(a.body)); err != nil {
		t.Error(err)
	}
	for secret, want := range map[string]string{
		"v1," + strings.TrimPrefix(standardSecret, "whsec_"): `must be "whsec_"`,
		"v1a," + standardSecret:                              `must be "whsec_"`,
		"v1," + public:                                       `must be "whsec_"`,
		"v1,v1," + standardSecret:                            `must be "whsec_"`,
		"v1a,whsk_" + privateKey:                             "is the sender's private key",
		"v1," + standardSecret + "|v1," + standardSecret:     "list each secret by itself",
	} {
		_, err := webhook.NewVerifier(webhook.Config{Provider: webhook.Standard{}, Secrets: []string{secret}})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), secret) {
			t.Errorf("%.30s: %v", secret, err)
		}
	}
}

// A list is separated by commas or by semicolons, as the header is written (W4).
func TestW4ListsWithSemicolons(t *testing.T) {
	t.Parallel()
	const secret = "pdl_ntfset_0123456789abcdef"
	paddle := webhook.HMAC{
		Name:            "paddle",
		SignatureHeader: "Paddle-Signature",
		SignaturePart:   "h1",
		Time:            "ts",
		Layout:          "{time}:{body}",
		IDMember:        "event_id",
		TypeMember:      "event_type",
	}
	v := verifier(t, paddle, secret)
	const body = `{"event_id":"evt_1","event_type":"transaction.completed"}`
	good := hex.EncodeToString(mac256(secret, unix(now), ":", body))
	zero := strings.Repeat("0", 64)
	for _, list := range []string{
		"ts=" + unix(now) + ";h1=" + good,
		"ts=" + unix(now) + ",h1=" + good,
		"h1=" + zero + ";h1=" + good + ";ts=" + unix(now) + ";h2=x",
		"h1=" + good + ",ts=" + unix(now),
	} {
		e, err := v.VerifyAt(now, headers("Paddle-Signature", list), []byte(body))
		if err != nil {
			t.Errorf("%s: %v", list, err)
			continue
		}
		if e.ID != "evt_1" || e.Type != "transaction.completed" || !e.Time.Equal(now) {
			t.Errorf("%s: %v %+v", list, err, e)
		}
	}
	for _, list := range []string{
		"ts=" + unix(now) + ";h1=" + good + ",h1=" + good,
		"ts=" + unix(now) + ",h1=" + good + ";h1=" + good,
		"ts=" + unix(now) + "; h1=" + good,
		"ts=" + unix(now) + ";h1=" + good + ";",
		"ts=" + unix(now) + ";ts=" + unix(now) + ";h1=" + good,
		";ts=" + unix(now) + ";h1=" + good,
		"ts=" + unix(now) + "&h1=" + good,
		"ts=" + unix(now) + strings.Repeat(";h1="+zero, 17) + ";h1=" + good,
	} {
		refuses(t, v, headers("Paddle-Signature", list), body, secret, webhook.ErrMalformed)
	}
	// Stripe's list has commas only.
	stripe := samples(t)["Stripe"]
	header := stripe.sign(stripe.secret, now, stripe.body)
	header.Set("Stripe-Signature", strings.ReplaceAll(header.Get("Stripe-Signature"), ",", ";"))
	refuses(t, verifier(t, stripe.provider, stripe.secret), header, stripe.body, stripe.secret, webhook.ErrMalformed)
	// What no declaration can say names the way out.
	paddle.Layout = "{time}{body}"
	if _, err := paddle.Scheme(); err == nil || !strings.Contains(err.Error(), "scheme.Scheme") {
		t.Errorf("%v", err)
	}
}

// W19: Twilio's products differ in how they write an apostrophe and a space of the query that they
// sign, and so do proxies. All writings have one id.
func TestW19WritingsOfAQuery(t *testing.T) {
	t.Parallel()
	v := ofTwilio(t, twilioURL, twilioToken)
	form := url.Values{"MessageSid": {"SM1"}, "MessageStatus": {"sent"}}
	verify := func(signed, sent string) (*webhook.Event, error) {
		return v.VerifyRequest(
			t.Context(),
			twilioRequest(signTwilio(twilioToken, twilioURL+"?"+signed, form), formType, sent, form.Encode()),
		)
	}
	ids := map[string]bool{}
	for _, c := range []struct {
		signed, sent string
		want         bool
	}{
		{"name=O'Brien&q=a%20b%40", "name=O'Brien&q=a+b%40", true},
		{"name=O'Brien&q=a%20b%40", "name=O%27Brien&q=a%20b%40", true},   // escaped on the way
		{"name=O%27Brien&q=a%20b@", "name=O'Brien&q=a%20b@", true},       // escaped in what is signed
		{"name=O'Brien&q=a%20b%40", "name=O%27Brien&q=a+b@", true},       // all at once
		{"name=O%27Brien&q=a+b%40", "name=O%27Brien&q=a+b%40", true},     // as it came
		{"name=O'Brien&q=a%20b%40", "&name=O'Br%69en&&q=a%20b%40", true}, // another character
		{"name=O'Brien&q=a+b", "name=O'Brien&q=a%20b", false},            // of no library
		{"name=O'Brien&q=a%20b", "q=a%20b&name=O'Brien", false},
		{"name=O'Brien&q=a%20b@", "name=O'Brien&q=a%20b%40", false},
		{"name=O'Brien&q=a%20b", "name=O'Brien&q=A%20b", false},
	} {
		e, err := verify(c.signed, c.sent)
		switch {
		case (err == nil) != c.want, err != nil && !errors.Is(err, webhook.ErrSignature):
			t.Errorf("signed %s, sent %s: %v", c.signed, c.sent, err)
		case err == nil:
			ids[e.ID] = true
		}
	}
	if len(ids) != 1 {
		t.Errorf("one event has %d ids", len(ids))
	}
}

// W4: Twilio signs with a SharedKey by the algorithm that a header names.
func TestW4TwilioSharedKeys(t *testing.T) {
	t.Parallel()
	v := ofTwilio(t, twilioURL, twilioToken)
	text := twilioURL + "A1"
	with1 := b64(mac(sha1.New, twilioToken, text))
	with256 := b64(mac(sha256.New, twilioToken, text))
	try := func(signature string, want error, settings ...string) {
		t.Helper()
		r := twilioRequest(signature, formType, "", "A=1")
		r.Header["X-Twilio-Webhooks-Signature-Settings"] = settings
		if _, err := v.VerifyRequest(t.Context(), r); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: %v, want %v", settings, err, want)
		}
	}
	try(with1, nil)
	try(with1, nil, "key=webhooks_sharedkey_1")
	try(with1, nil, "key=webhooks_sharedkey_1,algorithm=HMAC_SHA1")
	try(with256, nil, "key=webhooks_sharedkey_1,algorithm=HMAC_SHA256")
	try(with256, nil, "algorithm=HMAC_SHA256, key=webhooks_sharedkey_1")
	try(with256, webhook.ErrMalformed)
	try(with1, webhook.ErrMalformed, "algorithm=HMAC_SHA256")
	try(with256, webhook.ErrMalformed, "algorithm=HMAC_SHA512")
	try(with256, webhook.ErrMalformed, "algorithm=HMAC_SHA256", "algorithm=HMAC_SHA256")
	try(b64(mac(sha256.New, "54321", text)), webhook.ErrSignature, "algorithm=HMAC_SHA256")
	// A scheme without a key for a secret is refused.
	for what, keys := range map[string]func(string) ([]scheme.Key, error){
		"none": func(string) ([]scheme.Key, error) { return nil, nil },
		"zero": func(string) ([]scheme.Key, error) { return make([]scheme.Key, 1), nil },
		"bad":  func(string) ([]scheme.Key, error) { return nil, fmt.Errorf("is bad") },
	} {
		p := altered{webhook.GitHub{}, func(s *scheme.Scheme) { s.Keys = keys }}
		if _, err := webhook.NewVerifier(webhook.Config{
			Provider: p,
			Secrets:  []string{"0123456789abcdef"},
		}); !errors.Is(err, webhook.ErrConfig) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
