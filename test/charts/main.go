// Charts draws the pictures of the documents from the figures that are recorded beside them: bars
// in SVG, for light and dark pages.
//
//	go run ./test/charts          # write docs/charts
//
// A chart and its figures cannot disagree: a test draws each again and compares.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if err := write("."); err != nil {
		fmt.Fprintln(os.Stderr, "charts:", err)
		os.Exit(1)
	}
}

// all are the charts, by the name of their file below docs/charts.
var all = map[string]func(root string) (chart, error){
	"cost.svg":    cost,
	"keys.svg":    keys,
	"doubles.svg": doubles,
	"held.svg":    snapshot,
}

// write draws all charts below a root.
func write(root string) error {
	var faults []error
	for name, figures := range all {
		c, err := figures(root)
		if err == nil {
			err = os.WriteFile(filepath.Join(root, "docs/charts", name), []byte(c.svg()), 0o644) //nolint:gosec // for all to read
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}
