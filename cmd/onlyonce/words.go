package main

import (
	"strconv"

	"github.com/onlyonce/onlyonce/internal/show"
)

// cell makes text safe for a terminal and for a column: names and errors come from messages, and
// may hold anything, for example escape sequences.
func cell(s string) string {
	if s == "" {
		return "-"
	}
	return show.Printable(s)
}

// oneLine makes one line of text that may hold several.
func oneLine(s string) string {
	return cell(show.OneLine(s))
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

func numberOrDash(n *int64) string {
	if n == nil {
		return "-"
	}
	return number(*n)
}

// ageOf shows an age in seconds, "" if it is not known.
func ageOf(seconds *float64) string {
	if seconds == nil {
		return ""
	}
	return show.Ago(*seconds)
}
