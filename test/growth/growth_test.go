package main

import (
	"testing"
	"time"
)

// Every scene can be filled, and every statement is one of the source and takes the arguments that
// it is given. At this size each passes.
func TestScenes(t *testing.T) {
	failed, err := run(t.Context(), "../..", 3000, time.Minute, "")
	if err != nil || failed > 0 {
		t.Errorf("%d statements do not pass, %v", failed, err)
	}
}
