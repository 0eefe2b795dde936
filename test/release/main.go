// Command release prepares a release of the committed tree, and proves it from outside.
//
//	go -C test/release run . -version v0.1.0 [-out dist] [-platforms linux/amd64,darwin/arm64] [-twice=false]
//
// In -out/VERSION it writes
//
//   - release.patch: the change that the release commit makes. Nested modules require this VERSION
//     of the root in place of their replace directive, and CHANGELOG.md and the chart name it;
//   - proxy: the published modules as a file proxy (https://go.dev/ref/mod#goproxy-protocol);
//   - the programs for each platform, and SHA256SUMS: cmd/onlyonce and cmd/onlyonce-relay, built
//     from that proxy twice with the same bytes, each with its bill of materials (CycloneDX);
//   - notes.md: the CHANGELOG's section.
//
// Then a module outside of this repository requires every published module from the proxy, builds,
// and runs README's program against the servers of ONLYONCE_POSTGRES_URL and
// ONLYONCE_KAFKA_BROKERS, with each version of Go in -go. The program tags and pushes nothing: it
// prints the commands. It exits with 1 if a step fails.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/mod/semver"
)

const root = "github.com/onlyonce/onlyonce"

// The nested modules that users can require, in the order of their requirements. The others are
// tests and tools of this repository.
var published = []string{
	"telemetry", "idempotency/grpcserver", "idempotency/mcpserver", "idempotency/rediscache",
	"sqltx/gormtx", "outbox/natssink", "outbox/rabbitsink", "outbox/sqssink", "queue/natsqueue",
	"queue/rabbitqueue", "queue/sqsqueue", "consumer/registry", "cmd/onlyoncevet", "cmd/idemcheck",
	"cmd/onlyonce-relay",
}

// release is one run.
type release struct {
	version   string
	tree      string   // a clone of the repository, where the release's change is made
	out       string   // -out/VERSION, absolute
	scratch   string   // for module caches and builds
	platforms []string // "os/arch"
	goes      []string // versions of Go, as GOTOOLCHAIN takes them
	twice     bool     // builds are compared with a second one
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run() error {
	version := flag.String("version", "", "the version, for example v0.1.0")
	out := flag.String("out", "dist", "the directory for the results, below the repository")
	platforms := flag.String("platforms", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64", "systems to build the program for")
	goes := flag.String("go", "local,go1.27.4", "versions of Go that the outside module is built with")
	twice := flag.Bool("twice", true, "build the program a second time from an empty cache, and compare")
	flag.Parse()
	if !semver.IsValid(*version) || semver.Canonical(*version) != *version || semver.Build(*version) != "" {
		return fmt.Errorf("-version: %q is no version of a module, such as v0.1.0 or v0.2.0-rc.1", *version)
	}
	top, err := output("", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	if changed, err := output(top, "git", "status", "--porcelain"); err != nil || changed != "" {
		return errors.Join(err, fmt.Errorf("the tree has changes that are not committed, and a release is made of a commit:\n%s", changed))
	}
	scratch, err := os.MkdirTemp("", "onlyonce-release-")
	if err != nil {
		return err
	}
	defer removeAll(scratch)
	r := &release{version: *version, tree: filepath.Join(scratch, "tree"), out: filepath.Join(top, *out, *version), scratch: scratch,
		platforms: strings.Split(*platforms, ","), goes: strings.Split(*goes, ","), twice: *twice}
	if err := errors.Join(os.RemoveAll(r.out), os.MkdirAll(r.out, 0o755)); err != nil {
		return err
	}
	if err := command("", "git", "clone", "-q", "--shared", top, r.tree).Run(); err != nil {
		return fmt.Errorf("git clone: %w", err)
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"modules", r.modules}, {"patch", r.patch}, {"program", r.program}, {"outside", r.outside},
	} {
		fmt.Println("release:", step.name)
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	r.next()
	return nil
}

// next prints what a person does now.
func (r *release) next() {
	tags := []string{r.version}
	for _, m := range published {
		tags = append(tags, m+"/"+r.version)
	}
	fmt.Printf(`release ok %s: see %s
To publish it:
  git switch -c release-%[1]s && git apply --index %[2]s/release.patch && git commit -m "Release %[1]s"
  for t in %[3]s; do git tag -a -m "Release %[1]s" $t; done
  git push origin %[3]s
`, r.version, r.out, strings.Join(tags, " "))
}

// command is a command whose output goes to standard error.
func command(dir, name string, args ...string) *exec.Cmd {
	c := exec.Command(name, args...)
	c.Dir = dir
	c.Stdout = os.Stderr
	c.Stderr = os.Stderr
	return c
}

// output returns the standard output of a command, without space around it.
func output(dir, name string, args ...string) (string, error) {
	c := exec.Command(name, args...)
	c.Dir, c.Stderr = dir, os.Stderr
	text, err := c.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(text)), err
}

// removeAll removes a directory with a module cache, whose files are read-only.
func removeAll(dir string) {
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(path, 0o755)
		}
		return err
	})
	_ = os.RemoveAll(dir)
}
