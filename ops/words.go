package ops

import (
	"strconv"
	"strings"
	"time"
)

func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Second)
}

// days is a duration for people.
func days(d time.Duration) string {
	if d >= 24*time.Hour && d%(24*time.Hour) == 0 {
		return strconv.FormatInt(int64(d/(24*time.Hour)), 10) + "d"
	}
	return d.Round(time.Second).String()
}

// remembered says how long a ring remembers keys. Nil: forever.
func remembered(horizon *float64) string {
	if horizon == nil {
		return "for ever"
	}
	return "at least " + days(seconds(*horizon))
}

// oneLine makes one line of text that may have several.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// orDash shows text that may be missing.
func orDash(s *string) string {
	if s == nil {
		return "-"
	}
	return *s
}

// shellQuote makes a word for a POSIX shell.
func shellQuote(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:"
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
