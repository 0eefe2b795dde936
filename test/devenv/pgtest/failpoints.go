package pgtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/onlyonce/onlyonce/internal/fault"
)

// WithFailpoints returns the test binary of this package with failpoints (package internal/fault),
// to be run as a child process: this program itself if it has them, as in make test, or a new one.
func WithFailpoints(t testing.TB) string {
	t.Helper()
	if fault.Compiled {
		self, err := os.Executable()
		if err != nil {
			t.Fatalf("pgtest: %v", err)
		}
		return self
	}
	bin := filepath.Join(t.TempDir(), "faults.test")
	if out, err := exec.CommandContext(t.Context(), "go",
		"test", "-c", "-vet=off", "-tags", "onlyonce_fault", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("pgtest: go test -c: %v\n%s", err, out)
	}
	return bin
}
