package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// modules returns the folders of the modules of this repository, "." first. Modules below testdata
// are what checks are tested on.
func modules() ([]string, error) {
	all := []string{"."}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata"):
			return fs.SkipDir
		case d.Name() == "go.mod" && filepath.Dir(path) != ".":
			all = append(all, filepath.Dir(path))
		}
		return nil
	})
	slices.Sort(all[1:])
	return all, err
}

// eachModule runs a command in each module, also after it failed in one.
func eachModule(command []string) error {
	all, err := modules()
	if err != nil {
		return err
	}
	var failed []string
	for _, m := range all {
		if err := runIn(m, nil, command...); err != nil {
			failed = append(failed, m)
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("%s failed in %s", strings.Join(command, " "), strings.Join(failed, ", "))
	}
	return nil
}

// runIn runs a command in a folder, with this process's output. env is added to its environment.
func runIn(folder string, env []string, command ...string) error {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin = os.Stdin
	cmd.Stdout = os.Stdout
	cmd.Stderr = os.Stderr
	return cmd.Run()
}

// output returns the lines that a command prints.
func output(env []string, command ...string) ([]string, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(command, " "), err)
	}
	return strings.Fields(string(out)), nil
}

// inWorkspace calls f with the environment of a workspace of all modules, so that one go test
// compiles each package once, and below one Postgres and one broker.
func inWorkspace(f func(env, modules []string) error) error {
	all, err := modules()
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "onlyonce-work-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	env := []string{"GOWORK=" + filepath.Join(folder, "go.work")}
	var folders []string
	for _, m := range all {
		folders = append(folders, "./"+m)
	}
	if err := runIn(".", env, append([]string{"go", "work", "init"}, folders...)...); err != nil {
		return err
	}
	return f(env, folders)
}

// checkFormat fails if gofmt would change a file.
func checkFormat() error {
	files, err := output(nil, "gofmt", "-l", ".")
	if err == nil && len(files) > 0 {
		err = fmt.Errorf("not formatted: %s", strings.Join(files, " "))
	}
	return err
}
