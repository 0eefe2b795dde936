package metrics

import (
	"strings"
	"testing"
)

func TestWrite(t *testing.T) {
	t.Parallel()
	var r Registry
	r.Add(OutboxAttempts, 1, "mail", "delivered")
	r.Add(OutboxAttempts, 2, "mail", "delivered")
	r.Add(OutboxAttempts, 1, "a\"b\\c\nd\xff", "retry")
	for _, seconds := range []float64{.005, .006, 30, 9000} {
		r.Observe(OutboxDelay, seconds, "mail")
	}
	samples := append(r.Samples(), Sample{Metric: OldestTransaction, Values: []string{"shop"}, Value: 1.5})
	var b strings.Builder
	if err := Write(&b, samples); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"# TYPE onlyonce_outbox_attempts_total counter\n" +
			`onlyonce_outbox_attempts_total{sink="a\"b\\c\nd` + "\uFFFD" + `",outcome="retry"} 1` + "\n" +
			`onlyonce_outbox_attempts_total{sink="mail",outcome="delivered"} 3` + "\n# HELP",
		"# TYPE onlyonce_outbox_delay_seconds histogram\n" +
			`onlyonce_outbox_delay_seconds_bucket{sink="mail",le="0.005"} 1` + "\n" +
			`onlyonce_outbox_delay_seconds_bucket{sink="mail",le="0.01"} 2` + "\n",
		`onlyonce_outbox_delay_seconds_bucket{sink="mail",le="30"} 3` + "\n",
		`onlyonce_outbox_delay_seconds_bucket{sink="mail",le="3600"} 3` + "\n" +
			`onlyonce_outbox_delay_seconds_bucket{sink="mail",le="+Inf"} 4` + "\n" +
			`onlyonce_outbox_delay_seconds_sum{sink="mail"} 9030.011` + "\n" +
			`onlyonce_outbox_delay_seconds_count{sink="mail"} 4` + "\n",
		"# TYPE onlyonce_oldest_transaction_seconds gauge\n" + `onlyonce_oldest_transaction_seconds{database="shop"} 1.5` + "\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("there is no\n%s\nin\n%s", want, b.String())
		}
	}
}
