package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// engine is Docker's.
type engine struct {
	dir    string
	daemon *exec.Cmd
	log    *os.File
}

// startEngine starts dockerd with its data below dir, and makes it that of this process's commands.
func startEngine(ctx context.Context, dir string) (*engine, error) {
	host := "unix://" + filepath.Join(dir, "docker.sock")
	log, err := os.Create(filepath.Join(dir, "dockerd.log"))
	if err != nil {
		return nil, err
	}
	d := &engine{dir: dir, log: log}
	d.daemon = exec.Command("dockerd", "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "docker.pid"), "--host", host, "--iptables=false")
	d.daemon.Stdout = log
	d.daemon.Stderr = log
	for name, value := range map[string]string{
		"DOCKER_HOST":   host,
		"DOCKER_CONFIG": filepath.Join(dir, configDir),
		// dockerd's own builder. The other one is a plugin of its own.
		"DOCKER_BUILDKIT": "0",
		"GOPROXY":         "off",
	} {
		if err := os.Setenv(name, value); err != nil {
			return nil, err
		}
	}
	if err := d.daemon.Start(); err != nil {
		return nil, err
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

// stop ends the engine, with containers that it still has.
func (d *engine) stop() error {
	_ = d.daemon.Process.Signal(syscall.SIGTERM)
	err := errors.Join(d.daemon.Wait(), d.log.Close())
	mounts, _ := filepath.Glob(filepath.Join(d.dir, "exec", "netns", "*"))
	for _, m := range mounts {
		err = errors.Join(err, syscall.Unmount(m, syscall.MNT_DETACH))
	}
	return err
}

// docker runs the client, and returns its output.
func (d *engine) docker(ctx context.Context, in io.Reader, args ...string) (string, error) {
	c := exec.CommandContext(ctx, "docker", args...)
	c.Stdin = in
	var complaints strings.Builder
	c.Stderr = &complaints
	out, err := c.Output()
	if err != nil {
		err = fmt.Errorf("docker %s: %w: %s", args[0], err, &complaints)
	}
	return strings.TrimSpace(string(out)), err
}

// wait tries again until there is no error.
func wait(ctx context.Context, what string, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func get(ctx context.Context, client *http.Client, address string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s: %.200q", resp.Status, body)
	}
	return string(body), err
}
