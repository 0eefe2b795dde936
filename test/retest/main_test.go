package main

import (
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"
)

// played is the judgement of output that tests have printed: package, test, and its lines; the
// tests named in failed have failed.
func played(t *testing.T, stalled bool, lines [][3]string, failed ...string) (again []string, wrong bool) {
	t.Helper()
	var all strings.Builder
	put := func(e event) {
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(append(b, '\n'))
	}
	for _, l := range lines {
		put(event{Action: "output", Package: l[0], Test: l[1], Output: l[2] + "\n"})
	}
	for _, f := range failed {
		pkg, test, _ := strings.Cut(f, " ")
		put(event{Action: "fail", Package: pkg, Test: test})
	}
	r, err := read(strings.NewReader(all.String()), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	names, wrong := r.judge(stalled)
	for _, n := range names {
		again = append(again, n.String())
	}
	return again, wrong
}

func TestOnlyWhoGaveUpWaitingRunsAgain(t *testing.T) {
	slow := [3]string{"p", "TestA", "    a_test.go:7: gave up waiting after 30s: position 7"}
	kept := [3]string{"p", "TestA", "    pgtest.go:161: pgtest: the database is kept: postgres://x"}
	for _, c := range []struct {
		name   string
		lines  [][3]string
		failed []string
		again  []string
		wrong  bool
	}{
		{
			"gave up",
			[][3]string{{"p", "TestA", "    a_test.go:3: a log"}, slow, kept},
			[]string{"p TestA", "p "},
			[]string{"p TestA"},
			false,
		},
		{
			"an engine's fault while the test ends",
			[][3]string{slow, {"p", "TestA", "    main_test.go:9: failed: releasing lane 3: timeout"}},
			[]string{"p TestA", "p "},
			[]string{"p TestA"},
			false,
		},
		{
			"gave up in a subtest",
			[][3]string{{"p", "TestA/x", slow[2]}, {"p", "TestA/y", slow[2]}},
			[]string{"p TestA/x", "p TestA/y", "p TestA", "p "},
			[]string{"p TestA"},
			false,
		},
		{
			"gave up, and its rig says where calls stand",
			[][3]string{slow, {"p", "TestA", "    rig.go:107: queuerig: calls:  [20 retrying]"}},
			[]string{"p TestA", "p "},
			[]string{"p TestA"},
			false,
		},
		{
			"a server that did not start",
			[][3]string{{"p", "", "gave up waiting after 2m0s: postgres"}},
			[]string{"p "},
			[]string{"p"},
			false,
		},
		{"something wrong", [][3]string{{"p", "TestA", "    a_test.go:7: applied twice"}}, []string{"p TestA", "p "}, nil, true},
		{
			"something wrong elsewhere",
			[][3]string{slow, {"q", "TestB", "    b_test.go:7: applied twice"}},
			[]string{"p TestA", "p ", "q TestB", "q "},
			[]string{"p TestA"},
			true,
		},
		{
			"a checker that complains afterwards",
			[][3]string{slow, {"p", "TestA", "    check.go:7: I1: message 3 is lost"}},
			[]string{"p TestA", "p "},
			nil,
			true,
		},
		{
			"a parent that complains",
			[][3]string{{"p", "TestA/x", slow[2]}, {"p", "TestA", "    a_test.go:9: lost"}},
			[]string{"p TestA/x", "p TestA", "p "},
			[]string{"p TestA"},
			true,
		},
		{"a data race beside it", [][3]string{slow, {"p", "", "WARNING: DATA RACE"}}, []string{"p TestA", "p "}, []string{"p TestA"}, true},
		{"a panic", [][3]string{slow, {"p", "TestA", "panic: nil"}}, []string{"p TestA", "p "}, []string{"p TestA"}, true},
		{"a build", [][3]string{{"p", "", "x.go:1:1: undefined: y"}}, []string{"p "}, nil, true},
	} {
		again, wrong := played(t, false, c.lines, c.failed...)
		if !slices.Equal(again, c.again) || wrong != c.wrong {
			t.Errorf("%s: again %v, wrong %v; want %v, %v", c.name, again, wrong, c.again, c.wrong)
		}
	}
}

// If the machine stood still, what failed is the machine's fault until it fails again. A data race
// never is.
func TestAfterAPauseEveryFailedTestRunsAgain(t *testing.T) {
	lost := [3]string{"p", "TestA/x", "    a_test.go:7: the lease was not renewed in time"}
	parent := [3]string{"p", "TestA", "    a_test.go:9: lost"}
	again, wrong := played(t, true, [][3]string{lost, parent}, "p TestA/x", "p TestA", "p ")
	if !slices.Equal(again, []string{"p TestA"}) || wrong {
		t.Errorf("again %v, wrong %v", again, wrong)
	}
	race := [3]string{"p", "TestA/x", "WARNING: DATA RACE"}
	if _, wrong := played(t, true, [][3]string{lost, race}, "p TestA/x", "p TestA", "p "); !wrong {
		t.Error("a data race was excused")
	}
}

func TestStolenTime(t *testing.T) {
	total, steal := ticksOf("cpu  10 20 30 40 50 0 0 60 7 0")
	if total != 210 || steal != 60 {
		t.Errorf("total %v, stolen %v", total, steal)
	}
}

// If a package ends before its tests do, for example by its timeout, what they printed is printed,
// and they are named.
func TestUnendedTestsAreShown(t *testing.T) {
	var in, out strings.Builder
	for _, e := range []event{
		{Action: "output", Package: "p", Test: "TestA", Output: "=== CONT TestA\n"},
		{Action: "output", Package: "p", Test: "TestB", Output: "=== CONT TestB\n"},
		{Action: "pass", Package: "p", Test: "TestB"},
		{Action: "output", Package: "p", Test: "TestA", Output: "panic: test timed out after 1s\n"},
		{Action: "output", Package: "p", Test: "TestC", Output: "skipped\n"},
		{Action: "skip", Package: "p", Test: "TestC"},
		{Action: "fail", Package: "p"},
	} {
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		in.Write(append(b, '\n'))
	}
	r, err := read(strings.NewReader(in.String()), &out)
	if err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.Contains(got, "panic: test timed out") ||
		strings.Contains(got, "TestB") ||
		strings.Contains(got, "skipped") {
		t.Errorf("printed %q", got)
	}
	if got := r.tests[name{"p", ""}].unended; !slices.Equal(got, []string{"TestA"}) {
		t.Errorf("still running: %v", got)
	}
}

// What has none of our concurrency is tested without the race detector.
func TestDivide(t *testing.T) {
	runs, err := divide([]string{"test"}, []string{"../words", "../retest", "../../test/model"}, []string{"test/model", "test/words", ""})
	if err != nil {
		t.Fatal(err)
	}
	const root = "github.com/onlyonce/onlyonce/test/"
	good := len(runs) == 2 &&
		slices.Equal(runs[0].args, []string{"test", "-race"}) &&
		slices.Equal(runs[0].packages, []string{root + "retest"}) &&
		slices.Equal(runs[1].args, []string{"test"}) &&
		slices.Equal(runs[1].packages, []string{root + "words", root + "model"})
	if !good {
		t.Errorf("divided into %v", runs)
	}
}
