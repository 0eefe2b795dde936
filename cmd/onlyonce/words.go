package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// cell makes text safe for a terminal and for a column: names and errors come from messages, and
// may hold anything, for example escape sequences.
func cell(s string) string {
	if s == "" {
		return "-"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '\uFFFD'
	}, s)
}

// oneLine makes one line of text that may hold several.
func oneLine(s string) string {
	return cell(strings.Join(strings.Fields(s), " "))
}

// firstLine returns the first line of s, cut to limit characters.
func firstLine(s string, limit int) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	s = strings.TrimSpace(s)
	if r := []rune(s); len(r) > limit {
		return string(r[:limit-1]) + "…"
	}
	return s
}

func orDash(s *string) string {
	if s == nil {
		return "-"
	}
	return *s
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// some returns text about n, or "" if n is 0.
func some(n int, text string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(text, n)
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

func numberOrDash(n *int64) string {
	if n == nil {
		return "-"
	}
	return number(*n)
}

// instant shows a time in UTC.
func instant(t time.Time) string {
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// seconds is a duration of so many seconds.
func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Second)
}

// span shows a duration with its two largest units, for example 3d4h, 2h5m or 12s.
func span(d time.Duration) string {
	if d < 0 {
		return "-" + span(-d)
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
		s := number(int64(d/u.of)) + u.name
		if i+1 < len(units) {
			if next := units[i+1]; d%u.of >= next.of {
				s += number(int64(d%u.of/next.of)) + next.name
			}
		}
		return s
	}
	return "0s"
}

// ageOf shows an age in seconds, "" if it is not known.
func ageOf(seconds *float64) string {
	if seconds == nil {
		return ""
	}
	return ago(*seconds)
}

// ago shows an age in seconds. Clocks that differ may make it negative: then it is 0.
func ago(s float64) string { return span(max(0, seconds(s))) }

// size shows bytes, for example 512 B, 1.5 KiB or 96 MiB.
func size(bytes float64) string {
	unit := "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB", "PiB"} {
		if bytes < 1024 {
			break
		}
		bytes, unit = bytes/1024, u
	}
	if unit == "B" || bytes >= 100 {
		return strconv.FormatFloat(bytes, 'f', 0, 64) + " " + unit
	}
	return strings.TrimSuffix(strconv.FormatFloat(bytes, 'f', 1, 64), ".0") + " " + unit
}
