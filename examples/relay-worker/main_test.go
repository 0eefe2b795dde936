package main

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// The commands of README.md, with a database and a port of the test's own.
func TestRelayWorker(t *testing.T) {
	url := pgtest.URL(t)
	bin := filepath.Join(t.TempDir(), "onlyonce-relay")
	if out, err := exec.CommandContext(t.Context(), "go",
		"-C", "../../cmd/onlyonce-relay", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	text, err := os.ReadFile("relay.json")
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "relay.json")
	if err := os.WriteFile(config, bytes.Replace(text, []byte("127.0.0.1:8099"), []byte(address), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	relay := exec.Command(bin, "-config", config, "-postgres", url)
	relay.Stderr = &log
	if err := relay.Start(); err != nil {
		t.Fatal(err)
	}
	defer relay.Process.Kill()

	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	r := newRemote()
	server := &http.Server{Handler: r, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	const n = 60
	if err := enqueue(t.Context(), pool, "test", n); err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, pgtest.Patience(time.Minute), "all calls to be settled", func() bool {
		var pending int
		err := pool.QueryRow(t.Context(), `select count(*) from onlyonce.calls where state <> 'delivered'`).Scan(&pending)
		return err == nil && pending == 0
	})
	applied := map[string]bool{}
	for range len(r.first) {
		applied[<-r.first] = true
	}
	for i := range 2 * n { // those of odd numbers were rolled back
		if applied[fmt.Sprintf(`{"run": "test", "number": %d}`, i)] != (i%2 == 0) {
			t.Errorf("call %d: applied %v", i, i%2 != 0)
		}
	}
	if len(applied) != n || r.requests <= n {
		t.Errorf("%d calls applied, %d requests", len(applied), r.requests)
	}
	if err := relay.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := relay.Wait(); err != nil {
		t.Errorf("the relay ended with %v:\n%s", err, &log)
	}
}
