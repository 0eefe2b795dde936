package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

const (
	image         = "onlyonce-check:latest"
	goImage       = "onlyonce-check-go:latest"
	postgresImage = "onlyonce-check-postgres:latest"
)

// engine is Docker's.
type engine struct{ stop func() error }

// findEngine takes the engine that answers, or else starts one with its data below dir.
func findEngine(ctx context.Context, dir string) (*engine, error) {
	// The reaper's image cannot be pulled here; the run removes its containers itself.
	if err := os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true"); err != nil {
		return nil, err
	}
	d := &engine{stop: func() error { return nil }}
	if _, err := d.docker(ctx, nil, "info"); err == nil {
		return d, nil
	}
	path, err := exec.LookPath("dockerd")
	if err != nil || os.Getuid() != 0 {
		return nil, errors.New("no Docker engine answers, and none can be started: that needs root and dockerd (Debian: docker.io)")
	}
	host := "unix://" + filepath.Join(dir, "docker.sock")
	log, err := os.Create(filepath.Join(dir, "dockerd.log"))
	if err != nil {
		return nil, err
	}
	daemon := exec.Command(path, "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "docker.pid"), "--host", host, "--iptables=false")
	daemon.Stdout, daemon.Stderr = log, log
	if err := errors.Join(daemon.Start(), os.Setenv("DOCKER_HOST", host)); err != nil {
		return nil, err
	}
	d.stop = func() error {
		_ = daemon.Process.Signal(syscall.SIGTERM)
		err := errors.Join(daemon.Wait(), log.Close())
		mounts, _ := filepath.Glob(filepath.Join(dir, "exec", "netns", "*"))
		for _, m := range mounts {
			err = errors.Join(err, syscall.Unmount(m, syscall.MNT_DETACH))
		}
		return err
	}
	if err := wait(ctx, "dockerd", func() error {
		_, err := d.docker(ctx, nil, "info")
		return err
	}); err != nil {
		text, _ := os.ReadFile(log.Name())
		return nil, errors.Join(err, fmt.Errorf("dockerd: %s", text), d.stop())
	}
	return d, nil
}

// docker runs the client, and returns its output.
func (d *engine) docker(ctx context.Context, in io.Reader, args ...string) (string, error) {
	c := exec.CommandContext(ctx, "docker", args...)
	c.Env = append(os.Environ(), "DOCKER_BUILDKIT=0")
	c.Stdin = in
	out, err := c.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("docker %s: %w: %s", args[0], err, out)
	}
	return strings.TrimSpace(string(out)), err
}

// images imports Go and Postgres, builds the image, and returns its size.
func (d *engine) images(ctx context.Context) (size int64, err error) {
	goroot, err := goEnv(ctx, "GOROOT")
	if err != nil {
		return 0, err
	}
	downloaded, cache, err := modules(ctx)
	if err != nil {
		return 0, err
	}
	if err := d.importImage(ctx, goImage, append(downloaded, goroot), []string{"/bin/sh"},
		"ENV PATH="+goroot+"/bin:/bin GOPROXY=off GOTOOLCHAIN=local HOME=/tmp GOMODCACHE="+cache); err != nil {
		return 0, err
	}
	bins, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(bins) == 0 {
		return 0, errors.Join(err, errors.New("no PostgreSQL in /usr/lib/postgresql (Debian: postgresql)"))
	}
	home := filepath.Dir(bins[len(bins)-1])
	programs, err := filepath.Glob(home + "/lib/*.so")
	if err != nil {
		return 0, err
	}
	for _, name := range []string{"initdb", "postgres"} {
		programs = append(programs, home+"/bin/"+name)
	}
	if err := d.importImage(ctx, postgresImage, []string{"/usr/share/postgresql/" + filepath.Base(home), "/etc/passwd"},
		append(programs, "/bin/sh"), "ENV PATH="+home+"/bin:/bin"); err != nil {
		return 0, err
	}
	if _, err := d.docker(ctx, nil, "build", "-q", "--network", "none", "-f", top+"/deploy/Dockerfile", "--build-arg", "GO_IMAGE="+goImage,
		"--build-arg", "VERSION=v0.0.0-check", "-t", image, top); err != nil {
		return 0, err
	}
	text, err := d.docker(ctx, nil, "image", "inspect", "-f", "{{.Size}} {{.Config.User}}", image)
	if err != nil {
		return 0, err
	}
	number, user, _ := strings.Cut(text, " ")
	if uid, _, _ := strings.Cut(user, ":"); uid == "" || uid == "0" || uid == "root" {
		return 0, fmt.Errorf("the image runs as user %q", user)
	}
	return strconv.ParseInt(number, 10, 64)
}

