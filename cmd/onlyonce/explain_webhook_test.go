package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/webhook"
)

// receives returns the receiver of an endpoint.
func (f *fixture) receives(endpoint string, provider webhook.Provider, cfg webhook.Config) http.Handler {
	f.t.Helper()
	cfg.Name = endpoint
	cfg.Provider = provider
	cfg.Secrets = []string{hookSecret}
	r, err := webhook.New(f.pool, cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

const hookSecret = "whsec_0123456789abcdef0123456789abcdef"

func mac(signed string) string {
	h := hmac.New(sha256.New, []byte(hookSecret))
	h.Write([]byte(signed))
	return hex.EncodeToString(h.Sum(nil))
}

// hooked sends an event in its provider's form.
func (f *fixture) hooked(h http.Handler, body string, header map[string]string) {
	f.t.Helper()
	req := httptest.NewRequest(http.MethodPost, "/hooks", strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	for k, v := range header {
		req.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	if w.Code != http.StatusOK {
		f.t.Fatalf("%d %s", w.Code, w.Body)
	}
}

func stripe(body string) map[string]string {
	at := fmt.Sprint(time.Now().Unix())
	return map[string]string{"Stripe-Signature": "t=" + at + ",v1=" + mac(at+"."+body)}
}

func github(id, body string) map[string]string {
	return map[string]string{"X-Hub-Signature-256": "sha256=" + mac(body), "X-GitHub-Delivery": id, "X-GitHub-Event": "push"}
}

// W1: a webhook that an endpoint has stored is found by the sender's id and the endpoint's scope
// alone.
func TestExplainWebhookByItsSendersID(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pay := f.receives("stripe", webhook.Stripe{}, webhook.Config{})
	code := f.receives("code", webhook.GitHub{}, webhook.Config{})
	acme := f.receives("acme", webhook.HMAC{Name: "acme", SignatureHeader: "X-Acme-Signature", IDHeader: "X-Acme-Id"}, webhook.Config{})
	body := `{"id":"evt_1","type":"invoice.paid"}`
	f.hooked(pay, body, stripe(body))
	f.hooked(code, `{"a":1}`, github("d-2", `{"a":1}`))
	f.hooked(acme, `{"b":1}`, map[string]string{"X-Acme-Signature": mac(`{"b":1}`), "X-Acme-Id": "a-3"})
	f.run("explain", "evt_1", "-scope", "webhook/stripe").want(
		t,
		statusGood,
		"is remembered",
		`"stripe/stripe/evt_1"`,
		"It is stored (webhook.stripe/",
	)
	f.run("explain", "d-2", "-scope", "webhook/code").want(t, statusGood, "is remembered", `"code/github/d-2"`)
	// Without a scope, all scopes are tried.
	f.run("explain", "evt_1").want(t, statusGood, "is remembered", `"stripe/stripe/evt_1"`)
	f.run("explain", "evt_9").want(t, statusFailed, `nothing is stored of the id "evt_9" in any scope`, "webhook/code", "webhook/stripe")
	f.run("explain", "code/github/d-2", "-scope", "webhook/code").want(t, statusGood, "is remembered")
	f.run("explain", "a-3", "-scope", "webhook/acme").want(t, statusGood, "is remembered", `"acme/acme/a-3"`) // known by what is stored
	f.run("explain", "a-3", "-scope", "webhook/acme", "-provider", "acme").want(t, statusGood, "is remembered")
	f.run("explain", "evt_9", "-scope", "webhook/stripe").want(
		t,
		statusGood,
		"no segment of the inbox holds it",
		"another provider than",
		"-provider",
	)
	f.run("explain", "d-2", "-scope", "webhook/stripe").want(t, statusGood, "no segment of the inbox holds it")
	f.run("explain", "a-3", "-scope", "stock", "-provider", "acme").want(t, statusEnvironment, "-provider goes with")
}

// parked show prints the id that the sender knows.
func TestParkedShowOfAWebhook(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	stale := f.receives("code", webhook.GitHub{}, webhook.Config{
		Mode: webhook.Inline,
		Handler: consumer.HandlerFunc(func(context.Context, consumer.Tx, *consumer.Message) error {
			return errors.Join(webhook.ErrOvertaken)
		}),
	})
	f.hooked(stale, `{"a":1}`, github("d-2", `{"a":1}`))
	out := f.run("parked", "show", "-id", one[string](f, `select id::text from onlyonce.parked`)).want(t, statusGood, "github")
	if !strings.Contains(out.out, "d-2") || strings.Contains(out.out, "code/github/d-2") {
		t.Errorf("%s", out.out)
	}
}
