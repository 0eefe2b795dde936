package main

import "testing"

func TestJudge(t *testing.T) {
	t.Parallel()
	messages := []content{{ID: "a", Key: "x"}, {ID: "b", Key: "x"}, {ID: "c", Key: "y"}, {ID: "d", Key: "x"}}
	for name, c := range map[string]struct {
		effects []effect
		resets  []int64
		want    verdict
	}{
		"once":           {effects: []effect{{1, "a", "0/0"}, {2, "b", "0/1"}, {3, "c", "1/0"}, {4, "d", "0/2"}}},
		"nothing":        {want: verdict{Lost: 4}},
		"a record twice": {effects: []effect{{1, "a", "0/0"}, {2, "a", "0/0"}}, want: verdict{ByKill: 1, Lost: 3}},
		"three times, once by a reset": {
			effects: []effect{{1, "a", "0/0"}, {5, "a", "0/0"}, {7, "a", "0/0"}},
			resets:  []int64{4},
			want:    verdict{ByKill: 1, ByReset: 1, Lost: 3},
		},
		"the reset before both": {
			effects: []effect{{5, "a", "0/0"}, {7, "a", "0/0"}}, resets: []int64{4}, want: verdict{ByKill: 1, Lost: 3},
		},
		"a copy": {effects: []effect{{1, "a", "0/0"}, {2, "a", "0/9"}}, want: verdict{ByCopy: 1, Lost: 3}},
		"a copy instead of the first": {
			effects: []effect{{1, "b", "0/1"}, {2, "d", "0/2"}, {3, "c", "1/0"}, {4, "a", "0/9"}}, want: verdict{Overtaken: 1},
		},
		"the last of a key first": {
			effects: []effect{{1, "d", "0/2"}, {2, "a", "0/0"}, {3, "b", "0/1"}, {4, "c", "1/0"}}, want: verdict{Overtaken: 2},
		},
		"another key first": {
			effects: []effect{{1, "c", "1/0"}, {2, "a", "0/0"}, {3, "b", "0/1"}, {4, "d", "0/2"}},
		},
		"again, after a later one": {
			effects: []effect{{1, "a", "0/0"}, {2, "b", "0/1"}, {3, "c", "1/0"}, {4, "d", "0/2"}, {5, "a", "0/0"}},
			want:    verdict{ByKill: 1},
		},
	} {
		if got := judge(messages, c.effects, c.resets); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// Each copy is behind its message, and in the whole stream each comes as often as it should.
func TestStream(t *testing.T) {
	t.Parallel()
	s := newStream(settings{messages: 1000, seed: 7})
	if len(s.records) != 1050 || s.copies != 50 {
		t.Fatalf("%d records, %d copies", len(s.records), s.copies)
	}
	seen := map[string]int{}
	last := -1
	for _, c := range s.records {
		seen[c.ID]++
		if seen[c.ID] == 1 {
			if c.N != last+1 {
				t.Fatalf("message %d after %d", c.N, last)
			}
			last = c.N
		}
	}
	for _, m := range s.messages {
		want := 1
		if m.N%copiedEvery == copiedEvery-1 {
			want = 2
		}
		if seen[m.ID] != want {
			t.Errorf("%s comes %d times", m.ID, seen[m.ID])
		}
	}
}
