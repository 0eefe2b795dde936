package webhooks

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	stripe "github.com/stripe/stripe-go/v84"
	stripewebhook "github.com/stripe/stripe-go/v84/webhook"
	svix "github.com/svix/svix-webhooks/go"
	"pgregory.net/rapid"

	"github.com/onlyonce/onlyonce/webhook"
)

const (
	standardSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	msgID          = "msg_p5jXN8AQM9LWM0D4loKWxJek"
)

func mac(secret string, parts ...string) []byte {
	m := hmac.New(sha256.New, []byte(secret))
	for _, p := range parts {
		m.Write([]byte(p))
	}
	return m.Sum(nil)
}

func standardMAC(t interface{ Fatal(...any) }, secret, id, at, body string) []byte {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		t.Fatal(err)
	}
	return mac(string(key), id, ".", at, ".", body)
}

func b64(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

func unix(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }

func headers(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

func verifier(t testing.TB, p webhook.Provider, secrets ...string) *webhook.Verifier {
	t.Helper()
	v, err := webhook.NewVerifier(webhook.Config{Provider: p, Secrets: secrets})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// The providers' own libraries sign, and we verify; we sign, and they verify. Their clocks are the
// machine's, so the time is now.

type standardLibrary struct {
	family string
	sign   func(id string, at time.Time, body []byte) (string, error)
	verify func(body []byte, h http.Header) error
}

func standardLibraries(t testing.TB, secret string) map[string]standardLibrary {
	t.Helper()
	a, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	b, err := svix.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]standardLibrary{
		"standard-webhooks": {"Webhook", a.Sign, a.Verify},
		"svix":              {"Svix", b.Sign, b.Verify},
		"svix, unbranded":   {"Webhook", b.Sign, b.Verify},
	}
}

func TestStandardLibraries(t *testing.T) {
	t.Parallel()
	v := verifier(t, webhook.Standard{}, standardSecret)
	for name, lib := range standardLibraries(t, standardSecret) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				id := rapid.StringMatching(`[!-\-/-~]{1,255}`).Draw(t, "id") // without the dot
				body := rapid.SliceOf(rapid.Byte()).Draw(t, "body")
				at := time.Now().Add(time.Duration(rapid.IntRange(-290, 290).Draw(t, "off")) * time.Second)
				signature, err := lib.sign(id, at, body)
				if err != nil {
					t.Fatal(err)
				}
				h := headers(lib.family+"-Id", id, lib.family+"-Timestamp", unix(at), lib.family+"-Signature", signature)
				e, err := v.Verify(h, body)
				good := err == nil &&
					e.ID == id &&
					string(e.Body) == string(body) &&
					e.Time.Unix() == at.Unix()
				if !good {
					t.Fatalf("theirs is refused here: %v %+v", err, e)
				}
				h.Set(lib.family+"-Signature", "v1,"+b64(standardMAC(t, standardSecret, id, unix(at), string(body))))
				if err := lib.verify(body, h); err != nil {
					t.Fatalf("ours is refused there: %v", err)
				}
			})
		})
	}
}

// Requests that the libraries accept and package webhook refuses on purpose.
func TestStricterThanStandardLibraries(t *testing.T) {
	t.Parallel()
	v := verifier(t, webhook.Standard{}, standardSecret)
	for name, lib := range standardLibraries(t, standardSecret) {
		at, body := time.Now(), `{"test": 2432232314}`
		sign := func(id, ts, body string) http.Header {
			return headers(lib.family+"-Id",
				id,
				lib.family+"-Timestamp",
				ts,
				lib.family+"-Signature",
				"v1,"+b64(standardMAC(t, standardSecret, id, unix(at), body)))
		}
		both := sign(msgID, unix(at), body)
		both.Add(lib.family+"-Id", "msg_other")
		junk := sign(msgID, unix(at), body)
		junk.Set(lib.family+"-Signature", junk.Get(lib.family+"-Signature")+",junk")
		for what, h := range map[string]http.Header{
			"time with a sign":       sign(msgID, "+"+unix(at), body),
			"time with zeros":        sign(msgID, "00"+unix(at), body),
			"two ids":                both,
			"words behind signature": junk,
			"id with a dot":          sign("msg.1", unix(at), body),
			"id with a space":        sign("msg 1", unix(at), body),
		} {
			if err := lib.verify([]byte(body), h); err != nil {
				t.Errorf("%s refuses %s too: %v", name, what, err)
			}
			if _, err := v.Verify(h, []byte(body)); err == nil {
				t.Errorf("%s is accepted", what)
			}
		}
	}
}

