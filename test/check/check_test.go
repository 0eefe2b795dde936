package check

import (
	"slices"
	"strings"
	"testing"
)

// sound are facts without a fault: a and b are applied and charged, c is parked.
func sound() Facts {
	return Facts{
		IDs: []string{"a", "b", "c"}, Effects: map[string]int{"a": 1, "b": 1}, Parked: map[string]int{"c": 1},
		Charged: map[string]int{"a": 1, "b": 1},
	}
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name string
		harm func(*Facts)
		want string // of the faults, in order
	}{
		{"sound", func(*Facts) {}, ""},
		{"missing", func(f *Facts) { delete(f.Effects, "a"); delete(f.Charged, "a") }, Missing + ": 1 (a)"},
		{"doubled", func(f *Facts) { f.Effects["a"] = 2 }, Doubled + ": 1 (a)"},
		{"both", func(f *Facts) { f.Parked["a"] = 1 }, "applied and parked: 1 (a)"},
		{"parked twice", func(f *Facts) { f.Parked["c"] = 2 }, "parked more than once: 1 (c)"},
		{"invented", func(f *Facts) { f.Effects["x"] = 1; f.Charged["x"] = 1 }, "applied or parked, and never produced: 1 (x)"},
		{"unpaid", func(f *Facts) { delete(f.Charged, "b") }, "applied, and not charged: 1 (b)"},
		{"paid twice", func(f *Facts) { f.Charged["b"] = 2 }, "charged under more than one key: 1 (b)"},
		{"paid without an effect", func(f *Facts) { f.Charged["c"] = 1 }, "charged, and not applied: 1 (c)"},
		{"other bytes", func(f *Facts) { f.Changed = 3 }, "3 calls came with other bytes than their key's first"},
		{"all missing", func(f *Facts) { clear(f.Effects); clear(f.Parked); clear(f.Charged) }, Missing + ": 3 (a, b, c)"},
	} {
		f := sound()
		c.harm(&f)
		v := Judge(f)
		var got []string
		for _, fault := range v.Faults {
			got = append(got, fault.String())
		}
		if strings.Join(got, "; ") != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if v.OK() != (c.want == "") {
			t.Errorf("%s: ok is %v", c.name, v.OK())
		}
	}
}

// history are the facts of a storm without a fault: three messages of one ordering key and one of
// another, with a copy of b in its own partition and one of d in both. c is parked, a asks for a
// call, x was aborted.
func history() Facts {
	return Facts{
		IDs: []string{"a", "b", "c", "d", "e"}, Effects: map[string]int{"a": 1, "b": 1, "d": 1, "e": 1}, Parked: map[string]int{"c": 1},
		History: &History{
			Log:       []Record{{"a", 0, 0}, {"b", 0, 1}, {"b", 0, 2}, {"c", 0, 3}, {"d", 0, 4}, {"e", 0, 6}, {"d", 1, 0}},
			Applied:   []Effect{{"d", "k", 4, 1, 0}, {"a", "k", 1, 0, 0}, {"b", "k", 2, 0, 1}, {"e", "k", 5, 0, 6}},
			Claimed:   map[string]bool{"a": true, "b": true, "c": true, "d": true, "e": true, "x": false},
			Calls:     map[string]int{"a": 1},
			WithCall:  func(id string) bool { return id == "a" || id == "c" },
			Faulty:    func(id string) bool { return id == "c" },
			Cursor:    map[int32]int64{0: 7, 1: 1},
			Committed: map[int32]int64{0: 7, 1: -1},
			Ends:      map[int32]int64{0: 7, 1: 1},
		},
	}
}