func goEnv(ctx context.Context, name string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", name).Output()
	return strings.TrimSpace(string(out)), err
}

// modules returns the files of this machine's module cache that a build would download, and the
// cache.
func modules(ctx context.Context) (files []string, cache string, err error) {
	if cache, err = goEnv(ctx, "GOMODCACHE"); err != nil {
		return nil, "", err
	}
	for _, dir := range []string{top, top + "/cmd/onlyonce-relay"} {
		download := exec.CommandContext(ctx, "go", "mod", "download", "-json")
		download.Dir = dir
		out, err := download.Output()
		if err != nil {
			return nil, "", fmt.Errorf("%s: go mod download: %w", dir, err)
		}
		for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
			var m struct{ Zip string }
			if err := d.Decode(&m); err != nil {
				return nil, "", err
			}
			if m.Zip != "" && !slices.Contains(files, m.Zip) { // one that is replaced has none
				files = append(files, m.Zip)
			}
		}
	}
	// The go.mod files of all: the go command reads more of them than it builds modules.
	err = filepath.WalkDir(filepath.Join(cache, "cache", "download"), func(path string, _ fs.DirEntry, err error) error {
		if ext := filepath.Ext(path); ext == ".mod" || ext == ".info" || ext == ".ziphash" {
			files = append(files, path)
		}
		return err
	})
	return files, cache, err
}

// libraries finds the files that a program is linked with.
var library = regexp.MustCompile(`(/\S+) \(0x`)

// importImage makes an image of directories and programs with their libraries.
func (d *engine) importImage(ctx context.Context, name string, trees, programs []string, changes ...string) error {
	files := slices.Clone(programs)
	for _, program := range programs {
		out, err := exec.CommandContext(ctx, "ldd", program).Output()
		if err != nil {
			continue // a static program
		}
		for _, m := range library.FindAllSubmatch(out, -1) {
			files = append(files, string(m[1]))
		}
	}
	read, write := io.Pipe()
	go func() {
		w := tar.NewWriter(write)
		err := addTrees(w, append(files, trees...))
		_ = write.CloseWithError(errors.Join(err, w.Close()))
	}()
	args := []string{"import"}
	for _, change := range changes {
		args = append(args, "--change", change)
	}
	_, err := d.docker(ctx, read, append(args, "-", name)...)
	_ = read.CloseWithError(err)
	return err
}

// addTrees adds files, and what is below directories. Links are followed.
func addTrees(w *tar.Writer, roots []string) error {
	added := map[string]bool{}
	for _, root := range roots {
		if err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || added[path] {
				return err
			}
			added[path] = true
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			h, err := tar.FileInfoHeader(info, "")
			if err != nil {
				return err
			}
			h.Name = strings.TrimPrefix(path, "/")
			h.Uid = 0
			h.Gid = 0
			h.Uname = ""
			h.Gname = ""
			if err := w.WriteHeader(h); err != nil || info.IsDir() {
				return err
			}
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			_, err = io.Copy(w, f)
			return errors.Join(err, f.Close())
		}); err != nil {
			return err
		}
	}
	return nil
}
