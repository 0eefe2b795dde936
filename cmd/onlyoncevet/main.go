// Command onlyoncevet reports code in handlers that breaks what onlyonce promises them.
//
//	go install github.com/onlyonce/onlyonce/cmd/onlyoncevet@latest
//	go vet -vettool=$(which onlyoncevet) ./...
//	onlyoncevet ./...                 # the same, without go vet's cache
//	onlyoncevet -oncepool=false ./... # without one of the rules
//	onlyoncevet help                  # the rules
//
// See package rules for what it looks at.
package main

import (
	"golang.org/x/tools/go/analysis/multichecker"

	"github.com/onlyonce/onlyonce/cmd/onlyoncevet/rules"
)

func main() { multichecker.Main(rules.All()...) }
