package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// tally counts verdicts by directory.
type tally struct {
	counts map[string]map[string]int
	spent  time.Duration
	cpu    time.Duration
}

func (t *tally) add(dir, verdict string, took, cpu time.Duration) {
	if t.counts == nil {
		t.counts = map[string]map[string]int{}
	}
	if t.counts[dir] == nil {
		t.counts[dir] = map[string]int{}
	}
	t.counts[dir][verdict]++
	t.spent += took
	t.cpu += cpu
}

func (t *tally) sum(verdict string) (n int) {
	for _, c := range t.counts {
		n += c[verdict]
	}
	return n
}

// lived is how many changes no test has seen.
func (t *tally) lived() int { return t.sum(survived) + t.sum(uncovered) }

// print prints a line for each directory, and one for all.
func (t *tally) print(out io.Writer, atOnce int) {
	var dirs []string
	for dir := range t.counts {
		dirs = append(dirs, dir)
	}
	slices.Sort(dirs)
	_, _ = fmt.Fprintf(out, "%-28s %7s %9s %10s %11s\n", "directory", killed, survived, uncovered, equivalent)
	for _, dir := range dirs {
		c := t.counts[dir]
		_, _ = fmt.Fprintf(out, "%-28s %7d %9d %10d %11d\n",
			strings.TrimPrefix(dir, "./"), c[killed], c[survived], c[uncovered], c[equivalent])
	}
	played := t.sum(killed) + t.lived() + t.sum(equivalent)
	each := t.spent.Seconds() / float64(max(played, 1)) / float64(atOnce)
	cpu := t.cpu.Seconds() / float64(max(played, 1))
	_, _ = fmt.Fprintf(out, "drawn: played=%d killed=%d survived=%d uncovered=%d equivalent=%d seconds_each=%.1f cpu_each=%.1f\n",
		played, t.sum(killed), t.sum(survived), t.sum(uncovered), t.sum(equivalent), each, cpu)
}
