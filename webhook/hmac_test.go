package webhook_test

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/webhook"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

func TestHMACFaults(t *testing.T) {
	t.Parallel()
	good := func() webhook.HMAC {
		return webhook.HMAC{Name: "acme", SignatureHeader: "X-Sig", Time: "X-Time", Layout: "{time}.{body}", IDHeader: "X-Id"}
	}
	if _, err := good().Scheme(); err != nil {
		t.Fatal(err)
	}
	const (
		apart = "must be set apart"
		once  = "must have {body} once"
		timed = "must have {time} if Time is set"
	)
	for i, c := range []struct {
		change func(*webhook.HMAC)
		want   string
	}{
		{func(h *webhook.HMAC) { h.Name = "" }, "HMAC.Name"},
		{func(h *webhook.HMAC) { h.Name = "a b" }, "HMAC.Name"},
		{func(h *webhook.HMAC) { h.Algorithm = scheme.Ed25519 }, "HMAC.Algorithm"},
		{func(h *webhook.HMAC) { h.Algorithm = 9 }, "HMAC.Algorithm"},
		{func(h *webhook.HMAC) { h.Encoding = 2 }, "HMAC.Encoding"},
		{func(h *webhook.HMAC) { h.SignatureHeader = "" }, "HMAC.SignatureHeader"},
		{func(h *webhook.HMAC) { h.SignatureHeader = "x:y" }, "HMAC.SignatureHeader"},
		{func(h *webhook.HMAC) { h.IDHeader = "x-sig" }, "not the signature's"},
		{func(h *webhook.HMAC) { h.TypeHeader = "a b" }, "must be a header's name"},
		{func(h *webhook.HMAC) { h.Prefix = "v\n" }, "HMAC.Prefix"},
		{func(h *webhook.HMAC) {
			h.Prefix = "v1="
			h.SignaturePart = "v1"
		}, "HMAC.Prefix"},
		{func(h *webhook.HMAC) { h.SignaturePart = "v=1" }, "HMAC.SignaturePart and Time"},
		{func(h *webhook.HMAC) {
			h.SignaturePart = "t"
			h.Time = "t"
		}, "HMAC.SignaturePart and Time"},
		{func(h *webhook.HMAC) { h.Time = "X-Sig" }, "HMAC.Time"},
		{func(h *webhook.HMAC) { h.TimeUnit = time.Microsecond }, "HMAC.TimeUnit"},
		{func(h *webhook.HMAC) { h.Time = "" }, timed},
		{func(h *webhook.HMAC) { h.Layout = "" }, timed},
		{func(h *webhook.HMAC) { h.Layout = "{time}." }, once},
		{func(h *webhook.HMAC) { h.Layout = "{time}.{body}{body}" }, once},
		{func(h *webhook.HMAC) { h.Layout = "{time}.{BODY}" }, once},
		{func(h *webhook.HMAC) { h.Layout = "{time}{body}" }, apart},
		{func(h *webhook.HMAC) { h.Layout = "{body}{time}" }, apart},
		{func(h *webhook.HMAC) { h.Layout = "{body}{time}." }, apart},
		{func(h *webhook.HMAC) { h.Layout = ".{time}{id}.{body}" }, apart},
		{func(h *webhook.HMAC) { h.Layout = "{time}0{body}" }, "next to a digit"},
		{func(h *webhook.HMAC) { h.Layout = "{body}v0{time}" }, "next to a digit"},
		{func(h *webhook.HMAC) { h.Layout = "{time}.{time}.{body}" }, "each once"},
		{func(h *webhook.HMAC) { h.Layout = "{time}.{body}.{time}" }, "each once"},
		{func(h *webhook.HMAC) { h.Layout = "{time}.{url}.{body}" }, "besides {body}"},
		{func(h *webhook.HMAC) { h.Layout = "{time}.{{body}" }, "HMAC.Layout"},
		{func(h *webhook.HMAC) { h.Layout = "{time}.}{body}" }, "without braces"},
		{func(h *webhook.HMAC) { h.Layout = "{time}.\n{body}" }, "printable"},
		{func(h *webhook.HMAC) {
			h.IDHeader = ""
			h.IDMember = ""
		}, "one must be set"},
		{func(h *webhook.HMAC) { h.IDMember = "id" }, "one must be set"},
		{func(h *webhook.HMAC) {
			h.IDHeader = ""
			h.IDMember = "id"
			h.Layout = "{id}.{time}.{body}"
		}, "{id} needs IDHeader"},
		{func(h *webhook.HMAC) {
			h.TypeHeader = "X-Type"
			h.TypeMember = "type"
		}, "exclude each other"},
	} {
		h := good()
		c.change(&h)
		_, err := webhook.NewVerifier(webhook.Config{Provider: h, Secrets: []string{"0123456789abcdef"}})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d: nothing says %q: %v", i, c.want, err)
		}
	}
}

