//go:build unix

package supervise_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/rig/supervise"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// envParent makes the test binary a program that starts a server and then does
// what the variable says.
const envParent = "ONLYONCE_TEST_PARENT"

func TestMain(m *testing.M) {
	if what := os.Getenv(envParent); what != "" {
		parent(what)
	}
	os.Exit(m.Run())
}

func parent(what string) {
	sup, err := supervise.Start(context.Background(), supervise.Config{Bases: []string{os.TempDir()}, Prefix: "onlyonce-test-"})
	if err != nil {
		panic(err)
	}
	srv, err := sup.StartServer(context.Background(), shell(`exec sleep 1000`))
	if err != nil {
		panic(err)
	}
	if what == "busy" { // a command is under way as well
		go func() { _, _ = sup.Run(context.Background(), shell(`exec sleep 1000`)) }()
	}
	fmt.Println(sup.Dir(), srv.PID)
	if what == "exit" {
		os.Exit(3) // and no Close
	}
	select {}
}

// However the program ends, its server and its directory go.
func TestProgramEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, what string
		signal     syscall.Signal
	}{
		{"SIGKILL", "wait", syscall.SIGKILL},
		{"SIGKILL while a command runs", "busy", syscall.SIGKILL},
		{"SIGTERM", "wait", syscall.SIGTERM},
		{"SIGINT to all of its process group", "wait", -syscall.SIGINT},
		{"exit without Close", "exit", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), envParent+"="+c.what, "TMPDIR="+t.TempDir())
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			cmd.Stderr = os.Stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(out).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			dir, number, _ := strings.Cut(strings.TrimSpace(line), " ")
			pid, err := strconv.Atoi(number)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case c.signal < 0:
				err = syscall.Kill(-cmd.Process.Pid, -c.signal)
			case c.signal > 0:
				err = cmd.Process.Signal(c.signal)
			}
			if err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			eventually(t, "the server is gone", func() bool { return !alive(pid) })
			eventually(t, "the directory is gone", func() bool { return !exists(dir) })
		})
	}
}

func shell(script string) supervise.Command {
	return supervise.Command{Argv: []string{"/bin/sh", "-c", script}}
}

func start(t *testing.T) *supervise.Supervisor {
	t.Helper()
	sup, err := supervise.Start(t.Context(), supervise.Config{Bases: []string{t.TempDir()}, Prefix: "onlyonce-test-"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sup.Close() })
	return sup
}

func startServer(t *testing.T, sup *supervise.Supervisor, script string) *supervise.Server {
	t.Helper()
	srv, err := sup.StartServer(t.Context(), shell(script))
	if err != nil {
		t.Fatal(err)
	}
	return srv
}

// openTempDir is a directory that every user can enter, which that of t is not
// under every umask.
func openTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "onlyonce-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	pgtest.Until(t, time.Minute, what, is)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// alive returns false for a zombie: the machine decides which process reaps an orphan.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err != nil || !strings.Contains(string(stat), ") Z ")
}

func needLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		if os.Getenv("CI") == "true" {
			t.Fatal("only Linux can do this")
		}
		t.Skip("only Linux can do this")
	}
}
