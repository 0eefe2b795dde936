//go:build unix

package main

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/test/devenv"
)

// envMain makes the test binary the program under test.
const envMain = "ONLYONCE_TEST_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(envMain) != "" {
		_ = os.Unsetenv(envMain)
		os.Exit(run(os.Args[1:], os.Stderr))
	}
	os.Exit(m.Run())
}

// program prepares the program with a temporary directory of its own, so that
// what it leaves behind can be seen.
func program(t *testing.T, args ...string) (cmd *exec.Cmd, tmp string, stderr *bytes.Buffer) {
	t.Helper()
	tmp, err := os.MkdirTemp("/tmp", "onlyonce-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	if err := os.Chmod(tmp, 0o777); err != nil {
		t.Fatal(err)
	}
	stderr = &bytes.Buffer{}
	cmd = exec.Command(os.Args[0], args...)
	cmd.Stderr = stderr
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "ONLYONCE_") })
	cmd.Env = append(cmd.Env, envMain+"=1", "TMPDIR="+tmp)
	return cmd, tmp, stderr
}

func wantStatus(t *testing.T, cmd *exec.Cmd, want int, stderr *bytes.Buffer) {
	t.Helper()
	if got := cmd.ProcessState.ExitCode(); got != want {
		t.Errorf("exit status %d, want %d; standard error:\n%s", got, want, stderr)
	}
}

func wantClean(t *testing.T, tmp string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(tmp, "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestCommandHasTheServer(t *testing.T) {
	t.Parallel()
	cmd, tmp, stderr := program(t, "-postgres", "--", "sh", "-c", `echo "$ONLYONCE_POSTGRES_URL"; exit 7`)
	out, _ := cmd.Output()
	wantStatus(t, cmd, 7, stderr)
	if !strings.HasPrefix(string(out), "postgres://") {
		t.Errorf("the command saw %q", out)
	}
	if !strings.HasPrefix(stderr.String(), "postgres: ") || strings.Count(stderr.String(), "\n") != 1 {
		t.Errorf("standard error:\n%s", stderr)
	}
	wantClean(t, tmp)
}

func TestCommandIsKilled(t *testing.T) {
	t.Parallel()
	cmd, tmp, stderr := program(t, "-postgres", "--", "sh", "-c", `kill -9 $$`)
	_ = cmd.Run()
	wantStatus(t, cmd, 128+9, stderr)
	wantClean(t, tmp)
}

func TestCommandIsNotThere(t *testing.T) {
	t.Parallel()
	cmd, tmp, stderr := program(t, "-postgres", "--", "/no/such/command")
	_ = cmd.Run()
	wantStatus(t, cmd, 2, stderr)
	if !strings.Contains(stderr.String(), "/no/such/command") {
		t.Errorf("standard error:\n%s", stderr)
	}
	wantClean(t, tmp)
}

func TestSignals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		signal syscall.Signal
		script string
		want   int
	}{
		// Sent to this program alone: it is passed on.
		{"SIGINT, heeded", syscall.SIGINT, `trap 'exit 5' INT; touch "$TMPDIR/up"; while :; do sleep 0.05; done`, 5},
		{"SIGTERM", syscall.SIGTERM, `touch "$TMPDIR/up"; exec sleep 1000`, 128 + 15},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cmd, tmp, stderr := program(t, "-postgres", "--", "sh", "-c", c.script)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			up := filepath.Join(tmp, "up")
			waitFor(t, up)
			if err := cmd.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			wantStatus(t, cmd, c.want, stderr)
			if err := os.Remove(up); err != nil {
				t.Fatal(err)
			}
			wantClean(t, tmp)
		})
	}
}

// An interrupt while a server starts ends the start.
func TestSignalDuringStart(t *testing.T) {
	t.Parallel()
	cmd, tmp, stderr := program(t, "-postgres", "--", "true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, filepath.Join(tmp, "onlyonce-pg-*"))
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	wantStatus(t, cmd, 2, stderr)
	if !strings.Contains(stderr.String(), "interrupted") {
		t.Errorf("standard error:\n%s", stderr)
	}
	wantClean(t, tmp)
}

func TestNoRealBroker(t *testing.T) {
	t.Parallel()
	if conn, err := net.Dial("unix", "/var/run/docker.sock"); err == nil {
		_ = conn.Close()
		t.Skip("a Docker engine runs here, and may have a broker")
	}
	without := []string{"JAVA_HOME=/no/java/here", "DOCKER_HOST=tcp://127.0.0.1:1"}

	cmd, _, stderr := program(t, "-kafka", "--", "sh", "-c", `test -z "${ONLYONCE_KAFKA_BROKERS+set}"`)
	cmd.Env = append(cmd.Env, without...)
	_ = cmd.Run()
	wantStatus(t, cmd, 0, stderr)
	if want := "no real broker, going on without " + devenv.EnvKafkaBrokers; !strings.Contains(stderr.String(), want) {
		t.Errorf("standard error:\n%s", stderr)
	}

	cmd, _, stderr = program(t, "-kafka", "-require-real", "--", "true")
	cmd.Env = append(cmd.Env, without...)
	_ = cmd.Run()
	wantStatus(t, cmd, 2, stderr)
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{},
		{"--", "true"},            // neither server
		{"-postgres"},             // no command
		{"-oracle", "--", "true"}, // no such flag
	} {
		var stderr bytes.Buffer
		if got := run(args, &stderr); got != 2 || !strings.Contains(stderr.String(), "usage: run") {
			t.Errorf("%q: status %d, standard error %q", args, got, stderr.String())
		}
	}
}

func waitFor(t *testing.T, pattern string) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("not within 30 s: %s", pattern)
		case <-tick.C:
		}
	}
}
