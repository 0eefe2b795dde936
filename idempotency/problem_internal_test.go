package idempotency

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/internal/outcome"
)

func TestProblems(t *testing.T) {
	t.Parallel()
	for c, p := range problems {
		w := httptest.NewRecorder()
		w.Header().Set("Content-Length", "1")
		(&Layer{}).writeProblem(w, nil, newProblem(c.status(), c, "the detail", "urn:uuid:1", c.retryable()))
		var got map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		want := map[string]any{
			"type":      "urn:onlyonce:problem:" + string(c),
			"title":     p.title,
			"status":    float64(p.status),
			"detail":    "the detail",
			"instance":  "urn:uuid:1",
			"code":      string(c),
			"retryable": p.retryable,
		}
		if !maps.Equal(got, want) || w.Code != p.status || p.title == "" {
			t.Errorf("%s: %d %v", c, w.Code, got)
		}
		if h := w.Header(); h.Get("Content-Type") != "application/problem+json" ||
			h.Get("Cache-Control") != "no-store" ||
			h.Get("Content-Length") != "" {
			t.Errorf("%s: %v", c, h)
		}
		// The client's side must not give up what can end well, and must not repeat what cannot.
		if got := !outcome.IsFinalProblem(w.Header(), w.Body.Bytes()); got != p.retryable {
			t.Errorf("%s: a client repeats it: %v", c, got)
		}
	}
}

// Each code that there is a constant for is in the table, and nothing else.
func TestEachCodeHasAProblem(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("problem.go")
	if err != nil {
		t.Fatal(err)
	}
	var declared []string
	for _, m := range regexp.MustCompile(`(?m)^\tcode\w+ +code = "([a-z-]+)"$`).FindAllSubmatch(source, -1) {
		declared = append(declared, string(m[1]))
	}
	var known []string
	for c := range problems {
		known = append(known, string(c))
	}
	slices.Sort(declared)
	slices.Sort(known)
	if len(declared) < 12 || !slices.Equal(declared, known) {
		t.Errorf("declared: %v; in the table: %v", declared, known)
	}
}

func TestProblemsAreShort(t *testing.T) {
	t.Parallel()
	for _, n := range []int{maxProblemText, maxProblemText + 1, 1 << 20} {
		w := httptest.NewRecorder()
		newProblem(http.StatusTeapot, codeKeyReused, strings.Repeat("\x00", n), strings.Repeat("<", n), true).Write(w)
		var got map[string]any
		err := json.Unmarshal(w.Body.Bytes(), &got)
		good := err == nil &&
			w.Body.Len() <= outcome.MaxProblem &&
			w.Code == http.StatusTeapot &&
			got["status"] == 418.0 &&
			got["retryable"] == true
		if !good {
			t.Errorf("%d bytes, %v, %.200s", w.Body.Len(), err, w.Body)
		}
		if _, has := got["detail"]; has != (n <= maxProblemText) {
			t.Errorf("detail of %d bytes: %v", n, has)
		}
	}
}

// H27: the client's side and the HTTP sink know each mark.
func TestH27MarksAreKnown(t *testing.T) {
	t.Parallel()
	for _, o := range []ServeOutcome{Created, Replayed, InProgress, Mismatch, Bypassed, Rejected, Released} {
		h := http.Header{}
		h.Set(headerStatus, string(o))
		if got := outcome.Mark(h); got != string(o) {
			t.Errorf("%s is read as %q", o, got)
		}
	}
}
