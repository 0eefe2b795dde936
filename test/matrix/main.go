// Command matrix runs the tests of packages on each version of the servers that onlyonce supports:
// all library packages and programs on each PostgreSQL, and sources and sink on each Kafka. It
// fetches and starts each version.
//
//	go run ./test/matrix [-only 14,18,kafka-4.0.1] [packages]
//
// It prints a line for each, for example `matrix 14.18 ok (231 tests)` or `matrix kafka-4.0.1
// failed (2 of 231 tests)`. It exits 1 if one failed, and 2 if one could not be run.
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

const kafkaPrefix = "kafka-"

func main() {
	only := flag.String("only", "", "comma-separated: major versions of PostgreSQL, and kafka-VERSION; empty: all")
	flag.Parse()
	cells := devenv.PostgresVersions()
	for _, v := range devenv.KafkaVersions() {
		cells = append(cells, kafkaPrefix+v)
	}
	if *only != "" {
		cells = strings.Split(*only, ",")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	status := 0
	for _, cell := range cells {
		if version, is := strings.CutPrefix(cell, kafkaPrefix); is {
			status = max(status, onKafka(ctx, version, flag.Args()))
		} else {
			status = max(status, onPostgres(ctx, cell, flag.Args()))
		}
	}
	stop()
	os.Exit(status)
}

// onPostgres tests one version, with what needs no broker, and returns the exit status for it.
func onPostgres(ctx context.Context, major string, pkgs []string) int {
	p, err := devenv.StartPostgres(ctx, devenv.Options{PostgresVersion: major})
	if err != nil {
		return cannot(major, err)
	}
	defer stopped(p.Version, p.Stop)
	if len(pkgs) == 0 {
		if pkgs, err = all(ctx); err != nil {
			return cannot(p.Version, err)
		}
	}
	return run(ctx, p.Version, pkgs, devenv.EnvPostgresURL+"="+p.URL,
		devenv.EnvPostgresVersion+"="+major) // for tests with a server of their own
}

// all returns the packages of the root's module without those of the laboratory.
func all(ctx context.Context) (pkgs []string, err error) {
	out, err := exec.CommandContext(ctx, "go", "list", "./...").Output()
	for pkg := range strings.FieldsSeq(string(out)) {
		if !strings.Contains(pkg, "/test/") && !strings.HasSuffix(pkg, "/monitoring") {
			pkgs = append(pkgs, pkg)
		}
	}
	return pkgs, err
}

// onKafka tests one version, and returns the exit status for it. The tests find or start a Postgres
// themselves.
func onKafka(ctx context.Context, version string, pkgs []string) int {
	if len(pkgs) == 0 {
		pkgs = []string{"./consumer/franzsource", "./consumer/kafkasource", "./outbox/kafkasink"}
		if version >= "4.2" { // with share groups
			pkgs = append(pkgs, "./consumer/sharesource")
		}
	}
	env := devenv.EnvKafkaVersion + "=" + version
	if err := os.Setenv(devenv.EnvKafkaVersion, version); err != nil {
		return cannot(kafkaPrefix+version, err)
	}
	k, err := devenv.StartKafka(ctx, devenv.Options{Force: devenv.KindLocal})
	if err != nil {
		return cannot(kafkaPrefix+version, err)
	}
	defer stopped(kafkaPrefix+version, k.Stop)
	return run(ctx, kafkaPrefix+version, pkgs, env, devenv.EnvKafkaBrokers+"="+strings.Join(k.Brokers, ","))
}

func cannot(cell string, err error) int {
	fmt.Fprintf(os.Stderr, "matrix %s: %v\n", cell, err)
	return 2
}

func stopped(cell string, stop func() error) {
	if err := stop(); err != nil {
		cannot(cell, err)
	}
}

// run tests packages, with more in the environment, and returns the exit status for it.
func run(ctx context.Context, cell string, pkgs []string, env ...string) int {
	// -p 1: the packages share one server, and a machine may have two cores.
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json", "-count=1", "-p=1", "-timeout=20m"}, pkgs...)...)
	cmd.Env = append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	err := cmd.Run()
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
		fmt.Printf("matrix %s ok (%d tests%s)\n", cell, t.passed, skipped)
		return 0
	case len(t.failed) > 0:
		fmt.Printf("matrix %s failed (%d of %d tests)\n", cell, len(t.failed), t.passed+len(t.failed))
		for _, name := range t.failed {
			fmt.Printf("--- %s\n%s", name, strings.Join(t.output[name], ""))
		}
		return 1
	}
	fmt.Printf("matrix %s failed: no test told why: %v\n", cell, err)
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
