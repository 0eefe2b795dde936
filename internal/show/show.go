// Package show makes text for people of values: times, durations, sizes, and words of a command.
// All programs and errors show a value in the same way.
package show

import (
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Instant shows a time in UTC, to the second.
func Instant(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// Seconds is a duration of so many seconds, to the second.
func Seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Second)
}

// Span shows a duration with its two largest units, for example 3d4h, 2h5m or 12s.
func Span(d time.Duration) string {
	if d < 0 {
		return "-" + Span(-d)
	}
	d = d.Round(time.Second)
	units := []struct {
		name string
		of   time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}}
	for i, u := range units {
		if d < u.of {
			continue
		}
		s := strconv.FormatInt(int64(d/u.of), 10) + u.name
		if i+1 < len(units) {
			if next := units[i+1]; d%u.of >= next.of {
				s += strconv.FormatInt(int64(d%u.of/next.of), 10) + next.name
			}
		}
		return s
	}
	return "0s"
}

// Ago shows an age in seconds. Clocks that differ may make it negative: then it shows 0s.
func Ago(seconds float64) string { return Span(max(0, Seconds(seconds))) }

// Size shows bytes, for example 512 B, 1.5 KiB or 96 MiB.
func Size(bytes float64) string {
	unit := "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB", "PiB"} {
		if bytes < 1024 {
			break
		}
		bytes = bytes / 1024
		unit = u
	}
	if unit == "B" || bytes >= 100 {
		return strconv.FormatFloat(bytes, 'f', 0, 64) + " " + unit
	}
	return strings.TrimSuffix(strconv.FormatFloat(bytes, 'f', 1, 64), ".0") + " " + unit
}

// Remembered says how many seconds keys are remembered; nil: for ever.
func Remembered(horizon *float64) string {
	if horizon == nil {
		return "for ever"
	}
	return "at least " + Ago(*horizon)
}

// OneLine makes one line of text that may have several.
func OneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// FirstLine returns the first line of s, cut to limit characters.
func FirstLine(s string, limit int) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	s = strings.TrimSpace(s)
	if r := []rune(s); len(r) > limit {
		return string(r[:limit-1]) + "…"
	}
	return s
}

// Count shows how many things there are, for example 1 call or 2 calls.
func Count(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.FormatInt(n, 10) + " " + what + "s"
}

// OrDash shows text that may be missing.
func OrDash(s *string) string {
	if s == nil {
		return "-"
	}
	return *s
}

// Text is text that may be missing, then it is empty.
func Text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// Quote makes one word of s for a POSIX shell.
func Quote(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:"
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Printable makes text safe for a terminal: names and errors come from messages, and may hold
// anything, for example escape sequences.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '\uFFFD'
	}, s)
}
