package main

import (
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/test/demo/command"
	"github.com/onlyonce/onlyonce/test/demo/commandtest"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestOwnLoop(t *testing.T) {
	var r result
	status, stderr := commandtest.JSON(t, &r, run, "-json", "-messages", "100", "-postgres", pgtest.URL(t), "-brokers", strings.Join(kafkatest.Fake(t), ","))
	if status != command.Good {
		t.Fatalf("exit status %d\n%s", status, stderr)
	}
	if !r.OK || r.Unique != 100 || r.Produced != 113 || r.Effects != 100 || r.Parked != conflicts || !r.Waited || r.Redelivered < 113 ||
		r.Duplicates < 113 {
		t.Errorf("%+v", r)
	}
	commandtest.Contains(t, stderr, "applied once") // a sentence for people
}

func TestUsage(t *testing.T) {
	commandtest.Refuses(t, run, map[string][]string{
		"-bogus":                    {"-bogus"},
		"-messages 1 -duplicates 2": {"-messages", "-duplicates"},
		"-brokers 127.0.0.1:1 -postgres postgres://127.0.0.1:1/x": {"kafka at 127.0.0.1:1", "postgres at postgres://127.0.0.1:1/x"},
	})
}
