package fields_test

import (
	"bytes"
	"errors"
	"fmt"
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
		if s := out.String(); strings.Count(s, "no answer") != 4 ||
			strings.Count(s, "msg=step") != 10 ||
			strings.Contains(s, "not_logged") {
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

// away is an error that is about a whole database.
type away struct{ error }

func (away) Outage() (string, slog.Attr) {
	return "the database does not answer", slog.String("database", "127.0.0.1:5432/shop")
}

// A database that does not answer is one line with its name, at ERROR, whatever meets it; what each
// place says of it is at DEBUG. It comes again in 30 s, with how many there were.
func TestAnOutageIsOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		own := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
		log := fields.Logger(own)
		fails := func() {
			for i := range 32 {
				log.Warn("onlyonce: trying again", "partition", i, "error", fmt.Errorf("fence: %w", away{errors.New("timeout")}))
				log.Error("onlyonce: rotating the inbox failed", "ring", i, "error", away{errors.New("timeout")})
			}
		}
		fails()
		const line = `level=ERROR msg="onlyonce: the database does not answer; what needs it is tried again" ` +
			`database=127.0.0.1:5432/shop error=timeout`
		if s := out.String(); strings.Count(s, line+"\n") != 1 ||
			strings.Count(s, "level=WARN")+strings.Count(s, "level=ERROR") != 1 ||
			strings.Count(s, "level=DEBUG") != 64 {
			t.Errorf("got\n%s", s)
		}
		time.Sleep(30 * time.Second)
		out.Reset()
		fails()
		if s := out.String(); strings.Count(s, line+" not_logged=63\n") != 1 || strings.Count(s, "level=ERROR") != 1 {
			t.Errorf("got\n%s", s)
		}
		out.Reset()
		log.Warn("onlyonce: trying again", "error", errors.New("timeout"))
		if s := out.String(); strings.Count(s, "level=WARN") != 1 {
			t.Errorf("an error of something else: %s", s)
		}
	})
}
