package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Folders whose tests are not among those of behaviour.
var (
	// laboratory compares with other libraries, or checks the checkers.
	laboratory = []string{
		"test/bench", "test/adversary", "test/callcheck", "test/check", "test/compat",
		"test/devenv", "test/growth", "test/model", "test/mutants", "test/remotes", "test/results",
		"test/retest", "test/rolling", "test/seams", "test/storm",
	}
	// checks are the tests of make check.
	checks = []string{"test/api", "test/docs/...", "test/layout", "test/suite", "test/words", "deploy/monitoring"}
	// unraced have nothing for the race detector to find: they compare with other libraries, or
	// compute on one processor, which takes it minutes.
	unraced = []string{"test/bench", "test/compat", "cmd/onlyoncevet", "ops/console/e2e", "test/model", "test/mutants"}
	// longest are packages of which each takes minutes: they begin first.
	longest = []string{
		"./consumer", "./cmd/onlyonce", "./onlyoncetest", "./queue/sqsqueue", "./outbox/sqssink",
		"./ops/console", "./outbox", "./consumer/franzsource", "./consumer/kafkasource",
		"./outbox/rabbitsink", "./cmd/onlyoncevet", "./examples/quickstart",
	}
)

var (
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+)`)
	fuzzFunc = regexp.MustCompile(`(?m)^func (Fuzz[A-Za-z0-9_]+)\(`)
	// hasLong is in files of which -short leaves cases out.
	hasLong = regexp.MustCompile(`pgtest[.](Long|Sampled)|testing[.]Short`)
	// ofRule is the name of a test of a rule of docs/rules, for example TestO14EachTenant.
	ofRule = regexp.MustCompile(`^(Test[A-Z][0-9]+)[A-Z]`)
)

// testFiles calls f with the path and text of each file with tests.
func testFiles(f func(path string, text []byte)) error {
	return filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err == nil {
			f(filepath.ToSlash(path), text)
		}
		return err
	})
}

// longTests returns the tests of the files that have long cases, and the folders of those files.
func longTests() (names, folders []string, err error) {
	err = testFiles(func(path string, text []byte) {
		if inFolder(path, append([]string{"test"}, laboratory...)) || !hasLong.Match(text) {
			return
		}
		names = append(names, matches(testFunc, text)...)
		folders = append(folders, "./"+filepath.ToSlash(filepath.Dir(path)))
	})
	slices.Sort(folders)
	return names, slices.Compact(folders), err
}

// otherRuleTests returns the tests of rules but one of each rule, the nth.
func otherRuleTests(nth int) ([]string, error) {
	var all []string
	err := testFiles(func(path string, text []byte) {
		if !inFolder(path, []string{"test"}) {
			all = append(all, matches(testFunc, text)...)
		}
	})
	slices.Sort(all)
	return allButOne(slices.Compact(all), nth), err
}

// allButOne returns the names of tests of rules in sorted names, but the nth of each rule: counted
// round, so that each number draws one.
func allButOne(names []string, nth int) (others []string) {
	byRule := map[string][]string{}
	for _, name := range names {
		if rule := ofRule.FindStringSubmatch(name); rule != nil {
			byRule[rule[1]] = append(byRule[rule[1]], name)
		}
	}
	for _, tests := range byRule {
		drawn := (nth - 1) % len(tests)
		others = append(others, slices.Delete(tests, drawn, drawn+1)...)
	}
	slices.Sort(others)
	return others
}

// inFolder reports whether a path lies in one of some folders.
func inFolder(path string, folders []string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool { return strings.HasPrefix(path, folder+"/") })
}

func matches(pattern *regexp.Regexp, text []byte) (names []string) {
	for _, m := range pattern.FindAllSubmatch(text, -1) {
		names = append(names, string(bytes.Clone(m[1])))
	}
	return names
}

// exactly is a pattern of go test for some names, and for none if there are none.
func exactly(names []string) string {
	return "^(" + strings.Join(append(slices.Clone(names), "none"), "|") + ")$"
}

// below returns the patterns of packages in folders.
func below(folders []string) (patterns []string) {
	for _, f := range folders {
		patterns = append(patterns, "./"+f+"/...")
	}
	return patterns
}
