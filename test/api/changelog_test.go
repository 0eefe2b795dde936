package api

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"
	"testing"
)

// changelogSum has the hash of CHANGELOG.md's section Unreleased as it was when the API was last
// written here.
const changelogSum = "changelog.sum"

// unreleased returns the hash of the section Unreleased of a changelog, and whether a version was
// released before it: from then on each change of the API needs a line there.
func unreleased(changelog string) (sum string, released bool) {
	_, section, _ := strings.Cut(changelog, "\n## Unreleased")
	section, _, released = strings.Cut(section, "\n## v")
	hash := sha256.Sum256([]byte(strings.TrimSpace(section)))
	return hex.EncodeToString(hash[:]), released
}

// keepChangelogSum writes the hash of the section Unreleased. If a version was released, it fails
// if the section says no more than when the API was written last.
func keepChangelogSum(t *testing.T) {
	text, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	sum, released := unreleased(string(text))
	before, err := os.ReadFile(changelogSum)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if released && strings.TrimSpace(string(before)) == sum {
		t.Fatal("CHANGELOG.md: the section Unreleased does not say how the API has changed: add a line, then update again")
	}
	if err := os.WriteFile(changelogSum, []byte(sum+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestUnreleased(t *testing.T) {
	t.Parallel()
	const first = "# Changelog\n\n## Unreleased: the first\n\n- One.\n"
	const later = "# Changelog\n\n## Unreleased\n\n- One.\n\n## v0.1.0\n\n- Two.\n"
	if _, released := unreleased(first); released {
		t.Error("nothing is released yet")
	}
	one, released := unreleased(later)
	if !released {
		t.Error("v0.1.0 is released")
	}
	if same, _ := unreleased(strings.Replace(later, "Two", "Three", 1)); same != one {
		t.Error("the section of a version counts")
	}
	if other, _ := unreleased(strings.Replace(later, "One", "Other", 1)); other == one {
		t.Error("the section Unreleased does not count")
	}
}
