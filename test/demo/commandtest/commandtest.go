// Package commandtest is what the demonstrations' tests share: they run a program like a user
// does, and check its output, its exit status, and what it leaves in the database.
package commandtest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/test/demo/command"
)

// Run is a demonstration without its process.
type Run func(ctx context.Context, args []string, stdout, stderr io.Writer) int

// envProgram makes a test binary the program.
const envProgram = "ONLYONCE_DEMO_TEST_MAIN"

// IsProgram is true in a process that Program has started.
func IsProgram() bool { return os.Getenv(envProgram) != "" }

// Program runs this test binary as the program, which must succeed. It decodes the object that
// -json prints into report; each of its fields named must be there.
func Program(t *testing.T, report any, fields []string, args ...string) (stderr string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = slices.DeleteFunc(append(os.Environ(), envProgram+"=1"), func(v string) bool { return strings.HasPrefix(v, "ONLYONCE_ENV=") })
	var out, errors bytes.Buffer
	cmd.Stdout = &out
	cmd.Stderr = &errors
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &errors)
	}
	decode(t, report, &out, &errors)
	for _, field := range fields {
		if !strings.Contains(out.String(), `"`+field+`":`) {
			t.Errorf("field %s is missing: %s", field, &out)
		}
	}
	return errors.String()
}

// JSON runs a demonstration in this process, and decodes the object that -json prints into report.
func JSON(t *testing.T, report any, run Run, args ...string) (status int, stderr string) {
	t.Helper()
	var out, errors bytes.Buffer
	status = run(t.Context(), args, &out, &errors)
	decode(t, report, &out, &errors)
	return status, errors.String()
}

func decode(t *testing.T, report any, stdout, stderr *bytes.Buffer) {
	t.Helper()
	if err := json.Unmarshal(stdout.Bytes(), report); err != nil {
		t.Fatalf("standard output is not one JSON object: %v\n%s\n%s", err, stdout, stderr)
	}
}

// Contains fails the test if a text lacks any of the words.
func Contains(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("no word of %q:\n%s", w, text)
		}
	}
}

// Refuses fails the test unless each of the command lines ends with the status for usage and
// environment, and with all of its words.
func Refuses(t *testing.T, run Run, words map[string][]string) {
	t.Helper()
	for args, want := range words {
		var stdout, stderr bytes.Buffer
		if status := run(t.Context(), strings.Fields(args), &stdout, &stderr); status != command.Environment {
			t.Errorf("%s: exit status %d", args, status)
		}
		Contains(t, stderr.String(), want...)
	}
}

// Helps fails the test unless -h prints a flag to standard output, and nothing else happens.
func Helps(t *testing.T, run Run, flag string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if status := run(t.Context(), []string{"-h"}, &stdout, &stderr); status != command.Good ||
		!strings.Contains(stdout.String(), flag) ||
		stderr.Len() > 0 {
		t.Errorf("-h: exit status %d, %s%s", status, &stdout, &stderr)
	}
}

// NothingLeft fails the test unless what a run has used of the user's own database is empty. Each
// of the tables may have a condition, for example "onlyonce.leases where name <> 'a'".
func NothingLeft(t *testing.T, url string, tables ...string) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for _, table := range tables {
		var left string
		err := pool.QueryRow(t.Context(), `select coalesce(string_agg(r::text, e'\n'), '') from (select * from `+table+`) r`).Scan(&left)
		if err != nil ||
			left != "" {
			t.Errorf("rows are left in %s, %v:\n%s", table, err, left)
		}
	}
}

// Tripwire is a writer that acts when a text has been written to it.
type Tripwire struct {
	text string

	mu  sync.Mutex
	buf bytes.Buffer
	act func()
}

// NewTripwire returns one that acts once.
func NewTripwire(text string, act func()) *Tripwire { return &Tripwire{text: text, act: act} }

func (w *Tripwire) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf.Write(b)
	if w.act != nil && strings.Contains(w.buf.String(), w.text) {
		w.act()
		w.act = nil
	}
	return len(b), nil
}

// String is all that was written.
func (w *Tripwire) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}
