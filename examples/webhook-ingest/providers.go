package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	stripewebhook "github.com/stripe/stripe-go/v84/webhook"
	svix "github.com/svix/svix-webhooks/go"

	"github.com/onlyonce/onlyonce/webhook"
)

// provider is a sender, and how the receiver is to verify it.
type provider struct {
	name   string
	scheme webhook.Provider
	secret string
	inline bool // its events are handled in the receiver's transaction
	timed  bool // it signs a time
	idSaid bool // the event's id is in a header that is not signed
	// sign makes the headers of a request. Where a provider has a library for Go it is that which
	// signs.
	sign func(secret, id, kind string, at time.Time, body []byte) (http.Header, error)
}

const standardSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

func header(pairs ...string) http.Header {
	h := http.Header{"Content-Type": {"application/json"}}
	for i := 0; i < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

func mac(secret string, parts ...string) []byte {
	m := hmac.New(sha256.New, []byte(secret))
	for _, p := range parts {
		m.Write([]byte(p))
	}
	return m.Sum(nil)
}

func providers() []*provider {
	return []*provider{
		{name: "standard", scheme: webhook.Standard{}, secret: standardSecret, timed: true,
			sign: func(secret, id, _ string, at time.Time, body []byte) (http.Header, error) {
				w, err := standardwebhooks.NewWebhook(secret)
				if err != nil {
					return nil, err
				}
				signature, err := w.Sign(id, at, body)
				return header("webhook-id", id, "webhook-timestamp", strconv.FormatInt(at.Unix(), 10), "webhook-signature", signature), err
			}},
		{name: "svix", scheme: webhook.Standard{}, secret: standardSecret, timed: true,
			sign: func(secret, id, _ string, at time.Time, body []byte) (http.Header, error) {
				w, err := svix.NewWebhook(secret)
				if err != nil {
					return nil, err
				}
				signature, err := w.Sign(id, at, body)
				return header("svix-id", id, "svix-timestamp", strconv.FormatInt(at.Unix(), 10), "svix-signature", signature), err
			}},
		{name: "stripe", scheme: webhook.Stripe{}, secret: "whsec_test_secret_of_stripe", timed: true,
			sign: func(secret, _, _ string, at time.Time, body []byte) (http.Header, error) {
				p := stripewebhook.GenerateTestSignedPayload(&stripewebhook.UnsignedPayload{Payload: body, Secret: secret, Timestamp: at})
				return header("Stripe-Signature", p.Header), nil
			}},
		{name: "github", scheme: webhook.GitHub{}, secret: "It's a Secret to Everybody", idSaid: true,
			sign: func(secret, id, kind string, _ time.Time, body []byte) (http.Header, error) {
				return header("X-GitHub-Delivery", id, "X-GitHub-Event", kind, "X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac(secret, string(body)))), nil
			}},
		{name: "shopify", scheme: webhook.Shopify{}, secret: "shopify-client-secret", idSaid: true, inline: true,
			sign: func(secret, id, kind string, _ time.Time, body []byte) (http.Header, error) {
				return header("X-Shopify-Webhook-Id", id, "X-Shopify-Topic", kind, "X-Shopify-Hmac-Sha256", base64.StdEncoding.EncodeToString(mac(secret, string(body)))), nil
			}},
		{name: "slack", scheme: webhook.Slack{}, secret: "slack-signing-secret", timed: true, inline: true,
			sign: func(secret, _, _ string, at time.Time, body []byte) (http.Header, error) {
				ts := strconv.FormatInt(at.Unix(), 10)
				return header("X-Slack-Request-Timestamp", ts, "X-Slack-Signature", "v0="+hex.EncodeToString(mac(secret, "v0:", ts, ":", string(body)))), nil
			}},
		{name: "acme", secret: "secret-of-acme-inc", timed: true, // a layout of its own, declared
			scheme: webhook.HMAC{Name: "acme", SignatureHeader: "X-Acme-Signature", Prefix: "v1=", TimeHeader: "X-Acme-Time", Layout: "{time}.{body}", IDMember: "id"},
			sign: func(secret, _, _ string, at time.Time, body []byte) (http.Header, error) {
				ts := strconv.FormatInt(at.Unix(), 10)
				return header("X-Acme-Time", ts, "X-Acme-Signature", "v1="+hex.EncodeToString(mac(secret, ts, ".", string(body)))), nil
			}},
	}
}

// event is one event, and the requests that report it.
type event struct {
	id, kind string
	object   string // what it is about; empty: it is compared with no other
	version  int64
	body     []byte
}

// payload is what events of this program's own making say: the members that the providers have,
// each where it looks for them.
type payload struct {
	ID      string            `json:"id"`
	EventID string            `json:"event_id"`
	Type    string            `json:"type"`
	Event   map[string]string `json:"event"`
	Object  string            `json:"object_id"`
	Version int64             `json:"object_version"`
}

// events makes n events about n/6 objects: each has six versions.
func events(p *provider, n int) ([]*event, error) {
	var all []*event
	for i := range n {
		e := &event{id: fmt.Sprintf("%s_%d", p.name, i), kind: "object.moved", object: fmt.Sprintf("%s-%d", p.name, i/6), version: int64(i%6 + 1)}
		var err error
		if e.body, err = json.Marshal(payload{e.id, e.id, "event_callback", map[string]string{"type": e.kind}, e.object, e.version}); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

// githubEvents reads GitHub's own payloads, as the npm package @octokit/webhooks-examples has them:
// no two of them alike, and no ping, which is a probe and no event.
func githubEvents(file string) ([]*event, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var kinds []struct {
		Name     string            `json:"name"`
		Examples []json.RawMessage `json:"examples"`
	}
	if err := json.Unmarshal(text, &kinds); err != nil {
		return nil, fmt.Errorf("%s: is not an index.json of @octokit/webhooks-examples: %w", file, err)
	}
	var all []*event
	seen := map[string]bool{}
	for _, k := range kinds {
		for _, body := range k.Examples {
			if k.Name == "ping" || seen[string(body)] {
				continue
			}
			seen[string(body)] = true
			all = append(all, &event{id: fmt.Sprintf("github_real_%d", len(all)), kind: k.Name, body: body})
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: holds no examples", file)
	}
	return all, nil
}
