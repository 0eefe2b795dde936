// Suite is what the Makefile's targets run: it picks tests, and runs commands in every module.
//
//	go run ./test/suite test              tests of behaviour, and one of each rule
//	go run ./test/suite long              the tests that have long cases, with those
//	go run ./test/suite laboratory        the tests of what compares, or checks the checkers
//	go run ./test/suite each COMMAND...   the command in each module; it fails if it fails in one
//	go run ./test/suite format            fails if gofmt would change a file
//	go run ./test/suite fuzz 20s          each fuzz target for that long
//	go run ./test/suite matrix CELLS...   test with each of these versions of PostgreSQL and Kafka
//	go run ./test/suite zones ZONES...    test in each of these time zones
//	go run ./test/suite other-go VERSION  what users link, with another Go
//	go run ./test/suite help              the targets of the Makefile
//
// The variables of make are its options, for example make test PKGS=./consumer/...: make passes
// those of its command line in the environment. See options.
//
// Exit status 2 is a mistake in the command line.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

func main() {
	os.Exit(run(os.Args[1:]))
}

// errUsage is a mistake in the command line.
var errUsage = errors.New("usage: suite test|long|laboratory|each|format|fuzz|matrix|zones|other-go|help, see test/suite")

func run(args []string) int {
	if len(args) == 0 {
		_, _ = fmt.Fprintln(os.Stderr, errUsage)
		return 2
	}
	err := runVerb(args[0], args[1:])
	switch failed := (*exec.ExitError)(nil); {
	case err == nil:
		return 0
	case errors.Is(err, errUsage):
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 2
	case errors.As(err, &failed):
		return 1 // the command has said why
	}
	_, _ = fmt.Fprintln(os.Stderr, "suite:", err)
	return 1
}

func runVerb(verb string, args []string) error {
	o := readOptions()
	switch {
	case verb == "each" && len(args) > 0:
		return eachModule(args)
	case verb == "fuzz" && len(args) == 1:
		return fuzz(o, args[0])
	case verb == "matrix" && len(args) > 0:
		return matrix(o, args)
	case verb == "zones" && len(args) > 0:
		return zones(o, args)
	case verb == "other-go" && len(args) == 1:
		return otherGo(args[0])
	case len(args) > 0:
		return errUsage
	}
	switch verb {
	case "test":
		return testBehaviour(o)
	case "long":
		return testLong(o)
	case "laboratory":
		return testLaboratory(o)
	case "format":
		return checkFormat()
	case "help":
		return printHelp(os.Stdout)
	}
	return errUsage
}
