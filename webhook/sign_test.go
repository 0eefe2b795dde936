package webhook_test

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/webhook"
	"github.com/onlyonce/onlyonce/webhook/meta"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

func mac(h func() hash.Hash, secret string, parts ...string) []byte {
	m := hmac.New(h, []byte(secret))
	for _, p := range parts {
		m.Write([]byte(p))
	}
	return m.Sum(nil)
}

func b64(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

// sample is a good request of a provider, and how to sign another.
type sample struct {
	provider webhook.Provider
	secret   string
	signed   []string // headers that must not be changed
	sigs     string   // the header with the signatures
	body     string
	id       string
	kind     string
	untimed  bool // signs no time
	renamed  bool // does not sign the event's id
	// sign makes the headers of a request: signed with secret, at a time, over a body.
	sign func(secret string, at time.Time, body string) http.Header
	// raw makes a signature's text of bytes: with its tag and encoding.
	raw func([]byte) string
}

var now = time.Unix(1614265330, 0)

func headers(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

func unix(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }

func hex256(b []byte) string { return "sha256=" + hex.EncodeToString(b) }

// contentID is the id of an event that is named by what is signed of it.
func contentID(signed string) string {
	sum := sha256.Sum256([]byte(signed))
	return "sha256:" + hex.EncodeToString(sum[:])
}

const (
	metaToken      = "hQ7tB2nXw9pLr4Zc"
	standardSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	msgID          = "msg_p5jXN8AQM9LWM0D4loKWxJek"
)

func standardMAC(secret, id string, at, body string) []byte {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		key = []byte(secret) // a secret that is none
	}
	return mac(sha256.New, string(key), id, ".", at, ".", body)
}

// seed is the private key of a published vector, which is 32 bytes of seed and the public key.
const privateKey = "6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="

func ed25519Pair(t testing.TB) (ed25519.PrivateKey, string) {
	t.Helper()
	raw, err := base64.StdEncoding.DecodeString(privateKey)
	if err != nil {
		t.Fatal(err)
	}
	key := ed25519.NewKeyFromSeed(raw[:32])
	return key, "whpk_" + b64(key.Public().(ed25519.PublicKey))
}

func samples(t testing.TB) map[string]sample {
	private, public := ed25519Pair(t)
	return map[string]sample{
		"Standard v1": {
			provider: webhook.Standard{}, secret: standardSecret,
			signed: []string{"Webhook-Id", "Webhook-Timestamp", "Webhook-Signature"}, sigs: "Webhook-Signature",
			body: `{"type":"user.created","data":{}}`, id: msgID, kind: "user.created",
			sign: func(secret string, at time.Time, body string) http.Header {
				return headers("webhook-id",
					msgID,
					"webhook-timestamp",
					unix(at),
					"webhook-signature",
					"v1,"+b64(standardMAC(secret, msgID, unix(at), body)))
			},
			raw: func(b []byte) string { return "v1," + b64(b) },
		},
		"Svix v1a": {
			provider: webhook.Standard{}, secret: public,
			signed: []string{"Svix-Id", "Svix-Timestamp", "Svix-Signature"}, sigs: "Svix-Signature",
			body: `{"test": 2432232314}`, id: msgID,
			sign: func(secret string, at time.Time, body string) http.Header {
				key := private
				if secret != public { // another private key
					seed := sha256.Sum256([]byte(secret))
					key = ed25519.NewKeyFromSeed(seed[:])
				}
				return headers("svix-id",
					msgID,
					"svix-timestamp",
					unix(at),
					"svix-signature",
					"v1a,"+b64(ed25519.Sign(key, []byte(msgID+"."+unix(at)+"."+body))))
			},
			raw: func(b []byte) string { return "v1a," + b64(b) },
		},
		"Stripe": {
			provider: webhook.Stripe{},
			secret:   "whsec_test_secret",
			signed:   []string{"Stripe-Signature"},
			sigs:     "Stripe-Signature",
			body:     `{"id":"evt_1","object":"event","type":"invoice.paid","data":{"object":{"id":"in_1"}}}`,
			id:       "evt_1",
			kind:     "invoice.paid",
			sign: func(secret string, at time.Time, body string) http.Header {
				return headers("Stripe-Signature", "t="+unix(at)+",v1="+hex.EncodeToString(mac(sha256.New, secret, unix(at), ".", body)))
			},
			raw: func(b []byte) string { return "v1=" + hex.EncodeToString(b) },
		},
		"GitHub": {
			provider: webhook.GitHub{}, secret: "It's a Secret to Everybody",
			signed: []string{"X-Hub-Signature-256"}, sigs: "X-Hub-Signature-256", untimed: true, renamed: true,
			body: "Hello, World!", id: "72d3162e-cc78-11e3-81ab-4c9367dc0958", kind: "push",
			sign: func(secret string, _ time.Time, body string) http.Header {
				return headers("X-GitHub-Delivery",
					"72d3162e-cc78-11e3-81ab-4c9367dc0958",
					"X-GitHub-Event",
					"push",
					"X-Hub-Signature-256",
					hex256(mac(sha256.New, secret, body)))
			},
			raw: hex256,
		},
		"Shopify": {
			provider: webhook.Shopify{}, secret: "test-webhook-secret",
			signed: []string{"X-Shopify-Hmac-Sha256"}, sigs: "X-Shopify-Hmac-Sha256", untimed: true, renamed: true,
			body: `{"id":1234567890}`, id: "b54557e4-bdd9-4b37-8a5f-bf7d70bcd043", kind: "orders/create",
			sign: func(secret string, _ time.Time, body string) http.Header {
				return headers("X-Shopify-Webhook-Id",
					"b54557e4-bdd9-4b37-8a5f-bf7d70bcd043",
					"X-Shopify-Topic",
					"orders/create",
					"X-Shopify-Hmac-Sha256",
					b64(mac(sha256.New, secret, body)))
			},
			raw: b64,
		},
		"Slack": {
			provider: webhook.Slack{}, secret: "e6b19c573432dcc6b075501d51b51bb8",
			signed: []string{"X-Slack-Signature", "X-Slack-Request-Timestamp"}, sigs: "X-Slack-Signature",
			body: `{"type":"event_callback","event":{"type":"app_mention"},"event_id":"Ev1"}`, id: "Ev1", kind: "app_mention",
			sign: func(secret string, at time.Time, body string) http.Header {
				return headers("X-Slack-Request-Timestamp",
					unix(at),
					"X-Slack-Signature",
					"v0="+hex.EncodeToString(mac(sha256.New, secret, "v0:", unix(at), ":", body)))
			},
			raw: func(b []byte) string { return "v0=" + hex.EncodeToString(b) },
		},
		"Meta": {
			provider: meta.Provider{VerifyToken: metaToken},
			secret:   "e0b3d1bb44d6a1d2c9f8",
			signed:   []string{"X-Hub-Signature-256"},
			sigs:     "X-Hub-Signature-256",
			untimed:  true,
			body:     `{"object":"page","entry":[{"id":"1","time":1614265330}]}`,
			id:       contentID(`{"object":"page","entry":[{"id":"1","time":1614265330}]}`),
			kind:     "page",
			sign: func(secret string, _ time.Time, body string) http.Header {
				return headers("X-Hub-Signature-256", hex256(mac(sha256.New, secret, body)))
			},
			raw: hex256,
		},
		"HMAC": {
			provider: webhook.HMAC{
				Name:            "acme",
				Algorithm:       scheme.HMACSHA512,
				SignatureHeader: "x-acme-signature",
				Encoding:        scheme.Base64,
				Prefix:          "sig ",
				Time:            "X-Acme-Time",
				TimeUnit:        time.Millisecond,
				Layout:          "v2:{time}:{body}|{id}",
				IDHeader:        "X-Acme-Id",
				TypeMember:      "kind",
			},
			secret: "0123456789abcdef",
			signed: []string{"X-Acme-Signature", "X-Acme-Time", "X-Acme-Id"}, sigs: "X-Acme-Signature",
			body: `{"kind":"moved"}`, id: "e/1", kind: "moved",
			sign: func(secret string, at time.Time, body string) http.Header {
				ms := strconv.FormatInt(at.UnixMilli(), 10)
				return headers("X-Acme-Id",
					"e/1",
					"X-Acme-Time",
					ms,
					"X-Acme-Signature",
					"sig "+b64(mac(sha512.New, secret, "v2:", ms, ":", body, "|e/1")))
			},
			raw: func(b []byte) string { return "sig " + b64(b) },
		},
		"HMAC with pairs": {
			provider: webhook.HMAC{Name: "acme", SignatureHeader: "X-Acme-Signature", SignaturePart: "s", Time: "at",
				Layout: "{time}.{body}", IDMember: "id", TypeHeader: "X-Acme-Type"},
			secret: "0123456789abcdef",
			signed: []string{"X-Acme-Signature"}, sigs: "X-Acme-Signature",
			body: `{"id":"e-1"}`, id: "e-1", kind: "moved",
			sign: func(secret string, at time.Time, body string) http.Header {
				return headers("X-Acme-Type",
					"moved",
					"X-Acme-Signature",
					"at="+unix(at)+",s="+hex.EncodeToString(mac(sha256.New, secret, unix(at), ".", body)))
			},
			raw: func(b []byte) string { return "s=" + hex.EncodeToString(b) },
		},
	}
}

func verifier(t testing.TB, p webhook.Provider, secrets ...string) *webhook.Verifier {
	t.Helper()
	v, err := webhook.NewVerifier(webhook.Config{Provider: p, Secrets: secrets})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// each runs a test on a good request of each provider.
func each(t *testing.T, f func(t *testing.T, s sample, v *webhook.Verifier)) {
	all := samples(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, all[name], verifier(t, all[name].provider, all[name].secret))
		})
	}
}

// refuses checks that a request is refused for a reason, and that the error quotes nothing that it
// should not.
func refuses(t testing.TB, v *webhook.Verifier, h http.Header, body, secret string, checks ...error) {
	t.Helper()
	e, err := v.VerifyAt(now, h, []byte(body))
	if err == nil || e != nil {
		t.Fatalf("accepted: %v, body %.60q: %+v", h, body, e)
	}
	var refused *webhook.Error
	if !errors.As(err, &refused) {
		t.Fatalf("%T is not an *Error", err)
	}
	if len(checks) > 0 && !slices.ContainsFunc(checks, func(c error) bool { return errors.Is(err, c) }) {
		t.Errorf("%v, want %v: %.300v", err, checks, h)
	}
	quiet(t, err, h, body, secret)
}

func quiet(t testing.TB, err error, h http.Header, body, secret string) {
	t.Helper()
	said := fmt.Sprintf("%v %+v %q", err, err, err)
	private := []string{body, secret}
	for _, lines := range h {
		private = append(private, lines...)
	}
	for _, p := range private {
		if len(p) > 5 && strings.Contains(said, p) {
			t.Errorf("the error quotes %q: %s", p, said)
		}
	}
}
