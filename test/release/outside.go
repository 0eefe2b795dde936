package main

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The outside module's own program, which uses each published module, and what is run with it.
var (
	//go:embed outside/check.go.txt
	check string
	//go:embed outside/run.sh
	script string
)

// outside is what a user does: it requires the modules in an empty one, and runs README's program.
func (r *release) outside() error {
	for _, version := range r.goes {
		if err := r.from(version); err != nil {
			return fmt.Errorf("Go %s: %w", version, err)
		}
	}
	return nil
}

func (r *release) from(version string) error {
	dir := filepath.Join(r.scratch, "outside-"+version)
	files := map[string]string{"check/main.go": check}
	for to, from := range map[string]string{"main.go": "main.go", "stock.sql": "stock.sql", "produce/main.go": "produce/main.go"} {
		data, err := os.ReadFile(filepath.Join(r.tree, "examples/minimal", from))
		if err != nil {
			return err
		}
		files[to] = string(data)
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	get := []string{"get", root + "@" + r.version}
	for _, m := range published {
		if strings.HasPrefix(m, "tools/") {
			continue // a program, which is installed below
		}
		get = append(get, root+"/"+m+"@"+r.version)
	}
	for _, args := range [][]string{
		{"mod", "init", "example.com/stock"},
		get,
		{"mod", "tidy"},
		{"vet", "./..."},
		{"build", "-o", "bin/", "./...", root + "/cmd/onlyonce"},
		{"install", root + "/cmd/onlyoncevet@" + r.version},
		{"vet", "-vettool=" + filepath.Join(dir, "bin/onlyoncevet"), "./..."},
	} {
		c := command(dir, "go", args...)
		c.Env = r.goEnv("outside", "GOTOOLCHAIN="+version, "GOBIN="+filepath.Join(dir, "bin"))
		if err := c.Run(); err != nil {
			return fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
		}
	}
	c := command(r.tree, "go",
		"run",
		"./test/devenv/run",
		"-postgres",
		"-kafka",
		"-require-real",
		"--",
		"sh",
		"-euc",
		script,
		"run.sh",
		dir)
	if err := c.Run(); err != nil {
		return fmt.Errorf("README's program: %w", err)
	}
	return nil
}
