package payments

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/onlyonce/onlyonce/idempotency"
)

// What Reconcile answers about a call: its result if the provider has paid, or refused, under the
// key; that there was none; and an error if the provider does not say.
func TestPayoutOutcome(t *testing.T) {
	answers := map[string]int{"/payouts/paid": 200, "/payouts/refused": 402, "/payouts/none": 404, "/payouts/busy": 409}
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(answers[r.URL.Path])
		_, _ = w.Write([]byte(r.URL.Path))
	}))
	a := &API{cfg: Config{Provider: provider.URL}, provider: provider.Client()}
	for key, want := range map[string]idempotency.StepOutcome{"paid": idempotency.StepTookEffect, "refused": idempotency.StepTookEffect,
		"none": idempotency.StepNoEffect, "busy": idempotency.StepUnknown} {
		outcome, said, err := a.payoutOutcome(t.Context(), "payout", key)
		wrong := outcome != want ||
			(err != nil) != (want == idempotency.StepUnknown) ||
			want == idempotency.StepTookEffect && string(said) != "/payouts/"+key
		if wrong {
			t.Errorf("%s: %v %s %v", key, outcome, said, err)
		}
	}
	provider.Close()
	if outcome, _, err := a.payoutOutcome(t.Context(), "payout", "paid"); outcome != idempotency.StepUnknown || err == nil {
		t.Errorf("without the provider: %v %v", outcome, err)
	}
}
