//go:build unix

package supervise_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/onlyonce/onlyonce/internal/rig/supervise"
)

func TestCloseStopsAndRemoves(t *testing.T) {
	t.Parallel()
	sup := start(t)
	srv := startServer(t, sup, `echo up > up; exec sleep 1000`)
	eventually(t, "the server runs in the directory", func() bool { return exists(filepath.Join(sup.Dir(), "up")) })
	if err := sup.Close(); err != nil {
		t.Fatal(err)
	}
	if alive(srv.PID) {
		t.Error("the server is alive after Close")
	}
	if exists(sup.Dir()) {
		t.Error("the directory is there after Close")
	}
	if err := sup.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if err := sup.Kill(t.Context()); err == nil {
		t.Error("Kill after Close reports no error")
	}
	<-srv.Exited()
}

// A server that does not heed SIGTERM is killed, with its process group.
func TestCloseKillsTheStubborn(t *testing.T) {
	t.Parallel()
	sup := start(t)
	srv := startServer(t, sup, `trap '' TERM; echo $$ > up; while :; do sleep 1000; done`)
	eventually(t, "the trap is set", func() bool { return exists(filepath.Join(sup.Dir(), "up")) })
	if err := sup.Close(); err != nil {
		t.Fatal(err)
	}
	if alive(srv.PID) {
		t.Error("the server is alive after Close")
	}
}

func TestKillAndStartAgain(t *testing.T) {
	t.Parallel()
	sup := start(t)
	for range 2 {
		srv := startServer(t, sup, `exec sleep 1000`)
		if err := sup.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if alive(srv.PID) {
			t.Error("the server is alive after Kill")
		}
		<-srv.Exited()
		if want := "signal: killed"; srv.Status() != want {
			t.Errorf("status %q, want %q", srv.Status(), want)
		}
	}
	if err := sup.Kill(t.Context()); err == nil || !strings.Contains(err.Error(), "not running") {
		t.Errorf("Kill without a server: %v", err)
	}
}

// The backends of a postmaster lead sessions of their own, which a signal to the
// process group does not reach.
func TestKillReachesEscapedChildren(t *testing.T) {
	t.Parallel()
	needLinux(t)
	sup := start(t)
	startServer(t, sup, `setsid sh -c 'echo $$ > escaped.tmp; mv escaped.tmp escaped; exec sleep 1000' & wait`)
	file := filepath.Join(sup.Dir(), "escaped")
	eventually(t, "the child has escaped", func() bool { return exists(file) })
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if err := sup.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if alive(pid) {
		t.Error("the escaped child is alive after Kill")
	}
}

func TestServerThatEnds(t *testing.T) {
	t.Parallel()
	sup := start(t)
	srv := startServer(t, sup, `echo out of order >&2; exit 3`)
	<-srv.Exited()
	if want := "exit status 3"; srv.Status() != want {
		t.Errorf("status %q, want %q", srv.Status(), want)
	}
	got := sup.LogTail("server.log")
	want := "out of order"
	if got != want {
		t.Errorf("log %q, want %q", got, want)
	}
	startServer(t, sup, `exec sleep 1000`) // the place is free again
}

func TestRun(t *testing.T) {
	t.Parallel()
	sup := start(t)
	out, err := sup.Run(t.Context(), shell(`pwd`))
	if err != nil || out != sup.Dir() {
		t.Errorf("pwd = %q, %v; want %q", out, err, sup.Dir())
	}
	out, err = sup.Run(t.Context(), shell(`echo no; exit 4`))
	if err == nil || !strings.Contains(err.Error(), "exit status 4") || out != "no" {
		t.Errorf("output %q, error %v", out, err)
	}
	if _, err := sup.Run(t.Context(), supervise.Command{Argv: []string{"/no/such/program"}}); err == nil {
		t.Error("running a program that is not there reports no error")
	}
	out, err = sup.Run(t.Context(), shell(`env`))
	if err != nil || strings.Contains(out, "ONLYONCE_DEVENV_SUPERVISOR") {
		t.Errorf("the variable that makes a supervisor is passed on: %v", err)
	}
}

// Killing the supervisor itself takes its server along.
func TestSupervisorKilled(t *testing.T) {
	t.Parallel()
	needLinux(t)
	sup := start(t)
	srv := startServer(t, sup, `exec sleep 1000`)
	out, err := sup.Run(t.Context(), shell(`echo $PPID`))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-srv.Exited()
	eventually(t, "the server is gone", func() bool { return !alive(srv.PID) })
	if err := sup.Close(); err == nil {
		t.Error("Close of a killed supervisor reports no error")
	}
	if err := os.RemoveAll(sup.Dir()); err != nil {
		t.Fatal(err)
	}
}

func TestNoPlaceForTheDirectory(t *testing.T) {
	t.Parallel()
	_, err := supervise.Start(t.Context(), supervise.Config{Bases: []string{"/no/such/place"}, Prefix: "x-"})
	if err == nil || !strings.Contains(err.Error(), "/no/such/place") {
		t.Errorf("error %v", err)
	}
}

// Under root, a directory that the server's user cannot reach is passed over.
func TestOwnerMustReachTheDirectory(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	closed := t.TempDir()
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	open := openTempDir(t)
	nobody := &supervise.User{Name: "nobody", UID: 65534, GID: 65534}
	sup, err := supervise.Start(t.Context(), supervise.Config{Bases: []string{closed, open}, Prefix: "x-", Owner: nobody})
	if err != nil {
		t.Fatal(err)
	}
	if err := sup.Close(); err != nil {
		t.Error(err)
	}
	if filepath.Dir(sup.Dir()) != open {
		t.Errorf("made %s, want it in %s", sup.Dir(), open)
	}
	_, err = supervise.Start(t.Context(), supervise.Config{Bases: []string{closed}, Prefix: "x-", Owner: nobody})
	if err == nil || !strings.Contains(err.Error(), "user nobody cannot enter "+closed) {
		t.Errorf("error %v", err)
	}
}

// A paused server is suspended, with the processes that have left its process group. It can go on,
// and does not keep Close waiting.
func TestPauseAndContinue(t *testing.T) {
	t.Parallel()
	needLinux(t)
	sup := start(t)
	srv := startServer(t, sup, `setsid sh -c 'echo $$ > escaped.tmp; mv escaped.tmp escaped; exec sleep 1000' & wait`)
	file := filepath.Join(sup.Dir(), "escaped")
	eventually(t, "the child has escaped", func() bool { return exists(file) })
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pids := []string{strconv.Itoa(srv.PID), strings.TrimSpace(string(text))}
	stand := func() (n int) {
		for _, pid := range pids {
			if stat, err := os.ReadFile("/proc/" + pid + "/stat"); err == nil && strings.Contains(string(stat), ") T ") {
				n++
			}
		}
		return n
	}
	for range 2 {
		if err := sup.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "both stand still", func() bool { return stand() == 2 })
		if err := sup.Continue(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "both go on", func() bool { return stand() == 0 })
	}
	if err := sup.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := sup.Kill(t.Context()); err != nil {
		t.Errorf("a paused server cannot be killed: %v", err)
	}
	if err := sup.Pause(t.Context()); err == nil || !strings.Contains(err.Error(), "not running") {
		t.Errorf("Pause without a server: %v", err)
	}
}
