package outbox_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
)

func TestConfigFaultsAllAtOnce(t *testing.T) {
	t.Parallel()
	bad := newScripted(accept)
	bad.limits = outbox.Limits{}
	short := newScripted(accept)
	short.name = "short"
	short.limits = outbox.Limits{KeyWindow: time.Second, Timeout: time.Second}
	nameless := newScripted(accept)
	nameless.name = ""
	_, err := outbox.NewRelay(nil, outbox.RelayConfig{
		Sinks: []outbox.Sink{bad, bad, nil, short, nameless}, Concurrency: -1, PollInterval: time.Hour, LeaseTTL: time.Millisecond,
		Backoff: dedupe.Backoff{Min: time.Hour, Max: time.Minute}, Retention: time.Second, DrainTimeout: -1,
		Rates: []outbox.Rate{
			{Sink: "payments", PerSecond: 1},
			{Sink: "payments", PerSecond: 2},
			{Sink: "mail", PerSecond: 1},
			{Sink: "short"},
			{Sink: "short", Tenant: "a", PerSecond: -1},
			{Sink: "short", Tenant: "b", InFlight: -1},
			{Sink: "short", OrderingKeyPrefix: "account-17", PerSecond: 1},
			{Sink: "short", OrderingKeyPrefix: "a:", Tenant: "b", PerSecond: 1},
			{Sink: "short", Tenant: "*", PerSecond: 1},
			{Sink: "short", EachTenant: true, Tenant: "b", PerSecond: 1},
		},
	})
	if !errors.Is(err, outbox.ErrConfig) {
		t.Fatal(err)
	}
	for _, want := range []string{
		"pool: must not be nil", "Concurrency: is -1", "PollInterval: is 1h0m0s",
		"LeaseTTL: is 1ms", "Backoff.Max: is 1m0s", "Retention: is 1s", "DrainTimeout: is -1ns",
		"Sinks[0]: payments: Limits.Timeout", `Sinks[1]: a second sink named "payments"`,
		"Sinks[2]: must not be nil", "Sinks[3]: short: Limits.KeyWindow, 1s, leaves no time",
		"Sinks[4]: its name", `Rates[1]: a second rate of sink "payments"`,
		`Rates[2]: "mail" is none of Sinks`, "Rates[3]: must have PerSecond, InFlight, or both",
		"Rates[4].PerSecond: must be above 0", "Rates[5].InFlight: must be from 1",
		`Rates[6].OrderingKeyPrefix: "account-17" must end with its first colon or slash`,
		"Rates[7]: must have at most one of", `Rates[8].Tenant: "*" is no name`,
		"Rates[9]: must have at most one of",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("nothing says %q in:\n%v", want, err)
		}
	}
	if _, err := outbox.NewRelay(nil, outbox.RelayConfig{}); !strings.Contains(err.Error(), "Sinks: must not be empty") {
		t.Error(err)
	}
}

func TestRetrySchedule(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cfg := testConfig(newScripted(accept))
	cfg.Backoff = dedupe.Backoff{Min: time.Second, Max: 10 * time.Minute}
	relay := r.relay(cfg)
	for attempt, centre := range map[int]time.Duration{
		1:       time.Second,
		2:       2 * time.Second,
		5:       16 * time.Second,
		11:      10 * time.Minute,
		1 << 30: 10 * time.Minute,
	} {
		for range 50 {
			if d := relay.RetryDelay(attempt, 0); d < centre/2 || d > centre*3/2 {
				t.Errorf("attempt %d: %v, want about %v", attempt, d, centre)
			}
		}
	}
	if d := relay.RetryDelay(1, time.Minute); d != time.Minute {
		t.Errorf("asked for a minute: %v", d)
	}
	if d := relay.RetryDelay(1, 48*time.Hour); d != time.Hour {
		t.Errorf("asked for two days: %v", d)
	}
}
