package quickstart

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/test/demo/command"
	"github.com/onlyonce/onlyonce/test/screen"
	"github.com/onlyonce/onlyonce/test/workload"
)

func TestGenerated(t *testing.T) {
	for _, c := range []struct {
		n          int
		duplicates float64
		records    int
	}{{1, 0, 1}, {1, 1, 2}, {10, 0.1, 11}, {1000, 0.1, 1100}, {1000, 0, 1000}, {1000, 1, 2000}, {999, 0.5, 1498}} {
		s := generate(c.n, c.duplicates)
		if len(s.ids) != c.n || len(s.records) != c.records {
			t.Errorf("%d, %v: %d ids, %d records, want %d", c.n, c.duplicates, len(s.ids), len(s.records), c.records)
		}
		bad := 0
		for i := range c.n {
			m := s.kafka(workload.Record{Message: i}, 7)
			var o order
			if err := json.Unmarshal(m.Value, &o); err != nil || o.AmountCents <= 0 {
				bad++
			}
			if again := s.kafka(workload.Record{Message: i, Strayed: true}, 7); string(again.Value) != string(m.Value) {
				t.Errorf("copies of %s differ", s.ids[i])
			} else if p := (m.WriterData.(int) + 1) % 7; again.WriterData.(int) != p {
				t.Errorf("a strayed copy is in partition %v, want %d", again.WriterData, p)
			}
		}
		if want := max(1, (c.n+249)/500); bad != want {
			t.Errorf("%d: %d bad orders, want %d", c.n, bad, want)
		}
	}
}

func TestInput(t *testing.T) {
	for _, c := range []struct{ text, pointer, want string }{
		{`{"id":"a"}` + "\n\n" + `{"id":7}` + "\n" + `{"id":"a"}`, "/id", ""},
		{"", "/id", "mine.jsonl: no message in it"},
		{"{}\n{", "/id", `mine.jsonl:1: no id at -key /id: consumer: message has no id: /id: no member "id"`},
		{"{}\n{", "/id", "mine.jsonl:2: not a JSON value"},
		{`{"id":1.5}`, "/id", "mine.jsonl:1: no id"},
		{`{"id":""}`, "/id", "mine.jsonl:1: no id"},
		{`{"id":1} {"id":2}`, "/id", "mine.jsonl:1: not a JSON value"},
		{`{"id":1,"x":1}` + "\n" + `{"id":1,"x":2}`, "/id", `mine.jsonl:2: id "1" is in line 1 too`},
		{`{"id":1}` + "\n" + `"` + strings.Repeat("x", longestLine) + `"`, "/id", "mine.jsonl:2: the line is longer than"},
	} {
		s, err := parseInput(strings.NewReader(c.text), "mine.jsonl", c.pointer, 0)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%q: %v", c.text, err)
		case c.want == "":
			if !slices.Equal(s.ids, []string{"a", "7"}) || len(s.records) != 3 {
				t.Errorf("%q: %q, %d records", c.text, s.ids, len(s.records))
			}
		case err == nil || !strings.Contains(err.Error(), c.want):
			t.Errorf("%.50q: %v, want %q", c.text, err, c.want)
		}
	}
}

func TestText(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000", -100: "-100"} {
		if got := screen.Count(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	r := Report{
		Unique:            5_000_000,
		Produced:          20_000_000,
		Effects:           5_000_000,
		Payments:          5_000_000,
		Delivered:         12_345_678,
		Redelivered:       10_123_456,
		DuplicatesByKey:   15_000_000,
		DuplicatesByFence: 10_000_000,
		Duplicates:        25_000_000,
		Kills:             1000,
		KillsInBatch:      1000,
		OK:                true,
		PaymentCalls:      5_555_555,
		PaymentFaults:     155_555,
		parkedBy:          map[string]int{"permanent": 10_000},
		Parked:            10_000,
		afterKill:         123_456,
	}
	var b strings.Builder
	r.Write(&command.Table{Out: &b, Paint: func(_, s string) string { return s }})
	for line := range strings.SplitSeq(b.String(), "\n") {
		if len(line) > 80 {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}
