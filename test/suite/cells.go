package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// ofKafka are the packages that a version of Kafka is tested with.
const ofKafka = "./consumer/franzsource ./consumer/kafkasource ./outbox/kafkasink"

// matrix plays make test with each version: 14 is one of PostgreSQL, kafka-4.0.1 one of Kafka.
func matrix(o options, versions []string) error {
	if len(o.only) > 0 {
		versions = o.only
	}
	return inCells("matrix", versions, func(version string) error {
		env := []string{"CI=true"}
		kafka, isKafka := strings.CutPrefix(version, "kafka-")
		if !isKafka {
			return runIn(".", append(env, "ONLYONCE_POSTGRES_VERSION="+version), "make", "test", "RULES=all")
		}
		packages := strings.Join(o.packages, " ")
		if packages == "" {
			packages = ofKafka
		}
		return runIn(".", append(env, "ONLYONCE_KAFKA_VERSION="+kafka), "make", "test", "PKGS="+packages)
	})
}

// zones plays a target with the sessions and the processes in each time zone.
func zones(o options, names []string) error {
	target := o.target
	if target == "" {
		target = "test"
	}
	return inCells("zone", names, func(zone string) error {
		return runIn(".", []string{"TZ=" + zone, "ONLYONCE_TEST_TIMEZONE=" + zone}, "make", target)
	})
}

// inCells plays all cells, also after one has failed.
func inCells(what string, cells []string, play func(cell string) error) error {
	var failed []string
	for _, cell := range cells {
		fmt.Printf("== %s %s\n", what, cell)
		if err := play(cell); err != nil {
			fmt.Printf("%s %s failed\n", what, cell)
			failed = append(failed, cell)
			continue
		}
		fmt.Printf("%s %s ok\n", what, cell)
	}
	if len(failed) > 0 {
		return fmt.Errorf("%s failed: %s", what, strings.Join(failed, ", "))
	}
	return nil
}

// serverless have tests without servers, of what depends most on the standard library.
var serverless = []string{"./internal/codec", "./internal/fields", "./internal/rfc", "./outbox/httpsink", "./seal", "./test/api"}

// notLinked are packages that users do not link.
var notLinked = regexp.MustCompile(`/(test|bench|e2e)(/|$)`)

// otherGo vets every module that users link and runs tests without servers, with another Go.
func otherGo(toolchain string) error {
	return inWorkspace(func(env, modules []string) error {
		env = append(env, "GOTOOLCHAIN="+toolchain)
		if err := runIn(".", env, "go", "version"); err != nil {
			return err
		}
		packages, err := output(env, append([]string{"go", "list"}, patterns(modules)...)...)
		if err != nil {
			return err
		}
		packages = slices.DeleteFunc(packages, notLinked.MatchString)
		if err := runIn(".", env, append([]string{"go", "vet"}, packages...)...); err != nil {
			return err
		}
		return runIn(".", env, append([]string{"go", "test", "-short"}, serverless...)...)
	})
}

// fuzz runs each fuzz target for a time.
func fuzz(o options, time string) error {
	type target struct{ folder, name string }
	var all []target
	err := testFiles(func(path string, text []byte) {
		folder := "./" + path[:strings.LastIndex("/"+path, "/")]
		for _, name := range matches(fuzzFunc, text) {
			all = append(all, target{strings.TrimSuffix(folder, "/"), name})
		}
	})
	if err != nil {
		return err
	}
	return inWorkspace(func(env, _ []string) error {
		for _, t := range all {
			fmt.Println(t.folder, t.name)
			err := runIn(".", env, "go", "run", "./test/devenv/run", "-postgres", "--",
				"go", "test", "-run", "^$", "-fuzz", "^"+t.name+"$", "-fuzztime", time, t.folder)
			if err != nil {
				return err
			}
		}
		return nil
	})
}
