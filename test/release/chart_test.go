package main

import (
	"os"
	"strings"
	"testing"
)

// A released chart runs the program of its release.
func TestChartHasTheVersion(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../deploy/chart/Chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text, err := versioned(string(data), "v1.2.3-rc.1")
	good := err == nil &&
		strings.Contains(text, "\nversion: 1.2.3-rc.1\n") &&
		strings.Contains(text, "\nappVersion: v1.2.3-rc.1\n") &&
		!strings.Contains(text, "0.1.0")
	if !good {
		t.Errorf("%v\n%s", err, text)
	}
	if strings.Count(text, "\n") != strings.Count(string(data), "\n") {
		t.Error("other lines were changed")
	}
	if _, err := versioned("name: onlyonce\nversion: 1.0.0\n", "v1.2.3"); err == nil {
		t.Error("a chart without an appVersion")
	}
}
