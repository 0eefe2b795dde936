// Package self runs a test binary as the program that it tests, in a process of its own.
package self

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// Env makes a test binary run as the program: its TestMain looks whether it is set.
const Env = "ONLYONCE_TEST_SELF"

// Program is a program that runs. It is killed when the test ends.
type Program struct {
	Cmd *exec.Cmd

	t        testing.TB
	patience time.Duration

	mu   sync.Mutex
	errs bytes.Buffer
}

// Start starts the program. Patience bounds how long it may take to stop.
func Start(t testing.TB, patience time.Duration, env []string, args ...string) *Program {
	t.Helper()
	p := &Program{Cmd: exec.Command(os.Args[0], args...), t: t, patience: patience}
	p.Cmd.Env = append(append(os.Environ(), Env+"=1"), env...)
	p.Cmd.Stderr = p
	if err := p.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Cmd.Process.Kill() })
	return p
}

// Write takes what the program writes to standard error.
func (p *Program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.errs.Write(b)
}

// Stderr returns what it has written to standard error.
func (p *Program) Stderr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.errs.String()
}

// Stop sends a signal and returns the exit status.
func (p *Program) Stop(s os.Signal) int {
	p.t.Helper()
	if err := p.Cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
	late := time.AfterFunc(p.patience, func() { _ = p.Cmd.Process.Kill() })
	defer late.Stop()
	_ = p.Cmd.Wait()
	return p.Cmd.ProcessState.ExitCode()
}

// Scrape reads what a program serves at the address that its log names.
func (p *Program) Scrape(path string) string {
	p.t.Helper()
	at := regexp.MustCompile(`http://127\.0\.0\.1:\d+` + path)
	pgtest.Until(p.t, p.patience, "it serves "+path, func() bool { return at.MatchString(p.Stderr()) })
	client := http.Client{Timeout: p.patience}
	address := strings.Replace(at.FindString(p.Stderr()), path, "/metrics", 1)
	// A page whose name leads to this machine must not read what is served on it.
	rebound, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, address, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	rebound.Host = "evil.example"
	if resp, err := client.Do(rebound); err != nil {
		p.t.Fatal(err)
	} else {
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusMisdirectedRequest {
			p.t.Errorf("under another name: %d", resp.StatusCode)
		}
	}
	resp, err := client.Get(address)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		p.t.Fatalf("status %d, error %v: %s", resp.StatusCode, err, text)
	}
	return string(text)
}
