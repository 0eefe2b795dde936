package rfc_test

import (
	"slices"
	"testing"

	"github.com/onlyonce/onlyonce/internal/rfc"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for pointer, want := range map[string][]string{ // most of them are RFC 6901's own
		"/foo":   {"foo"},
		"/foo/0": {"foo", "0"},
		"/":      {""},
		"/a~1b":  {"a/b"},
		"/c%d":   {"c%d"},
		`/i\j`:   {`i\j`},
		"/ ":     {" "},
		"/m~0n":  {"m~n"},
		"/~01":   {"~1"},
		"/~10":   {"/0"},
		"/a//b":  {"a", "", "b"},
		"":       nil,
		"foo":    nil,
		"#/foo":  nil,
		"/~":     nil,
		"/~2":    nil,
		"/a~/b":  nil,
		"/~0~":   nil,
	} {
		if got, err := rfc.ParsePointer(pointer); (err == nil) != (want != nil) || err == nil && !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v", pointer, got, err)
		}
	}
}

func TestIndex(t *testing.T) {
	t.Parallel()
	for token, want := range map[string]int{
		"0":          0,
		"7":          7,
		"10":         10,
		"999999999":  999999999,
		"":           -1,
		"-":          -1,
		"-1":         -1,
		"+1":         -1,
		"01":         -1,
		"1.0":        -1,
		"1e0":        -1,
		"9999999999": -1,
		"٣":          -1,
	} {
		if got, ok := rfc.ParseIndex(token); ok != (want >= 0) || ok && got != want {
			t.Errorf("%q: %d, %v", token, got, ok)
		}
	}
}
