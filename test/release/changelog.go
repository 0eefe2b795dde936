package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// changelog gives the section of unreleased changes its version and date, and writes it as notes.
func (r *release) changelog() error {
	path := filepath.Join(r.tree, "CHANGELOG.md")
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	date, err := output(r.tree, "git", "show", "-s", "--format=%cs", "HEAD")
	if err != nil {
		return err
	}
	text, notes, err := dated(string(data), r.version, date)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(path, []byte(text), 0o644), os.WriteFile(filepath.Join(r.out, "notes.md"), []byte(notes), 0o644))
}

// dated returns a changelog with the version in place of "Unreleased", without the text above that
// section, and the section.
func dated(changelog, version, date string) (text, notes string, err error) {
	title, rest, found := strings.Cut(changelog, "\n## Unreleased")
	_, section, _ := strings.Cut(rest, "\n")
	if !found || strings.Contains(changelog, "\n## "+version+" ") {
		return "", "", fmt.Errorf("CHANGELOG.md: must have a section \"## Unreleased\", and none of %s", version)
	}
	notes, _, _ = strings.Cut(section, "\n## ")
	title, _, _ = strings.Cut(title, "\n")
	return title + "\n\n## " + version + " (" + date + ")\n" + section, strings.TrimSpace(notes) + "\n", nil
}

// patch writes the change of the release's commit.
func (r *release) patch() error {
	text, err := output(r.tree, "git", "diff", "--binary", "HEAD")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, "release.patch"), []byte(text+"\n"), 0o644)
}
