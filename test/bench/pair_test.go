package main

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/consumer"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{3}, 3},
		{[]float64{3, 1}, 2},
		{[]float64{9, 1, 2}, 2},
		{[]float64{4, 1, 3, 2}, 2.5},
	} {
		before := len(c.values)
		if got := median(c.values); got != c.want || len(c.values) != before {
			t.Errorf("median(%v) = %v, want %v", c.values, got, c.want)
		}
	}
}

func TestRatesAndOverheads(t *testing.T) {
	wrapped := sample{messages: 300, elapsed: 2 * time.Second, disk: 80,
		used: usage{client: 900 * time.Microsecond, server: 1500 * time.Microsecond, wal: 90_000, seen: true}}
	plain := sample{messages: 800, elapsed: 4 * time.Second,
		used: usage{client: 800 * time.Microsecond, server: 2400 * time.Microsecond, wal: 80_000, seen: true}}
	if v, ok := rates(wrapped, plain); !ok || v != 0.75 {
		t.Errorf("ratio of 150/s and 200/s is %v, %v", v, ok)
	}
	for i, want := range []float64{4, 200, 80} { // 8-4 us, 300-100 B, 80 B
		m := overheads()[i]
		if v, ok := m.of(wrapped, plain); !ok || v != want {
			t.Errorf("%s is %v, %v; want %v", m.name, v, ok, want)
		}
	}
	if v, ok := clientRise(wrapped, plain); !ok || v != 1.5 { // 2 us more of 4
		t.Errorf("the client's rise is %v, %v", v, ok)
	}
	plain.used.seen = false
	if _, ok := overheads()[0].of(wrapped, plain); ok {
		t.Error("CPU time that was not seen is reported")
	}
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		m      metric
		values []float64
		want   string
	}{
		{
			metric{name: "P2a", bar: 0.75},
			[]float64{0.7, 0.81, 0.9, 0.8, 0.85},
			"P2a 0.81 bar 0.75 ok (open: 4 of 5 rounds meet it; a verdict takes about 11)",
		},
		{metric{name: "P2a", bar: 0.75}, []float64{0.76, 0.81, 0.9, 0.8, 0.85}, "P2a 0.81 bar 0.75 ok"},
		{metric{name: "P1a", bar: 1}, []float64{0.9}, "P1a 0.90 bar 1 short (open: 0 of 1 rounds meet it; a verdict takes about 5)"},
		{
			metric{name: "P1a", bar: 1},
			[]float64{0.9, 1.1, 0.9, 1.1},
			"P1a 1.00 bar 1 ok (open: 2 of 4 rounds meet it; a verdict takes about 200)",
		},
		{metric{name: "P7b", bar: 190, atMost: true, unit: "B"}, slices.Repeat([]float64{191.6}, 5), "P7b 192 bar 190 short"},
		{metric{name: "P7a", bar: 4, atMost: true, unit: "us of CPU"}, slices.Repeat([]float64{3.14}, 5), "P7a 3.1 bar 4 ok"},
		{metric{name: "P2b", shown: true}, []float64{0.5}, "P2b 0.50 no bar"},
	} {
		if got := judge(c.m, "", c.values).line(false); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	r := judge(metric{name: "P3", bar: 0.92}, "", []float64{0.95, 0.93, 0.99})
	if r.Min != 0.93 || r.Max != 0.99 || r.Rounds != 3 {
		t.Errorf("min, max, rounds: %v, %v, %v", r.Min, r.Max, r.Rounds)
	}
}

func TestPick(t *testing.T) {
	names := func(only string) string {
		pairs, err := pick(allPairs(), only)
		if err != nil {
			return err.Error()
		}
		var all []string
		for _, p := range pairs {
			all = append(all, p.names())
		}
		return strings.Join(all, " ")
	}
	for only, want := range map[string]string{
		"": "P1a P1b P2a,P7d P2b,P7a,P7b,P7c P3,P7e P4 P6a P6b P8a P8b,P8c P8d,P8e P9a,P9b,P9c P10a " +
			"P10b P10c P11a,P11b P12a,P12b P13a,P13f P13b P13c P13d P13e P14 P15 P16a P16b P16c P16d P17 " +
			"P18 P19,P19c P19b P20a,P20b,P20e P20c,P20f,P20g P20d,P20h,P20i P20j,P20k,P20l P21 P22a P22b " +
			"P23a,P23b,P23c P23d,P23e,P23f P24a,P24b P25a P25b P25c P25d P26a P26b P27",
		"P2,P3":  "P2a P2b P3",
		"P7":     "P7d P7a,P7b,P7c P7e",
		"P1b":    "P1b",
		"P2,P99": `-only: there is no ratio "P99" here`,
	} {
		if got := names(only); got != want {
			t.Errorf("-only %q picks %q, want %q", only, got, want)
		}
	}
}

func TestUsageErrors(t *testing.T) {
	for _, args := range [][]string{
		{"-only", "P99"},
		{"-rounds", "0"},
		{"-seconds", "0"},
		{"-nonsense"},
		{"P2"},
		{"-days", "30"},
		{"-keys", "1"},
		{"-scale", "0"},
	} {
		var out, err bytes.Buffer
		if code := run(t.Context(), args, &out, &err); code != 2 || err.Len() == 0 {
			t.Errorf("%v: exit status %d, %q", args, code, &err)
		}
	}
}

// The ids decide which path of the key codec is measured.
func TestIDs(t *testing.T) {
	r := rand.NewChaCha8([32]byte{})
	first, last := orderedID(r, 0), orderedID(r, perMilli)
	if first.Version() != 7 || first.Variant() != uuid.RFC4122 || bytes.Compare(first[:6], last[:6]) >= 0 {
		t.Errorf("ids ordered by time: %s, %s", first, last)
	}
	if id := randomID(r, 0); id.Version() != 4 || id.Variant() != uuid.RFC4122 {
		t.Errorf("random id: %s", id)
	}
}

func TestTape(t *testing.T) {
	tp := newTape(2, fetchLimit+10, orderedID)
	p := partition{t: tp, id: 1}
	ids := map[string]bool{}
	for from := int64(0); from < fetchLimit+10; {
		got, err := p.Fetch(t.Context(), from, 1<<30)
		if err != nil || got.Next <= from {
			t.Fatalf("fetch from %d: next %d, %v", from, got.Next, err)
		}
		for i, m := range got.Messages {
			if m.Offset != from+int64(i) || len(m.Value) != bodyBytes {
				t.Fatalf("message at %d: offset %d, %d bytes", from+int64(i), m.Offset, len(m.Value))
			}
			id, err := consumer.HeaderKey(idHeader)(m)
			if err != nil || len(id) != idBytes {
				t.Fatalf("id %q, %v", id, err)
			}
			ids[id] = true
		}
		from = got.Next
	}
	if len(ids) != fetchLimit+10 {
		t.Errorf("%d ids, want %d", len(ids), fetchLimit+10)
	}
}

// A way that is a few seconds behind keeps up; one whose backlog grows does not.
func TestHeldWayReachesItsRate(t *testing.T) {
	for _, c := range []struct {
		r    heldResult
		want bool
	}{
		{heldResult{left: 2000, last: 700}, true},
		{heldResult{left: 6000, last: 990}, false},
		{heldResult{way: heldWay{byItself: true}, last: 980}, true},
		{heldResult{way: heldWay{byItself: true}, last: 900}, false},
	} {
		if got := c.r.reaches(1000); got != c.want {
			t.Errorf("%+v: %v", c.r, got)
		}
	}
}
