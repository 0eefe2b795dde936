package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/onlyonce/onlyonce/test/demo/command"
	"github.com/onlyonce/onlyonce/test/demo/commandtest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func perform(t *testing.T, args ...string) *result {
	t.Helper()
	var r result
	status, stderr := commandtest.JSON(t, &r, run, append([]string{"-json", "-postgres", pgtest.URL(t)}, args...)...)
	if status != command.Good {
		t.Fatalf("exit status %d\n%s", status, stderr)
	}
	commandtest.Contains(t, stderr, "took effect once") // a sentence for people
	t.Logf("\n%s", stderr)
	return &r
}

func TestWebhookIngest(t *testing.T) {
	r := perform(t, "-events", "24")
	if !r.OK || len(r.Providers) != 7 {
		t.Errorf("%+v", r)
	}
	for _, c := range r.Providers {
		if c.Unique != 24 || c.Effects+c.Overtaken != 24 || c.Duplicates == 0 || c.Tampered != 8 || c.Refused != 8 {
			t.Errorf("%+v", c)
		}
	}
}

// GitHub's own payloads, fetched by npm: they are its, and not copied into this repository.
func TestGitHubPayloads(t *testing.T) {
	npm, err := exec.LookPath("npm")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("npm is not on this machine")
		}
		t.Skip("npm is not on this machine: GitHub's payloads cannot be fetched")
	}
	dir := t.TempDir()
	for _, argv := range [][]string{{npm, "pack", "--silent", "@octokit/webhooks-examples@7.6.1"}, {"tar", "-xzf", "octokit-webhooks-examples-7.6.1.tgz"}} {
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", argv, err, out)
		}
	}
	r := perform(t, "-events", "6", "-github-payloads", filepath.Join(dir, "package/api.github.com/index.json"))
	for _, c := range r.Providers {
		if c.Provider == "github" && (c.Unique < 200 || c.Effects+c.Overtaken != c.Unique) {
			t.Errorf("%+v", c)
		}
	}
}

func TestUsage(t *testing.T) {
	commandtest.Refuses(t, run, map[string][]string{
		"-bogus": {"-bogus"}, "-events 1": {"-events"}, "-duplicates 2": {"-duplicates"}, "more": {"more"}, "-patience 1ms": {"-patience"},
		"-github-payloads nowhere.json": {"-github-payloads"}, "-postgres postgres://127.0.0.1:1/x": {"postgres at postgres://127.0.0.1:1/x"},
	})
}
