package fields_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onlyonce/onlyonce/internal/fields"
)

// A warning that repeats is logged once in 30 s, with how many there were, whichever part of the
// program logs it; another one is logged at once, and what is no warning each time.
func TestRepeatsAreLoggedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		own := slog.New(slog.NewTextHandler(&out, nil))
		for i := range 5 {
			for _, log := range []*slog.Logger{fields.Logger(own), fields.Logger(fields.Logger(own))} {
				log.With("scope", "stock").Warn("no answer", "attempt", i, "wait", time.Duration(i), "error", "timeout")
				log.Info("step")
			}
		}
		log := fields.Logger(own)
		log.With("scope", "stock").Warn("no answer", "error", "refused")
		log.With("scope", "mail").Warn("no answer", "error", "timeout")
		log.WithGroup("g").With("scope", "stock").Warn("no answer", "error", "timeout")
		if s := out.String(); strings.Count(s, "no answer") != 4 || strings.Count(s, "msg=step") != 10 || strings.Contains(s, "not_logged") {
			t.Errorf("got\n%s", s)
		}
		time.Sleep(30 * time.Second)
		out.Reset()
		log.With("scope", "stock").Warn("no answer", "attempt", 9, "error", "timeout")
		if s := out.String(); !strings.Contains(s, "attempt=9 error=timeout not_logged=9\n") {
			t.Errorf("got\n%s", s)
		}
	})
}
