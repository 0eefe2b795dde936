package fields_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/internal/fields"
)

// Without a logger, warnings and errors go to slog.Default(), also after With and WithGroup.
func TestLoggerDefaultsToWarnings(t *testing.T) {
	var out bytes.Buffer
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))

	log := fields.Logger(nil)
	for _, l := range []*slog.Logger{log, log.With("a", 1), log.WithGroup("g")} {
		l.Debug("debug")
		l.Info("info")
		l.Warn("warn")
		l.Error("error")
	}
	if s := out.String(); strings.Count(s, "msg=warn") != 3 || strings.Count(s, "msg=error") != 3 || strings.Count(s, "\n") != 6 {
		t.Errorf("got\n%s", s)
	}
}

// A default logger that wants errors alone gets no warnings.
func TestLoggerKeepsTheDefaultsLevel(t *testing.T) {
	var out bytes.Buffer
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelError})))
	fields.Logger(nil).Warn("warn")
	if out.Len() != 0 {
		t.Errorf("got %q", out.String())
	}
}
