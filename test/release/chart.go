package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// chart gives the chart its version: the program's, of which it runs the image.
func (r *release) chart() error {
	path := filepath.Join(r.tree, "deploy", "chart", "Chart.yaml")
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text, err := versioned(string(data), r.version)
	return errors.Join(err, os.WriteFile(path, []byte(text), 0o644))
}

// chartVersions are the lines of a Chart.yaml that name a version of this repository.
var chartVersions = regexp.MustCompile(`(?m)^(version|appVersion): .*$`)

// versioned returns a Chart.yaml with the version. The chart's own has no v: SemVer knows none.
func versioned(chart, version string) (string, error) {
	if n := len(chartVersions.FindAllString(chart, -1)); n != 2 {
		return chart, fmt.Errorf("Chart.yaml: must have one version and one appVersion, has %d of them", n)
	}
	return chartVersions.ReplaceAllStringFunc(chart, func(line string) string {
		if strings.HasPrefix(line, "appVersion") {
			return "appVersion: " + version
		}
		return "version: " + strings.TrimPrefix(version, "v")
	}), nil
}
