//go:build unix

package devenv_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// envParent makes the test binary a program that starts the server that the
// variable names, says what it got, and waits.
const envParent = "ONLYONCE_TEST_PARENT"

func TestMain(m *testing.M) {
	if what := os.Getenv(envParent); what != "" {
		parent(what)
	}
	// The tests look at the order of choice: what is set for others is not
	// meant for them.
	for _, name := range []string{devenv.EnvPostgresURL, devenv.EnvKafkaBrokers, devenv.EnvForce} {
		_ = os.Unsetenv(name)
	}
	os.Exit(m.Run())
}

// started is what the program says.
type started struct {
	Error string
	URL   string
	How   string
	Dir   string
	PID   int
}

func parent(what string) {
	var s started
	var err error
	switch what {
	case "postgres":
		var p *devenv.Postgres
		if p, err = devenv.StartPostgres(context.Background(), devenv.Options{}); err == nil {
			s = started{URL: p.URL, How: p.How, Dir: p.Dir, PID: p.PID()}
		}
	case "kafka":
		var k *devenv.Kafka
		if k, err = devenv.StartKafka(context.Background(), devenv.Options{AllowFake: true}); err == nil {
			s = started{How: k.How, Dir: k.Dir, PID: k.PID()}
		}
	}
	if err != nil {
		s.Error = err.Error()
	}
	if err := json.NewEncoder(os.Stdout).Encode(s); err != nil {
		panic(err)
	}
	if s.Error != "" {
		os.Exit(1)
	}
	select {}
}

// program is such a program under way.
type program struct {
	started
	cmd *exec.Cmd
}

// startProgram starts it with changes to its environment ("NAME=value", or
// "NAME" to have it unset), as a user or, with nil, as ourselves.
func startProgram(t *testing.T, what string, as *syscall.Credential, env ...string) *program {
	t.Helper()
	// Not os.Args[0]: another user cannot enter the directory where "go test"
	// keeps the binary.
	cmd := exec.Command("/proc/self/exe")
	cmd.Dir = "/"
	cmd.Env = environ(append(env, envParent+"="+what)...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	p := &program{cmd: cmd}
	if err := json.NewDecoder(bufio.NewReader(out)).Decode(&p.started); err != nil {
		t.Fatal(err)
	}
	return p
}

// environ is our environment with changes.
func environ(changes ...string) []string {
	env := os.Environ()
	for _, c := range changes {
		name, _, set := strings.Cut(c, "=")
		env = slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
		if set {
			env = append(env, c)
		}
	}
	return env
}

// killAndSee kills the program and sees its server and directory go.
func (p *program) killAndSee(t *testing.T) {
	t.Helper()
	if !exists(p.Dir) || (p.PID != 0 && !alive(p.PID)) {
		t.Fatalf("no server to begin with: %+v", p.started)
	}
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait()
	eventually(t, "the server is gone", func() bool { return p.PID == 0 || !alive(p.PID) })
	eventually(t, "the directory is gone", func() bool { return !exists(p.Dir) })
}

// lines collects what Options.Log is given.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) log(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, line)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.all, "\n")
}

func startPostgres(t *testing.T, o devenv.Options) *devenv.Postgres {
	t.Helper()
	p, err := devenv.StartPostgres(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// query asks for one value.
func query(url, sql string) (value string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return "", err
	}
	err = conn.QueryRow(ctx, sql).Scan(&value)
	return value, errors.Join(err, conn.Close(ctx))
}

func mustQuery(t *testing.T, url, sql string) string {
	t.Helper()
	value, err := query(url, sql)
	if err != nil {
		t.Fatal(fmt.Errorf("%s: %w", sql, err))
	}
	return value
}

// unreachable skips, or fails in CI, a test whose server could not be fetched or
// is not on the machine.
func unreachable(t *testing.T, err error) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(err)
	}
	t.Skip(err)
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
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return false
	}
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err != nil || !strings.Contains(string(stat), ") Z ")
}