func TestStripeLibrary(t *testing.T) {
	t.Parallel()
	const secret, rolled = "whsec_test_secret", "whsec_rolled_secret"
	v := verifier(t, webhook.Stripe{}, rolled, secret)
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.StringMatching(`evt_[0-9A-Za-z]{1,40}`).Draw(t, "id")
		text := rapid.String().Draw(t, "text")
		body := fmt.Appendf(nil, `{"id":%q,"object":"event","api_version":%q,"type":"plan.created","data":{"object":{"id":"x","text":%s}}}`,
			id, stripe.APIVersion, quoted(text))
		at := time.Now().Add(time.Duration(rapid.IntRange(-290, 0).Draw(t, "off")) * time.Second)
		for _, s := range []string{secret, rolled} {
			p := stripewebhook.GenerateTestSignedPayload(&stripewebhook.UnsignedPayload{Payload: body, Secret: s, Timestamp: at})
			header := p.Header
			if s == rolled { // signed with the old and the new one, and with what counts for nothing, as in stripe-go's tests
				header += fmt.Sprintf(",v1=%x,v0=%x",
					stripewebhook.ComputeSignature(at, body, secret),
					stripewebhook.ComputeSignature(at, body, "v0"))
			}
			e, err := v.Verify(headers("Stripe-Signature", header), body)
			good := err == nil &&
				e.ID == id &&
				e.Type == "plan.created" &&
				e.Time.Unix() == at.Unix()
			if !good {
				t.Fatalf("theirs is refused here: %v %+v", err, e)
			}
			// A signature that cannot be parsed, next to a valid one, is skipped by the library and
			// by this package.
			if _, err := v.Verify(headers("Stripe-Signature", header+",v1=bad_signature"), body); err != nil {
				t.Fatalf("with a bad signature beside it: %v", err)
			}
			if e, err := stripewebhook.ConstructEvent(body, ourStripe(at, string(body), s), s); err != nil || e.ID != id {
				t.Fatalf("ours is refused there: %v", err)
			}
		}
		other := stripewebhook.GenerateTestSignedPayload(&stripewebhook.UnsignedPayload{
			Payload:   body,
			Secret:    secret,
			Timestamp: at,
			Scheme:    "v0",
		})
		if _, err := v.Verify(headers("Stripe-Signature", other.Header), body); err == nil {
			t.Fatal("scheme v0 is accepted")
		}
	})
	// Stripe's library accepts upper-case digits.
	body := []byte(`{"id":"evt_1"}`)
	p := stripewebhook.GenerateTestSignedPayload(&stripewebhook.UnsignedPayload{Payload: body, Secret: secret})
	upper := fmt.Sprintf("t=%d,v1=%s", p.Timestamp.Unix(), strings.ToUpper(fmt.Sprintf("%x", p.Signature)))
	if err := stripewebhook.ValidatePayload(body, upper, secret); err != nil {
		t.Error(err)
	}
	if _, err := v.Verify(headers("Stripe-Signature", upper), body); err == nil {
		t.Error("upper-case digits are accepted")
	}
}

// ourStripe is a Stripe-Signature that this test has made.
func ourStripe(at time.Time, body, secret string) string {
	return "t=" + unix(at) + ",v1=" + hex.EncodeToString(mac(secret, unix(at), ".", body))
}

func quoted(s string) []byte {
	b, _ := json.Marshal(s)
	return b
}
