package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/internal/devenv/kafkatest"
	"github.com/onlyonce/onlyonce/internal/devenv/pgtest"
)

func TestOwnLoop(t *testing.T) {
	url := pgtest.URL(t)
	var stdout, stderr bytes.Buffer
	status := run(t.Context(), []string{"-json", "-messages", "100", "-postgres", url, "-brokers", strings.Join(kafkatest.Fake(t), ",")}, &stdout, &stderr)
	if status != 0 {
		t.Fatalf("exit status %d\n%s", status, &stderr)
	}
	var r result
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v: %s", err, &stdout)
	}
	if !r.OK || r.Unique != 100 || r.Produced != 113 || r.Effects != 100 || r.Parked != conflicts || !r.Waited || r.Redelivered < 113 ||
		r.Duplicates < 113 {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(stderr.String(), "applied once") {
		t.Errorf("no sentence for people:\n%s", &stderr)
	}
}

func TestUsage(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"-bogus", "-bogus"},
		{"-messages 1 -duplicates 2", "-messages"},
		{"-messages 1 -duplicates 2", "-duplicates"},
		{"-brokers 127.0.0.1:1 -postgres postgres://127.0.0.1:1/x", "kafka at 127.0.0.1:1"},
		{"-brokers 127.0.0.1:1 -postgres postgres://127.0.0.1:1/x", "postgres at postgres://127.0.0.1:1/x"},
	} {
		var stdout, stderr bytes.Buffer
		if status := run(context.Background(), strings.Fields(c.args), &stdout, &stderr); status != 2 {
			t.Errorf("%s: exit status %d", c.args, status)
		}
		if !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%s: no word of %s in %s", c.args, c.want, &stderr)
		}
	}
}