func TestJudgeHistory(t *testing.T) {
	for _, c := range []struct {
		name string
		harm func(*Facts, *History)
		want string // rules, in order
	}{
		{"sound", func(*Facts, *History) {}, ""},
		{"lost", func(f *Facts, h *History) {
			delete(f.Effects, "b")
			h.Applied = slices.Delete(h.Applied, 2, 3)
			h.Claimed["b"] = false
		}, "I1 I7 I7"},
		{
			"lost but for its key",
			func(f *Facts, h *History) { delete(f.Effects, "b"); h.Applied = slices.Delete(h.Applied, 2, 3) },
			"I1 I4 I7 I7",
		},
		{"doubled from its copy", func(f *Facts, h *History) {
			f.Effects["b"] = 2
			h.Applied = append(h.Applied, Effect{"b", "k", 2, 0, 2})
		}, "I2"},
		{"invented", func(f *Facts, h *History) {
			f.Effects["x"] = 1
			h.Claimed["x"] = true
			h.Applied = append(h.Applied, Effect{"x", "k", 9, 0, 5})
		}, "I3 I3"},
		{"unknown outcome, applied", func(f *Facts, h *History) {
			f.Unknown = []string{"x"}
			f.Effects["x"] = 1
			h.Claimed["x"] = true
			h.Log = append(h.Log, Record{"x", 0, 5})
			h.Applied = append(h.Applied, Effect{"x", "k", 9, 0, 5})
		}, ""},
		{"inverted", func(_ *Facts, h *History) { h.Applied[1], h.Applied[2] = h.Applied[2], h.Applied[1] }, "I6"},
		{"inverted across a parked one", func(_ *Facts, h *History) { h.Applied[1], h.Applied[3] = h.Applied[3], h.Applied[1] }, "I6"},
		{"inverted by the producer", func(_ *Facts, h *History) {
			h.Log[0].Offset = 1
			h.Log[1].Offset = 0
			h.Applied[1], h.Applied[2] = Effect{"b", "k", 2, 0, 0}, Effect{"a", "k", 1, 0, 1}
		}, "P"},
		{"no key", func(_ *Facts, h *History) { h.Claimed["d"] = false }, "I4"},
		{"aborted, and claimed", func(_ *Facts, h *History) { h.Claimed["x"] = true }, "I4"},
		{"no call", func(_ *Facts, h *History) { delete(h.Calls, "a") }, "I4"},
		{"call without effect", func(_ *Facts, h *History) { h.Calls["c"] = 1 }, "I4"},
		{"call twice", func(_ *Facts, h *History) { h.Calls["a"] = 2 }, "I4"},
		{"applied and parked", func(f *Facts, h *History) { f.Parked["b"] = 1 }, "I5 D3"},
		{"wrong place", func(_ *Facts, h *History) { h.Applied[1].Offset = 1 }, "I3"},
		{"effect without its cursor", func(_ *Facts, h *History) { h.Cursor[0] = 6; h.Committed[0] = 6 }, "I4 I13"},
		{"parked for good", func(_ *Facts, h *History) { h.Parked = []Parked{{"c", "k", 0, 3, "waiting"}} }, ""},
		{"still to be tried", func(_ *Facts, h *History) { h.Parked = []Parked{{"c", "k", 0, 3, "retrying"}} }, "I13"},
		{"to be tried, behind one that waits", func(_ *Facts, h *History) {
			h.Parked = []Parked{{"c", "k", 0, 3, "waiting"}, {"f", "k", 0, 5, "retrying"}}
		}, ""},
		{"blocked behind nothing", func(_ *Facts, h *History) { h.Parked = []Parked{{"c", "k", 0, 3, "blocked"}} }, "I13"},
		{"settled without an effect", func(_ *Facts, h *History) { h.Resolved = []string{"b", "c"} }, "I4"},
		{
			"applied past what holds its key back",
			func(_ *Facts, h *History) {
				h.ByKey = true
				h.Parked = []Parked{{"c", "k", 0, 3, "waiting"}}
			},
			"I6",
		},
		{"a whole key held back", func(f *Facts, h *History) {
			last := h.Applied[len(h.Applied)-1]
			h.Applied = h.Applied[:len(h.Applied)-1]
			h.ByKey = true
			f.Effects[last.ID] = 0
			f.Parked[last.ID] = 1
			h.Calls[last.ID] = 0
			h.Parked = []Parked{{"c", "k", 0, 3, "waiting"}, {last.ID, "k", last.Partition, last.Offset, "blocked"}}
		}, ""},
		{"held back by one that is sound", func(f *Facts, h *History) {
			last := h.Applied[len(h.Applied)-1]
			h.Applied = h.Applied[:len(h.Applied)-1]
			h.ByKey = true
			f.Effects[last.ID] = 0
			f.Parked[last.ID] = 1
			h.Calls[last.ID] = 0
			h.Parked = []Parked{{last.ID, "k", last.Partition, last.Offset, "waiting"}}
		}, "D3"},
		{"Kafka ahead", func(_ *Facts, h *History) { h.Committed[1] = 2 }, "I13"},
	} {
		f := history()
		c.harm(&f, f.History)
		var got []string
		for _, fault := range Judge(f).Faults {
			got = append(got, fault.Rule)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q: %v", c.name, got, c.want, Judge(f).Faults)
		}
	}
}
