package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

// Exit statuses.
const (
	statusBreach = 1
	statusUsage  = 2
)

// memoryLimit makes the collector work harder before the process reaches 8 GiB.
const memoryLimit = 7 << 30

func main() {
	only := flag.String("only", "", "comma-separated parts of names: slots/C5,fence; empty: all")
	small := flag.Bool("small", false, "only what the package's test runs")
	list := flag.Bool("list", false, "print the names, and explore nothing")
	verbose := flag.Bool("v", false, "print the trace of each fault that is found")
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(statusUsage)
	}
	chosen := choose(table(), *only, *small)
	switch {
	case len(chosen) == 0:
		fmt.Fprintln(os.Stderr, "model: nothing is selected: see -list")
		os.Exit(statusUsage)
	case *list:
		for _, e := range chosen {
			fmt.Println(e.name)
		}
		return
	}
	debug.SetGCPercent(40)
	debug.SetMemoryLimit(memoryLimit)
	if !check(chosen, *verbose, os.Stdout) {
		os.Exit(statusBreach)
	}
}

// choose returns the entries with one of the comma-separated parts in their names.
func choose(all []entry, only string, small bool) (chosen []entry) {
	for _, e := range all {
		if small && e.nightly {
			continue
		}
		for part := range strings.SplitSeq(only, ",") {
			if strings.Contains(e.name, part) {
				chosen = append(chosen, e)
				break
			}
		}
	}
	return chosen
}

// check explores the entries one after another, and reports whether all are as they should be.
func check(entries []entry, verbose bool, out io.Writer) bool {
	begin := time.Now()
	scopes := 0
	faults := 0
	states := 0
	ok := true
	for _, e := range entries {
		r := e.run()
		debug.FreeOSMemory()
		kind := "scope"
		if e.fault() {
			kind = "fault"
			faults++
		} else {
			scopes++
		}
		states += r.states
		line := fmt.Sprintf("model %s=%q states=%d seconds=%.1f", kind, e.name, r.states, r.took.Seconds())
		failed := e.failed(r)
		switch {
		case failed != "":
			ok = false
			fmt.Fprintf(out, "%s BREACH: %s\n", line, failed)
		case e.fault():
			fmt.Fprintf(out, "%s found after %d steps: %s\n", line, len(r.trace), r.violation)
		default:
			fmt.Fprintf(out, "%s ok\n", line)
		}
		if failed != "" || verbose {
			for i, step := range r.trace {
				fmt.Fprintf(out, "  %3d %s\n", i+1, step)
			}
		}
	}
	word := "ok"
	if !ok {
		word = "BREACH"
	}
	fmt.Fprintf(out, "model %s scopes=%d faults=%d states=%d seconds=%.0f\n", word, scopes, faults, states, time.Since(begin).Seconds())
	return ok
}
