package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// goEnv is the environment of the go command: modules come from the release's proxy first. Each
// name has a module cache of its own, so that an earlier run's modules of the same version are not
// taken.
func (r *release) goEnv(name string, more ...string) []string {
	return append(os.Environ(), append([]string{
		"GOPROXY=file://" + filepath.Join(r.out, "proxy") + "," + upstream(),
		"GONOSUMDB=" + root + "," + root + "/*", "GOWORK=off", "GOFLAGS=-mod=mod -trimpath",
		"GOPATH=" + filepath.Join(r.scratch, name), "GOMODCACHE=" + filepath.Join(r.scratch, name, "mod"),
	}, more...)...)
}

// upstream is where other modules come from: this machine's cache, then where GOPROXY says.
func upstream() string {
	cache, _ := output("", "go", "env", "GOMODCACHE")
	proxy, _ := output("", "go", "env", "GOPROXY")
	return "file://" + filepath.Join(cache, "cache", "download") + "," + proxy
}

// modules gives the nested modules this version of the root, and puts all into the proxy.
func (r *release) modules() error {
	if err := r.changelog(); err != nil { // which the zip of the root contains
		return err
	}
	if err := r.chart(); err != nil {
		return err
	}
	if err := r.publish(root, r.tree); err != nil {
		return err
	}
	for _, m := range published {
		dir := filepath.Join(r.tree, m)
		if err := r.require(filepath.Join(dir, "go.mod")); err != nil {
			return fmt.Errorf("%s: %w", m, err)
		}
		tidy := command(dir, "go", "mod", "tidy")
		tidy.Env = r.goEnv("tidy")
		if err := tidy.Run(); err != nil {
			return fmt.Errorf("%s: go mod tidy: %w", m, err)
		}
		if err := r.license(dir); err != nil {
			return fmt.Errorf("%s: %w", m, err)
		}
		if err := r.publish(root+"/"+m, dir); err != nil {
			return fmt.Errorf("%s: %w", m, err)
		}
	}
	return nil
}

// license puts the repository's license into a nested module, whose zip has only its own folder: as
// the go command does for a module that it takes from a repository.
func (r *release) license(dir string) error {
	text, err := os.ReadFile(filepath.Join(r.tree, "LICENSE"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "LICENSE"), text, 0o644)
}

// require replaces the replace directives of a go.mod by requirements of this version.
func (r *release) require(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	f, err := modfile.Parse(path, data, nil)
	if err != nil {
		return err
	}
	for _, p := range f.Replace {
		if p.Old.Path != root && !strings.HasPrefix(p.Old.Path, root+"/") {
			return fmt.Errorf("a replace of %s: users' builds ignore it", p.Old.Path)
		}
		err = errors.Join(err, f.AddRequire(p.Old.Path, r.version), f.DropReplace(p.Old.Path, p.Old.Version))
	}
	f.Cleanup()
	text, formatErr := f.Format()
	return errors.Join(err, formatErr, os.WriteFile(path, text, 0o644))
}

// publish puts a module into the proxy.
func (r *release) publish(path, dir string) (err error) {
	escaped, err := module.EscapePath(path)
	if err != nil {
		return err
	}
	to := filepath.Join(r.out, "proxy", filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return err
	}
	when, err := output(r.tree, "git", "show", "-s", "--format=%cI", "HEAD")
	if err != nil {
		return err
	}
	at, err := time.Parse(time.RFC3339, when)
	if err != nil {
		return err
	}
	info, err := json.Marshal(map[string]any{"Version": r.version, "Time": at.UTC()})
	if err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(to, r.version+".zip"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return errors.Join(
		os.WriteFile(filepath.Join(to, "list"), []byte(r.version+"\n"), 0o644),
		os.WriteFile(filepath.Join(to, r.version+".info"), info, 0o644),
		os.WriteFile(filepath.Join(to, r.version+".mod"), mod, 0o644),
		zip.CreateFromDir(file, module.Version{Path: path, Version: r.version}, dir),
	)
}
