package main

import (
	"fmt"
	"testing"
)

func TestRelayConfigOfPasses(t *testing.T) {
	t.Parallel()
	cfg, _, faults := parseRelay([]byte(`{"pass_on": true, "wait_for": ["standby-1", "standby-2"], "listen": true}`), nil)
	if len(faults) > 0 || !cfg.PassOn || fmt.Sprint(cfg.WaitFor) != "[standby-1 standby-2]" || !cfg.Listen {
		t.Errorf("%v %v %v: %v", cfg.PassOn, cfg.WaitFor, cfg.Listen, faults)
	}
	_, _, faults = parseRelay([]byte(`{"pass_on": "yes", "wait_for": "standby-1", "listen": 1}`), nil)
	want := "[pass_on: must be true or false wait_for: must be a list of strings listen: must be true or false]"
	if got := fmt.Sprint(faults); got != want {
		t.Errorf("%s", got)
	}
}
