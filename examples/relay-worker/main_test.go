package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// The commands of README.md, with a database and a port of the test's own.
func TestRelayWorker(t *testing.T) {
	url := pgtest.URL(t)
	bin := filepath.Join(t.TempDir(), "onlyonce")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "../../cmd/onlyonce").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("relay.json")
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "relay.json")
	if err := os.WriteFile(config, bytes.Replace(text, []byte("127.0.0.1:8099"), []byte(address), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	relay := exec.Command(bin, "relay", "-config", config, "-postgres", url)
	relay.Stderr = &log
	if err := relay.Start(); err != nil {
		t.Fatal(err)
	}
	defer relay.Process.Kill()

	var stdout, stderr bytes.Buffer
	status := run(t.Context(), []string{"-postgres", url, "-listen", address, "-calls", "60"}, &stdout, &stderr)
	if status != 0 || !strings.Contains(stdout.String(), "60 calls committed") || !strings.Contains(stdout.String(), "60 calls applied; missing 0, not committed 0") {
		t.Errorf("status %d: %s%s", status, &stdout, &stderr)
	}
	if err := relay.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := relay.Wait(); err != nil {
		t.Errorf("the relay ended with %v:\n%s", err, &log)
	}
}

func TestUsage(t *testing.T) {
	t.Setenv(envPostgres, "")
	for args, want := range map[string]string{
		"-bogus": "-bogus", "-calls 1": "-postgres", "-postgres x -calls 0": "-calls", "-postgres x more": "more", "-postgres x -patience 1ms": "-patience",
		"-postgres x -listen nowhere": "-listen",
	} {
		var stdout, stderr bytes.Buffer
		if status := run(context.Background(), strings.Fields(args), &stdout, &stderr); status != 2 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%q: status %d, %s", args, status, &stderr)
		}
	}
}
