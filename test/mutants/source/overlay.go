package source

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// Overlay writes what a file, by its absolute name, is to be, and returns the environment in which
// go test and the programs that a test builds see it. The tree is not changed. The caller calls
// clean when the tests have ended.
func Overlay(file, text string) (env []string, clean func(), err error) {
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return nil, nil, err
	}
	clean = func() { _ = os.RemoveAll(dir) }
	changed := filepath.Join(dir, filepath.Base(file))
	overlay := filepath.Join(dir, "overlay.json")
	spec, err := json.Marshal(map[string]map[string]string{"Replace": {file: changed}})
	if err == nil {
		err = os.WriteFile(changed, []byte(text), 0o600)
	}
	if err == nil {
		err = os.WriteFile(overlay, spec, 0o600)
	}
	if err != nil {
		clean()
		return nil, nil, err
	}
	return append(os.Environ(), "GOFLAGS=-overlay="+overlay, Patience), clean, nil
}

// Patience is for the environment of tests: one that waits for what a change has taken away does
// not wait for long.
const Patience = "ONLYONCE_TEST_PATIENCE=6s"
