package webhook_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/webhook"
)

// Refused requests are logged at WARN with the reason as text, one line for each kind: anyone can
// send such requests.
func TestRefusedRequestsAreLoggedSeldom(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var text func() string
	e := r.serve(samples(t)["Stripe"], func(c *webhook.Config) { c.Logger, text = pgtest.Logged() })
	for range 5 {
		body := stripeBody("evt_1", "")
		e.do(e.request(e.sign("whsec_another", time.Now(), body), body)).want(t, 401, false)
		e.do(e.request(e.sign(e.secret, time.Now().Add(-time.Hour), body), body)).want(t, 401, false)
	}
	log := text()
	good := strings.Count(log, "level=WARN") == 2 &&
		strings.Contains(log, "bad signature") &&
		strings.Contains(log, "stale") &&
		!strings.Contains(log, "evt_1")
	if !good {
		t.Error(log)
	}
}

// In JSON, for example of a log, a refusal's reason is its text.
func TestRefusedAsJSON(t *testing.T) {
	b, err := json.Marshal(webhook.ReceiveEnd{Status: 401, Err: &webhook.Error{Provider: "stripe", Check: webhook.ErrSignature}})
	if err != nil || !strings.Contains(string(b), `"Err":"webhook: stripe: bad signature"`) {
		t.Errorf("%s, %v", b, err)
	}
}
