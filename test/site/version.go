package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// edition is what a site describes: a released version, or else the commit that it was made of.
func (s *site) edition(version string) (string, error) {
	if version != "" {
		return version, nil
	}
	out, err := exec.Command("git", "-C", s.root, "log", "-1", "--format=%h of %cs").Output() //nolint:gosec,noctx // its own repository
	return "unreleased: commit " + strings.TrimSpace(string(out)), err
}

// listVersions writes versions.js for the sites beside each other in a folder, newest first: each
// page offers them.
func listVersions(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	all := []string{}
	for _, e := range entries {
		if _, err := os.Stat(filepath.Join(dir, e.Name(), "index.html")); err == nil && strings.HasPrefix(e.Name(), "v") {
			all = append(all, e.Name())
		}
	}
	slices.SortFunc(all, func(a, b string) int { return strings.Compare(b, a) })
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return os.WriteFile(
		filepath.Join(dir, "versions.js"),
		[]byte("const versions = "+string(text)+";\n"),
		0o644,
	) //nolint:gosec // it is published
}
