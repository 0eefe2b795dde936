//go:build unix

package devenv_test

import (
	"bufio"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/test/devenv"
)

// ask sends one line to a server and returns its answer's first line.
func ask(addr, line string, within time.Duration) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, within)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte(line + "\r\n")); err != nil {
		return "", err
	}
	return bufio.NewReader(conn).ReadString('\n')
}

func TestRedis(t *testing.T) {
	r, err := devenv.StartRedis(t.Context(), devenv.Options{})
	if errors.Is(err, devenv.ErrNoRedis) {
		unreachable(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Stop() }()
	must := func(line, want string) {
		t.Helper()
		if got, err := ask(r.Addr, line, 20*time.Second); err != nil || got != want+"\r\n" {
			t.Fatalf("%s: %q, %v", line, got, err)
		}
	}
	must("SET a 1", "+OK")
	must("EXISTS a", ":1")
	if err := r.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	var timeout net.Error
	if got, err := ask(r.Addr, "PING", 50*time.Millisecond); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("it answers while it is paused: %q, %v", got, err)
	}
	if err := r.Continue(t.Context()); err != nil {
		t.Fatal(err)
	}
	must("EXISTS a", ":1")
	if err := r.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := ask(r.Addr, "PING", time.Second); err == nil {
		t.Errorf("it answers after Kill: %q", got)
	}
	if err := r.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	must("EXISTS a", ":0")
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := ask(r.Addr, "PING", time.Second); err == nil {
		t.Error("it answers after Stop")
	}
}
