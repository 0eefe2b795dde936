package main

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"os"

	"github.com/onlyonce/onlyonce/cmd/idemcheck/suite"
)

// printText prints a check for people: one line, and three more if it failed.
func printText(out io.Writer, r suite.Result) {
	_, _ = fmt.Fprintf(out, "%-8s%-24s%s\n", r.Verdict, r.Name, r.Clause)
	switch r.Verdict {
	case suite.Failed:
		_, _ = fmt.Fprintf(out, "        sent      %s\n        expected  %s\n        came      %s\n",
			r.Sends, r.Expects, r.Came)
	case suite.Skipped:
		_, _ = fmt.Fprintf(out, "        %s\n", r.Came)
	}
}

func printJSON(out io.Writer, r suite.Result) {
	text, err := json.Marshal(r)
	if err != nil {
		panic(err) // cannot fail: strings and a number
	}
	_, _ = fmt.Fprintf(out, "%s\n", text)
}

func countOf(all []suite.Result, verdict string) (n int) {
	for _, r := range all {
		if r.Verdict == verdict {
			n++
		}
	}
	return n
}

func printSummary(out io.Writer, all []suite.Result) {
	_, _ = fmt.Fprintf(out, "\n%d passed, %d failed, %d skipped\n",
		countOf(all, suite.Passed), countOf(all, suite.Failed), countOf(all, suite.Skipped))
}

// The elements of a JUnit report.
type (
	testSuite struct {
		XMLName  xml.Name   `xml:"testsuite"`
		Name     string     `xml:"name,attr"`
		Tests    int        `xml:"tests,attr"`
		Failures int        `xml:"failures,attr"`
		Skipped  int        `xml:"skipped,attr"`
		Cases    []testCase `xml:"testcase"`
	}
	testCase struct {
		Class   string  `xml:"classname,attr"`
		Name    string  `xml:"name,attr"`
		Time    float64 `xml:"time,attr"`
		Failure *text   `xml:"failure"`
		Skipped *text   `xml:"skipped"`
	}
	text struct {
		Message string `xml:"message,attr"`
	}
)

func writeJUnit(path string, all []suite.Result) error {
	report := testSuite{
		Name:     "idemcheck",
		Tests:    len(all),
		Failures: countOf(all, suite.Failed),
		Skipped:  countOf(all, suite.Skipped),
	}
	for _, r := range all {
		one := testCase{Class: r.Clause, Name: r.Name, Time: r.Seconds}
		switch r.Verdict {
		case suite.Failed:
			one.Failure = &text{fmt.Sprintf("sent: %s; expected: %s; came: %s", r.Sends, r.Expects, r.Came)}
		case suite.Skipped:
			one.Skipped = &text{r.Came}
		}
		report.Cases = append(report.Cases, one)
	}
	encoded, err := xml.MarshalIndent(report, "", "\t")
	if err != nil {
		return fmt.Errorf("-junit: %w", err)
	}
	if err := os.WriteFile(path, append([]byte(xml.Header), append(encoded, '\n')...), 0o644); err != nil {
		return fmt.Errorf("-junit: %w", err)
	}
	return nil
}
