// Monitoring writes the rules for Prometheus and the dashboards for Grafana that are shipped beside
// it, and checks the rules with promtool.
//
//	go run ./deploy/monitoring          # write the files
//	go run ./deploy/monitoring -alerts  # check the rules; make alerts
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	rulesFile     = "onlyonce.rules.yaml"
	ruleTestsFile = "onlyonce.rules.test.yaml"
)

func main() {
	dir := flag.String("dir", "deploy/monitoring", "the folder of the files")
	check := flag.Bool("alerts", false, "check the rules, and write nothing")
	flag.Parse()
	run := write
	if *check {
		run = checkAlerts
	}
	if err := run(*dir); err != nil {
		fmt.Fprintln(os.Stderr, "monitoring:", err)
		os.Exit(1)
	}
}

// files returns what is shipped, by its path below the folder.
func files() (map[string]string, error) {
	all := map[string]string{rulesFile: rules(), ruleTestsFile: ruleTests()}
	for _, d := range dashboards() {
		text, err := d.json()
		if err != nil {
			return nil, err
		}
		all[filepath.Join("dashboards", d.uid+".json")] = text
	}
	return all, nil
}

func write(dir string) error {
	all, err := files()
	if err != nil {
		return err
	}
	for name, text := range all {
		err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)
		if err != nil { //nolint:gosec // for all to read
			return err
		}
	}
	return nil
}

// checkAlerts checks that the files are the program's, that promtool accepts the rules, and that
// their tests pass.
func checkAlerts(dir string) error {
	if err := upToDate(dir); err != nil {
		return err
	}
	for _, args := range [][]string{{"check", "rules", rulesFile}, {"test", "rules", ruleTestsFile}} {
		cmd := exec.Command("promtool", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("promtool %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	fmt.Printf("alerts ok n=%d\n", len(alerts()))
	return nil
}

func upToDate(dir string) error {
	all, err := files()
	if err != nil {
		return err
	}
	for name, want := range all {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if string(got) != want {
			return fmt.Errorf("%s is not what the program writes: run go run ./deploy/monitoring", name)
		}
	}
	return nil
}
