package main

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/cmd/idemcheck/suite"
)

// careless answers each request anew.
func careless(t *testing.T) string {
	t.Helper()
	n := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n++
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"number":%d}`, n)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func configFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "check.json")
	if err := os.WriteFile(path, []byte(`{"path":"/orders","members":{"ref":"\"{{unique}}\""}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestStatusAndReports(t *testing.T) {
	t.Parallel()
	config := configFile(t)
	report := filepath.Join(t.TempDir(), "report.xml")
	var out strings.Builder
	args := []string{"-config", config, "-url", careless(t), "-json", "-junit", report}
	if status := run(t.Context(), args, &out, io.Discard); status != 1 {
		t.Errorf("status %d", status)
	}
	verdicts := map[string]string{}
	for line := range strings.Lines(out.String()) {
		var r suite.Result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		verdicts[r.Name] = r.Verdict
	}
	good := verdicts["replay/body"] == suite.Failed &&
		verdicts["replay/status"] == suite.Passed &&
		verdicts["replay/once"] == suite.Skipped &&
		len(verdicts) == len(suite.Checks())
	if !good {
		t.Errorf("%v", verdicts)
	}
	written, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var junit testSuite
	err = xml.Unmarshal(written, &junit)
	good = err == nil &&
		junit.Tests == len(verdicts) &&
		len(junit.Cases) == junit.Tests &&
		junit.Failures != 0 &&
		junit.Skipped != 0
	if !good {
		t.Errorf("%v: %+v", err, junit)
	}
	out.Reset()
	if status := run(
		t.Context(),
		[]string{"-config", config, "-url", careless(t), "-only", "replay/status"},
		&out,
		io.Discard,
	); status != 0 ||
		!strings.Contains(out.String(), "1 passed, 0 failed, 0 skipped") {
		t.Errorf("status %d: %s", status, out.String())
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for text, args := range map[string][]string{
		"-config: must be set":   nil,
		"-config: open":          {"-config", "no-such-file"},
		"url: is":                {"-config", configFile(t)},
		"no check's name begins": {"-config", configFile(t), "-url", "http://127.0.0.1:1", "-only", "nothing"},
		"not defined":            {"-nonsense"},
	} {
		var errs strings.Builder
		if status := run(t.Context(), args, io.Discard, &errs); status != 2 || !strings.Contains(errs.String(), text) {
			t.Errorf("%v: status %d, %s", args, status, errs.String())
		}
	}
	var out strings.Builder
	if status := run(t.Context(), []string{"-list"}, &out, io.Discard); status != 0 ||
		strings.Count(out.String(), "\n") != len(suite.Checks()) {
		t.Errorf("status %d: %s", status, out.String())
	}
}
