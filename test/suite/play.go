package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// testBehaviour plays the tests of behaviour and one of each rule. With packages, or with all tests
// of each rule, only long cases and the laboratory are left out.
func testBehaviour(o options) error {
	which := "one"
	flags := []string{"-short"}
	if o.allRules || len(o.packages) > 0 {
		which = "all"
	} else {
		others, err := otherRuleTests(o.nth())
		if err != nil {
			return err
		}
		flags = append(flags, "-skip", exactly(others))
	}
	fmt.Printf("make test: tests of behaviour, and %s of each rule; make test-long has the long ones and "+
		"the laboratory's, make check those of documents\n", which)
	long := o.part
	if long == "" {
		long = "1/20"
	}
	return o.inWorkspace(long, func(env, modules []string) error {
		packages := o.packages
		if len(packages) == 0 {
			var err error
			if packages, err = behaviour(env, modules); err != nil {
				return err
			}
		}
		return o.goTest(env, flags, packages)
	})
}

// behaviour returns the packages of all modules but those of the laboratory and of make check.
func behaviour(env, modules []string) ([]string, error) {
	all, err := output(env, slices.Concat([]string{"go", "list"}, longest, patterns(modules))...)
	if err != nil {
		return nil, err
	}
	leftOut := below(laboratory)
	for _, c := range checks {
		leftOut = append(leftOut, "./"+c)
	}
	others, err := output(env, append([]string{"go", "list"}, leftOut...)...)
	return slices.DeleteFunc(all, func(pkg string) bool { return slices.Contains(others, pkg) }), err
}

func patterns(modules []string) (all []string) {
	for _, m := range modules {
		all = append(all, m+"/...")
	}
	return all
}

// testLong plays the tests that have long cases, with those.
func testLong(o options) error {
	var flags []string
	packages := o.packages
	if len(packages) == 0 {
		names, folders, err := longTests()
		if err != nil {
			return err
		}
		flags = []string{"-run", exactly(names)}
		packages = folders
	}
	return o.inWorkspace(o.part, func(env, _ []string) error { return o.goTest(env, flags, packages) })
}

// testLaboratory plays the tests of what compares with other libraries, or checks the checkers.
func testLaboratory(o options) error {
	return o.inWorkspace(os.Getenv("ONLYONCE_TEST_LONG"), func(env, _ []string) error {
		return o.goTest(env, nil, below(laboratory))
	})
}

// inWorkspace is inWorkspace with what tests read from the environment. Without the race detector
// the packages have their failpoints, and need no second binary for them.
func (o options) inWorkspace(long string, f func(env, modules []string) error) error {
	return inWorkspace(func(env, modules []string) error {
		env = append(env, "ONLYONCE_TEST_LONG="+long, "JDK_JAVA_OPTIONS=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
		if !o.race {
			flags, err := output(nil, "go", "env", "GOFLAGS")
			if err != nil {
				return err
			}
			env = append(env, "GOFLAGS="+strings.Join(append(flags, "-tags=onlyonce_fault"), " "))
		}
		return f(env, modules)
	})
}

// goTest runs go test on one Postgres and, with a JVM or Docker, one real Kafka broker.
func (o options) goTest(env, flags, packages []string) error {
	command := []string{"go", "run", "./test/devenv/run", "-postgres", "-kafka"}
	if o.ci {
		command = append(command, "-require-real")
	}
	command = append(command, "--", "go")
	if o.ci {
		command = append(command, "run", "./test/retest", "-unraced", strings.Join(unraced, ","))
		if o.flaky != "" {
			command = append(command, "-flaky", o.flaky)
		}
	} else {
		command = append(command, "test", "-vet=off")
	}
	if o.race {
		command = append(command, "-race")
	}
	command = append(command, "-p", strconv.Itoa(o.packagesAtOnce), "-parallel", strconv.Itoa(o.testsAtOnce), "-timeout", "20m")
	return runIn(".", env, slices.Concat(command, flags, packages)...)
}
