package onlyoncetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/onlyonce/onlyonce/internal/rig/pgserver"
)

// A handler that calls os.Exit or log.Fatal ends the test, and no word of the history is printed.
// With -onlyonce.exec, Run plays in a child process: the same test binary with the same test, whose
// Run writes what it does into a file, a line each, before it does it:
//
//	{"play":3,"what":"plays","name":"before:commit.query.1"}
//	{"play":3,"what":"calls","name":"the handler for messages/0 at 1"}
//
// If the child ends without a report, the calls that have not returned are in that file.
var (
	execFlag = flag.Bool("onlyonce.exec",
		false,
		"whether onlyoncetest.Run plays in a child process, so that a handler that ends the process "+
			"(os.Exit, log.Fatal) gets a verdict")
	childFlag = flag.String("onlyonce.child",
		"", "set by -onlyonce.exec: `number:file` of the Run that the child plays")
)

// note is a line of the file.
type note struct {
	Play int    `json:"play,omitempty"`
	What string `json:"what"`
	Name string `json:"name,omitempty"`
	// Report and Error are what Run has found, in the last line.
	Report *Report `json:"report,omitempty"`
	Error  string  `json:"error,omitempty"`
}

// What a note says.
const (
	notePlays   = "plays"
	noteCalls   = "calls"
	noteReturns = "returns"
	noteEnds    = "ends" // the play
	noteReport  = "report"
)

// journal writes notes. A nil one writes nothing.
type journal struct {
	mu    sync.Mutex
	file  *os.File
	plays int
	err   error // the first failure
}

func (j *journal) write(n note) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	b, err := json.Marshal(n)
	if err == nil {
		_, err = j.file.Write(append(b, '\n'))
	}
	j.err = errors.Join(j.err, err)
}

// begin notes that a play begins, and returns its number.
func (j *journal) begin(history string) (play int) {
	if j == nil {
		return 0
	}
	j.mu.Lock()
	j.plays++
	play = j.plays
	j.mu.Unlock()
	j.write(note{Play: play, What: notePlays, Name: history})
	return play
}

// runs counts the calls of Run in each test of this process.
var runs = struct {
	sync.Mutex
	of map[string]int
}{of: map[string]int{}}

func nextRun(test string) int {
	runs.Lock()
	defer runs.Unlock()
	runs.of[test]++
	return runs.of[test]
}

// asChild opens the journal if this is a child process. mine is false for a Run that the child was
// not started for, which does nothing.
func asChild(number int) (j *journal, mine bool, err error) {
	if *childFlag == "" {
		return nil, true, nil
	}
	var wanted int
	before, path, _ := strings.Cut(*childFlag, ":")
	if _, err := fmt.Sscan(before, &wanted); err != nil || wanted != number {
		return nil, false, err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	return &journal{file: f}, true, err
}

// inChild plays a case in a child process.
func inChild(t testing.TB, number int) (*Report, error) {
	t.Helper()
	s, err := server()
	if err != nil {
		return nil, fmt.Errorf("no database: %w", err)
	}
	path := t.TempDir() + "/notes"
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return nil, err
	}
	args := []string{
		"-test.run=" + onlyTest(t.Name()),
		"-test.count=1",
		fmt.Sprintf("-onlyonce.child=%d:%s", number, path),
	}
	flag.Visit(func(f *flag.Flag) {
		if slices.Contains(
			[]string{"onlyonce.budget", "onlyonce.seed", "onlyonce.history", "test.short", "test.timeout"},
			f.Name,
		) {
			args = append(args, "-"+f.Name+"="+f.Value.String())
		}
	})
	child := exec.CommandContext(context.Background(), os.Args[0], args...) //nolint:gosec // this program
	child.Env = append(os.Environ(), pgserver.EnvURL+"="+s.Address())
	var output bytes.Buffer
	child.Stdout = &output
	child.Stderr = &output
	ended := child.Run()
	text, err := os.ReadFile(path) //nolint:gosec // ours
	if err != nil {
		return nil, err
	}
	rep, err := read(text)
	var exit *exec.ExitError
	switch {
	case rep != nil || err != nil:
		return rep, err
	case ended != nil && !errors.As(ended, &exit):
		return nil, ended
	}
	rep = &Report{Played: map[string]int{}, Verdict: exited(text, child.ProcessState.String())}
	rep.Verdict.Timeline = last(output.String(), 10)
	return rep, nil
}

// onlyTest returns a pattern for one test.
func onlyTest(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// last returns the last lines of a text.
func last(text string, n int) []string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[max(0, len(lines)-n):]
}

// notes returns the lines of a journal. The last one may be cut off.
func notes(text []byte) (all []note) {
	for line := range bytes.Lines(text) {
		var n note
		if json.Unmarshal(line, &n) == nil {
			all = append(all, n)
		}
	}
	return all
}

// read returns what a child has reported, or nil if it has not.
func read(text []byte) (*Report, error) {
	for _, n := range notes(text) {
		if n.What == noteReport && n.Error != "" {
			return n.Report, errors.New(n.Error)
		} else if n.What == noteReport {
			return n.Report, nil
		}
	}
	return nil, nil
}

// exited returns the verdict on a child that has ended without a report. Plays run side by side, so
// several calls may be open: the last one that began is named.
func exited(text []byte, status string) *Verdict {
	v := &Verdict{
		Kind:    kindExited,
		What:    fmt.Sprintf("the process ended (%s) while no handler ran", status),
		History: history{}.String(),
	}
	plays := map[int]string{}
	open := []note{}
	for _, n := range notes(text) {
		same := func(o note) bool { return o.Play == n.Play && (o.Name == n.Name || n.What == noteEnds) }
		switch n.What {
		case notePlays:
			plays[n.Play] = n.Name
			v.History = n.Name
		case noteCalls:
			open = append(open, n)
		case noteReturns, noteEnds:
			open = slices.DeleteFunc(open, same)
		}
	}
	if len(open) > 0 {
		n := open[len(open)-1]
		v.History = plays[n.Play]
		v.What = fmt.Sprintf("the process ended (%s) while %s ran: os.Exit or log.Fatal in it, or a fatal "+
			"error of the runtime; return an error instead", status, n.Name)
	}
	return v
}
