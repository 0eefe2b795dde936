package fields_test

import (
	"errors"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/fields"
)

var errConfig = errors.New("config")

func list() *fields.List { return &fields.List{Sentinel: errConfig, Struct: "Config"} }

func check(t *testing.T, name string, l *fields.List, want string) {
	t.Helper()
	err := l.Err()
	got := ""
	if err != nil {
		got = err.Error()
	}
	if got != want || err != nil && !errors.Is(err, errConfig) {
		t.Errorf("%s: %q, want %q", name, got, want)
	}
}

// A number and a duration are named if they are negative, and a duration if its unit is forgotten;
// zero, and the least that means something, are not.
func TestSigns(t *testing.T) {
	t.Parallel()
	type part struct{ N int }
	type config struct {
		N    int
		D    time.Duration
		Part part
		own  int
	}
	for name, c := range map[string]struct {
		of   config
		want string
	}{
		"zero":            {},
		"positive":        {of: config{N: 1, D: time.Millisecond, Part: part{1}}},
		"not exported":    {of: config{own: -1}},
		"number":          {config{N: -1}, "config: Config.N: is -1: must be positive, or 0 for the default"},
		"duration":        {config{D: -1}, "config: Config.D: is -1ns: must be positive, or 0 for the default"},
		"unit":            {config{D: time.Millisecond - 1}, "config: Config.D: is 999.999µs: the unit is a millisecond"},
		"unit, the least": {config{D: 1}, "config: Config.D: is 1ns: the unit is a millisecond"},
		"part":            {config{Part: part{-1}}, "config: Config.Part.N: is -1: must be positive, or 0 for the default"},
	} {
		l := list()
		l.Signs(c.of)
		check(t, name, l, c.want)
	}
}

// A zero is replaced by the default, and only what is out of range is named.
func TestRanges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		given, want time.Duration
		says        string
	}{
		{0, 5, ""},
		{1, 1, "config: Config.D: is 1ns: must be from 2ns to 9ns"},
		{2, 2, ""},
		{9, 9, ""},
		{10, 10, "config: Config.D: is 10ns: must be from 2ns to 9ns"},
	} {
		l := list()
		d := c.given
		l.Span("D", &d, 5, 2, 9)
		check(t, "span", l, c.says)
		if d != c.want {
			t.Errorf("%v became %v", c.given, d)
		}
	}
	for _, c := range []struct {
		given, want int
		says        string
	}{
		{0, 5, ""},
		{1, 1, "config: Config.N: is 1: must be from 2 to 9"},
		{2, 2, ""},
		{9, 9, ""},
		{10, 10, "config: Config.N: is 10: must be from 2 to 9"},
	} {
		l := list()
		n := c.given
		l.Number("N", &n, 5, 2, 9)
		check(t, "number", l, c.says)
		if n != c.want {
			t.Errorf("%v became %v", c.given, n)
		}
	}
	const least, most = 10 * time.Millisecond, time.Second
	for _, c := range []struct {
		min, max, wantMin, wantMax time.Duration
		says                       string
	}{
		{0, 0, least, most, ""},
		{most, 0, most, most, ""},
		{time.Millisecond, time.Millisecond, time.Millisecond, time.Millisecond, ""},
		{2 * most, 0, 2 * most, most, "config: Config.Backoff.Max: is 1s: must be at least Backoff.Min, 2s"},
		{1, 0, 1, most, "config: Config.Backoff.Min: is 1ns: must be from 1ms to 1m0s"},
		{0, time.Hour, least, time.Hour, "config: Config.Backoff.Max: is 1h0m0s: must be from 1ms to 1m0s"},
	} {
		l := list()
		l.Backoff(&c.min, &c.max, least, most, time.Minute)
		check(t, "backoff", l, c.says)
		if c.min != c.wantMin || c.max != c.wantMax {
			t.Errorf("from %v to %v, want %v to %v", c.min, c.max, c.wantMin, c.wantMax)
		}
	}
}
