// Command matrix runs the engine's tests on every major version of PostgreSQL that onlyonce
// supports. It fetches and starts each version.
//
//	go run ./test/matrix [-only 14,18] [packages]
//
// It prints a line for each, for example `matrix 14.18 ok (231 tests)` or `matrix 14.18 failed (2
// of 231 tests)`. It exits 1 if one failed, and 2 if one could not be run.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/onlyonce/onlyonce/test/devenv"
)

// packages are all that depend on the server and need no broker.
var packages = []string{"./consumer", "./dedupe", "./idempotency", "./migrations", "./outbox/...", "./internal/eventsource", "./internal/guard", "./internal/inbox", "./internal/preflight", "./internal/ring", "./sqltx", "./webhook"}

func main() {
	only := flag.String("only", "", "comma-separated major versions; empty: all")
	flag.Parse()
	versions := devenv.PostgresVersions()
	if *only != "" {
		versions = strings.Split(*only, ",")
	}
	pkgs := packages
	if flag.NArg() > 0 {
		pkgs = flag.Args()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	status := 0
	for _, v := range versions {
		status = max(status, run(ctx, v, pkgs))
	}
	stop()
	os.Exit(status)
}

// run tests one version and returns the exit status for it.
func run(ctx context.Context, major string, pkgs []string) int {
	p, err := devenv.StartPostgres(ctx, devenv.Options{PostgresVersion: major})
	if err != nil {
		fmt.Fprintf(os.Stderr, "matrix %s: %v\n", major, err)
		return 2
	}
	defer func() {
		if err := p.Stop(); err != nil {
			fmt.Fprintf(os.Stderr, "matrix %s: %v\n", p.Version, err)
		}
	}()
	// -p 1: the packages share one server, and a machine may have two cores.
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json", "-count=1", "-p=1", "-timeout=10m"}, pkgs...)...)
	cmd.Env = append(os.Environ(), devenv.EnvPostgresURL+"="+p.URL,
		devenv.EnvPostgresVersion+"="+major) // for tests with a server of their own
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	err = cmd.Run()
	if ctx.Err() != nil {
		return 2
	}
	t := read(&out)
	switch {
	case err == nil && t.passed > 0:
		skipped := ""
		if len(t.skipped) > 0 {
			skipped = fmt.Sprintf(", skipped: %s", strings.Join(t.skipped, " "))
		}
		fmt.Printf("matrix %s ok (%d tests%s)\n", p.Version, t.passed, skipped)
		return 0
	case len(t.failed) > 0:
		fmt.Printf("matrix %s failed (%d of %d tests)\n", p.Version, len(t.failed), t.passed+len(t.failed))
		for _, name := range t.failed {
			fmt.Printf("--- %s\n%s", name, strings.Join(t.output[name], ""))
		}
		return 1
	}
	fmt.Printf("matrix %s failed: no test told why: %v\n", p.Version, err)
	for name, lines := range t.output {
		if !strings.Contains(name, " ") { // a package: it does not compile, or TestMain ended it
			fmt.Printf("--- %s\n%s", name, strings.Join(lines, ""))
		}
	}
	return 1
}

// results are what `go test -json` reported; subtests are counted with the test that they belong
// to.
type results struct {
	passed          int
	failed, skipped []string
	output          map[string][]string
}

func read(out *bytes.Buffer) *results {
	t := &results{output: map[string][]string{}}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct{ Action, Package, Test, Output string }
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue // the compiler's words, on standard error too
		}
		top, _, sub := strings.Cut(e.Test, "/")
		name := strings.TrimSuffix(e.Package+" "+top, " ")
		switch {
		case e.Action == "output":
			t.output[name] = append(t.output[name], e.Output)
		case e.Test == "" || sub:
		case e.Action == "pass":
			t.passed++
		case e.Action == "fail":
			t.failed = append(t.failed, name)
		case e.Action == "skip":
			t.skipped = append(t.skipped, name)
		}
	}
	return t
}
