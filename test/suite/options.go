package main

import (
	"os"
	"runtime"
	"strconv"
	"strings"
)

// options are variables of make.
type options struct {
	// PKGS: packages to test, for example ./consumer/... Without it, all of every module.
	packages []string
	// RULES: all tests of each rule, and not one.
	allRules bool
	// RACE: with the race detector.
	race bool
	// PART: for example 2/3, the second of three parts of fault points and other similar cases. Its
	// first number also draws which test of a rule is played.
	part string
	// CI: a missing server is a failure and not a skipped suite, and a test that only gave up
	// waiting runs once more (test/retest).
	ci bool
	// FLAKY: a file for the names of tests that ran once more.
	flaky string
	// PACKAGES: how many packages run at once, and AT_ONCE: how many tests of one. Tests wait for
	// servers and timers more than they compute, so more run at once than there are processors.
	packagesAtOnce, testsAtOnce int
	// ONLY, comma-separated: cells of the matrix.
	only []string
	// OF: the target that zones plays.
	target string
}

func readOptions() options {
	return options{
		packages:       strings.Fields(os.Getenv("PKGS")),
		allRules:       os.Getenv("RULES") != "",
		race:           os.Getenv("RACE") != "",
		part:           os.Getenv("PART"),
		ci:             os.Getenv("CI") != "",
		flaky:          os.Getenv("FLAKY"),
		packagesAtOnce: number("PACKAGES", max(4, runtime.NumCPU())),
		testsAtOnce:    number("AT_ONCE", 4),
		only:           strings.FieldsFunc(os.Getenv("ONLY"), func(r rune) bool { return r == ',' }),
		target:         os.Getenv("OF"),
	}
}

func number(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 0 {
		return n
	}
	return otherwise
}

// nth is the first number of the part, from 1 on.
func (o options) nth() int {
	first, _, _ := strings.Cut(o.part, "/")
	if n, err := strconv.Atoi(first); err == nil && n > 0 {
		return n
	}
	return 1
}