// The providers with an HMAC, declared: the same requests, the same events.
func TestHMACDeclaresWhatTheProvidersDo(t *testing.T) {
	t.Parallel()
	all := samples(t)
	for name, h := range map[string]webhook.HMAC{
		"Stripe": {
			Name:            "stripe",
			SignatureHeader: "Stripe-Signature",
			SignaturePart:   "v1",
			Time:            "t",
			Layout:          "{time}.{body}",
			IDMember:        "id",
			TypeMember:      "type",
		},
		"GitHub": {
			Name:            "github",
			SignatureHeader: "X-Hub-Signature-256",
			Prefix:          "sha256=",
			IDHeader:        "X-GitHub-Delivery",
			TypeHeader:      "X-GitHub-Event",
		},
		"Shopify": {
			Name:            "shopify",
			SignatureHeader: "X-Shopify-Hmac-SHA256",
			Encoding:        scheme.Base64,
			IDHeader:        "X-Shopify-Webhook-Id",
			TypeHeader:      "X-Shopify-Topic",
		},
		"Slack": {
			Name:            "slack",
			SignatureHeader: "X-Slack-Signature",
			Prefix:          "v0=",
			Time:            "X-Slack-Request-Timestamp",
			Layout:          "v0:{time}:{body}",
			IDMember:        "event_id",
		},
	} {
		s := all[name]
		for _, secret := range []string{s.secret, "another secret, 16"} {
			header := s.sign(secret, now, s.body)
			want, wantErr := verifier(t, s.provider, s.secret).VerifyAt(now, header, []byte(s.body))
			got, err := verifier(t, h, s.secret).VerifyAt(now, header, []byte(s.body))
			if (err == nil) != (wantErr == nil) {
				t.Errorf("%s: %v and %v", name, err, wantErr)
			} else if wrong := err == nil &&
				(got.ID != want.ID || !got.Time.Equal(want.Time) || got.IDSigned != want.IDSigned || got.Provider != want.Provider); wrong {
				t.Errorf("%s: %+v and %+v", name, got, want)
			}
		}
	}
}

// Whatever the layout: of all short requests that make the same bytes, at most one is accepted with
// their signature.
func TestHMACBorders(t *testing.T) {
	t.Parallel()
	const secret = "0123456789abcdef"
	words := func(n int) []string {
		all := []string{""}
		for from, i := 0, 0; i < n; i++ {
			to := len(all)
			for _, w := range all[from:to] {
				for _, c := range "1.:-" {
					all = append(all, w+string(c))
				}
			}
			from = to
		}
		return all
	}
	type request struct{ id, time, body string }
	for _, layout := range []string{
		"{id}.{time}.{body}",
		"{time}.{id}.{body}",
		"v0:{time}:{id}:{body}",
		"{id}.{body}.{time}",
		"{body}.{time}.{id}",
		"{id}.{body}",
		"1.{id}-1{body}",
		"{body}:-{id}1",
	} {
		p := webhook.HMAC{Name: "acme", SignatureHeader: "X-Sig", Layout: layout, IDHeader: "X-Id"}
		times := []string{""}
		if strings.Contains(layout, "{time}") {
			p.Time = "X-Time"
			times = []string{"1", "11", "111"}
		}
		v := verifier(t, p, secret)
		same := map[string][]request{}
		for _, id := range words(3)[1:] {
			for _, at := range times {
				for _, body := range words(3) {
					b := strings.NewReplacer("{id}", id, "{time}", at, "{body}", body).Replace(layout)
					same[b] = append(same[b], request{id, at, body})
				}
			}
		}
		shared := 0
		accepted := 0
		for bytes, requests := range same {
			if len(requests) < 2 {
				continue
			}
			shared++
			sig := hex.EncodeToString(mac(sha256.New, secret, bytes))
			n := 0
			for _, r := range requests {
				if _, err := v.VerifyAt(
					time.Unix(50, 0),
					headers("X-Id", r.id, "X-Time", r.time, "X-Sig", sig),
					[]byte(r.body),
				); err == nil {
					n++
				}
			}
			accepted += n
			if n > 1 {
				t.Fatalf("%s: %q is the signature of %d requests among %+v", layout, bytes, n, requests)
			}
		}
		if shared == 0 || accepted == 0 {
			t.Errorf("%s: %d shared, %d accepted: the test tests nothing", layout, shared, accepted)
		}
	}
}
