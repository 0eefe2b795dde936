package main

import (
	"fmt"
	"testing"
)

func TestRelayConfigOfPasses(t *testing.T) {
	t.Parallel()
	cfg, _, faults := parseRelay([]byte(`{"pass_on": true, "wait_for": ["standby-1", "standby-2"],
		"rates": [{"sink": "payments", "per_second": 0.5}, {"sink": "payments", "tenant": "acme", "per_second": 10, "in_flight": 4},
			{"sink": "payments", "ordering_key_prefix": "account-17:", "per_second": 1}, {"sink": "payments", "each_tenant": true, "in_flight": 2}]}`), nil)
	if fmt.Sprint(cfg.Rates) != "[{payments  false  0.5 0} {payments acme false  10 4} {payments  false account-17: 1 0} {payments  true  0 2}]" {
		t.Error(cfg.Rates)
	}
	if len(faults) > 0 || !cfg.PassOn || fmt.Sprint(cfg.WaitFor) != "[standby-1 standby-2]" {
		t.Errorf("%v %v: %v", cfg.PassOn, cfg.WaitFor, faults)
	}
	_, _, faults = parseRelay([]byte(`{"pass_on": "yes", "wait_for": "standby-1", "rates": [{"per_second": "1", "per": 2}]}`), nil)
	want := "[pass_on: must be true or false wait_for: must be a list of strings " +
		"rates[0].per_second: must be a number rates[0].per: is no field of this configuration]"
	if got := fmt.Sprint(faults); got != want {
		t.Errorf("%s", got)
	}
}

func TestRelayConfigOfSealKeys(t *testing.T) {
	t.Parallel()
	env := func(name string) string {
		return map[string]string{"GOOD": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "SHORT": "AAEC"}[name]
	}
	cfg, _, faults := parseRelay([]byte(`{"seal_keys": [{"id": 7, "key": {"env": "GOOD"}}]}`), env)
	if len(faults) > 0 || cfg.Sealer == nil {
		t.Fatalf("%v, %v", cfg.Sealer, faults)
	}
	sealed, err := cfg.Sealer.Seal([16]byte{1}, []byte("body"))
	if got, opened := cfg.Sealer.Open([16]byte{1}, sealed); err != nil || opened != nil || string(got) != "body" {
		t.Errorf("%q, %v, %v", got, err, opened)
	}
	cfg, _, faults = parseRelay([]byte(`{"seal_keys": [{"id": 0, "key": {"env": "GOOD"}}, {"id": 2, "key": {"env": "SHORT"}}, {"id": 3}]}`), env)
	want := "[seal_keys[0].id: 0 is not from 1 to 4294967295 seal_keys[1].key: must be 32 bytes in base64 seal_keys[2].key: must be there: 32 bytes in base64]"
	if got := fmt.Sprint(faults); got != want || cfg.Sealer != nil {
		t.Errorf("%s", got)
	}
}
