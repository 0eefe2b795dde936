package main

// adversaryRules are mends that the adversary has to miss when they are gone: its relevant histories must end in a breach.
var adversaryRules = []mutant{
	{rule: "T4 adversary: pruning does not wait", file: "consumer/prune.go",
		old: "return slices.Contains(open, t) }) {", new: "return false }) {",
		pkg: "./internal/adversary", test: "TestT4LateDelivery"},
	{rule: "T7 adversary: fence and claim without a bound", file: "consumer/attempt.go",
		old: "	before, cancel := e.c.bounded(work) // up to the handler", new: "	before, cancel := context.WithCancel(work)",
		pkg: "./internal/adversary", test: "TestT7SilenceBeforeTheHandler"},
}
