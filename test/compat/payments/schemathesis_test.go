package payments

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// schemathesisProgram names the program schemathesis (PyPI), which "make schemathesis" installs.
const schemathesisProgram = "ONLYONCE_SCHEMATHESIS"

// Schemathesis makes requests of openapi.yaml, good and bad ones, and finds no answer that the
// description does not have, no bad request that is taken, no good one that is refused.
func TestSchemathesis(t *testing.T) {
	program := os.Getenv(schemathesisProgram)
	if program == "" {
		t.Skip("make schemathesis runs it")
	}
	s := newService(t, nil)
	s.provider.Calm = true // its failures are answered 502, which would count as a finding
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(
		t.Context(),
		program,
		"--config-file",
		filepath.Join(here, "testdata", "schemathesis.toml"),
		"run",
		filepath.Join(here, description),
		"--url",
		s.url,
		"--header",
		"Authorization: Bearer sk_test_1",
		"--no-color",
	)
	cmd.Dir = t.TempDir() // which it leaves files in
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("schemathesis has findings: %v", err)
	}
	if s.rows("charges") == 0 || s.rows("payouts") == 0 {
		t.Error("no request was good enough to have an effect")
	}
}
