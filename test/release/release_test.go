package main

import (
	"archive/zip"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Every nested module is published or named here, so that a new one is not forgotten.
func TestEachModuleIsPublishedOrPrivate(t *testing.T) {
	private := []string{
		".", "deploy/check", "idempotency/compat", "telemetry/test", "ops/console/e2e",
		"test/bench", "test/compat", "test/release", "test/site", "test/storm/queue",
	}
	known := append(slices.Clone(published), private...)
	found := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata") {
			return fs.SkipDir
		}
		if err == nil && d.Name() == "go.mod" {
			found++
			dir, relErr := filepath.Rel("../..", filepath.Dir(path))
			if relErr != nil || !slices.Contains(known, filepath.ToSlash(dir)) {
				t.Errorf("module %s (%v): add it to published, or to private in this test", dir, relErr)
			}
		}
		return err
	})
	if err != nil || found != len(known) {
		t.Errorf("%d modules, %d are named: %v", found, len(known), err)
	}
}

func TestDated(t *testing.T) {
	const before = "# Changelog\n\nNothing is released yet.\n\n## Unreleased: first\n\nIt counts.\n\n## v0.0.9 (2026-01-02)\n\nOlder.\n"
	text, notes, err := dated(before, "v0.1.0", "2026-12-01")
	if err != nil {
		t.Fatal(err)
	}
	if want := "# Changelog\n\n## v0.1.0 (2026-12-01)\n\nIt counts.\n\n## v0.0.9 (2026-01-02)\n\nOlder.\n"; text != want {
		t.Errorf("changelog:\n%s", text)
	}
	if notes != "It counts.\n" {
		t.Errorf("notes: %q", notes)
	}
	if _, _, err := dated(text, "v0.2.0", "2026-12-02"); err == nil || !strings.Contains(err.Error(), "Unreleased") {
		t.Errorf("without a section: %v", err)
	}
	if _, _, err := dated(before, "v0.0.9", "2026-12-02"); err == nil || !strings.Contains(err.Error(), "v0.0.9") {
		t.Errorf("a version that is there: %v", err)
	}
}

// The zip of a nested module has the license of the repository, as one from a repository has.
func TestNestedModuleHasALicense(t *testing.T) {
	t.Parallel()
	r := &release{version: "v0.1.0", tree: t.TempDir(), out: t.TempDir()}
	dir := filepath.Join(r.tree, "nested")
	for name, text := range map[string]string{"LICENSE": "as you like", "nested/go.mod": "module " + root + "/nested\n"} {
		path := filepath.Join(r.tree, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"}} {
		if err := command(r.tree, "git", args...).Run(); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(r.license(dir), r.publish(root+"/nested", dir)); err != nil {
		t.Fatal(err)
	}
	zipped, err := zip.OpenReader(filepath.Join(r.out, "proxy", root, "nested", "@v", "v0.1.0.zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = zipped.Close() }()
	text, err := fs.ReadFile(zipped, root+"/nested@v0.1.0/LICENSE")
	if err != nil || string(text) != "as you like" {
		t.Errorf("%q %v", text, err)
	}
}
