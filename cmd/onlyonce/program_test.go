package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/devenv/self"
)

func TestMain(m *testing.M) {
	switch os.Getenv(self.Env) {
	case "":
	case receiverChild:
		receiveForEver()
	case deadlyChild:
		handleDeadly()
	default:
		main()
	}
	os.Exit(m.Run())
}

func startProgram(t *testing.T, env []string, args ...string) *self.Program {
	t.Helper()
	return self.Start(t, testPatience, env, args...)
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	pgtest.Until(t, testPatience, what, cond)
}

func fileOf(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "settings.json")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
