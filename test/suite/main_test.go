package main

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// makefile returns the lines of the Makefile, with continued lines joined.
func makefile(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.ReplaceAll(string(text), "\\\n\t", ""), "\n")
}

// The Makefile is a list of targets that a newcomer can read: each has its sentence, and what picks
// tests is in this program.
func TestMakefileHasNoPrograms(t *testing.T) {
	text, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(string(text), "\n") {
		if n := len(strings.ReplaceAll(line, "\t", "        ")); n > 120 {
			t.Errorf("Makefile:%d: %d columns, want at most 120", i+1, n)
		}
	}
	program := regexp.MustCompile(`\b(awk|sed|grep|for|while|case|trap)\b`)
	var phony []string
	documented := false
	recipe := 0
	for _, line := range makefile(t) {
		if names, ok := strings.CutPrefix(line, ".PHONY:"); ok {
			phony = strings.Fields(names)
		}
		if strings.HasPrefix(line, "\t") {
			if recipe++; recipe > 3 {
				t.Errorf("a recipe has more than three lines: %s", line)
			}
			if found := program.FindString(line); found != "" {
				t.Errorf("%s is a program: %s", found, line)
			}
			continue
		}
		recipe = 0
		if m := target.FindStringSubmatch(line); m != nil && !strings.Contains(line, " = ") && !strings.Contains(line, " := ") {
			if !documented {
				t.Errorf("target %s has no line that begins with ##", m[1])
			}
			if !slices.Contains(phony, m[1]) {
				t.Errorf("target %s is not in .PHONY", m[1])
			}
			documented = false
			continue
		}
		if strings.HasPrefix(line, "## ") {
			documented = true
		} else if line == "" {
			documented = false
		}
	}
	if len(phony) < 50 {
		t.Errorf("%d targets were looked at", len(phony))
	}
}

// make check plays the packages that make test leaves to it.
func TestCheckPlaysItsPackages(t *testing.T) {
	want := "\t$(GO) test ./" + strings.Join(checks, " ./")
	if !slices.Contains(makefile(t), want) {
		t.Errorf("the Makefile has no line %q", want)
	}
}

func TestHelpHasEachTarget(t *testing.T) {
	t.Chdir("../..")
	var out bytes.Buffer
	if err := printHelp(&out); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"help            list the targets\n",
		"storm-key       the same with messages",
		"zones           make test with",
	} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("help has no line %q:\n%s", line, &out)
		}
	}
}

// Each number draws one test of each rule, counted round, and a test of no rule is never left out.
func TestOneOfEachRule(t *testing.T) {
	names := []string{"TestA", "TestT2B", "TestT2C", "TestT2D", "TestT20E", "TestTwo"}
	for nth, want := range map[int][]string{1: {"TestT2C", "TestT2D"}, 3: {"TestT2B", "TestT2C"}, 4: {"TestT2C", "TestT2D"}} {
		if got := allButOne(slices.Clone(names), nth); !slices.Equal(got, want) {
			t.Errorf("%d leaves out %v, want %v", nth, got, want)
		}
	}
	t.Chdir("../..")
	others, err := otherRuleTests(1)
	if err != nil || len(others) < 500 {
		t.Errorf("%d other tests, %v", len(others), err)
	}
}

func TestLongTests(t *testing.T) {
	t.Chdir("../..")
	names, folders, err := longTests()
	if err != nil || !slices.Contains(folders, "./consumer") || !slices.Contains(names, "TestFaultPoints") {
		t.Errorf("%v in %v, %v", names, folders, err)
	}
}

func TestModules(t *testing.T) {
	t.Chdir("../..")
	all, err := modules()
	good := err == nil &&
		all[0] == "." &&
		slices.Contains(all, "telemetry") &&
		!slices.Contains(all, "cmd/onlyoncevet/rules/testdata")
	if !good {
		t.Errorf("%v, %v", all, err)
	}
}
