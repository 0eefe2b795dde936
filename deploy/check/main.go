// Command check plays the commands that docker-compose.yml has in its head, with Compose itself: it
// builds the image of deploy/Dockerfile, each service becomes healthy or ends with status 0, calls
// reach their remote through the relay, and all goes down again. Beside them it runs the exporter
// and the console as the chart does. Each of our containers has a read-only root file system and no
// root user, and ends with status 0 within its grace.
//
//	go -C deploy/check run .
//
// It needs root, dockerd (Debian: docker.io), PostgreSQL, Java and Maven. Its engine has a network
// of its own, in which the file's ports are free, and pulls nothing: the images that the files name
// are made of this machine's installations. Exit status 1: a step failed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const top = "../.."

// insideEnv is set in the process that has a network of its own. It names the run's directory.
const insideEnv = "ONLYONCE_CHECK_INSIDE"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 40*time.Minute)
	defer cancel()
	var err error
	if dir := os.Getenv(insideEnv); dir != "" {
		err = inside(ctx, dir)
	} else {
		err = outside(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// outside fetches what the run needs, and runs this program again in a network of its own.
func outside(ctx context.Context) (err error) {
	if _, err := exec.LookPath("dockerd"); err != nil || os.Getuid() != 0 {
		return errors.New("no Docker engine can be started: that needs root and dockerd (Debian: docker.io)")
	}
	dir, err := os.MkdirTemp("", "onlyonce-image-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	from, err := fetch(ctx, dir)
	if err != nil {
		return err
	}
	text, err := json.Marshal(from)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c := exec.CommandContext(ctx, self)
	c.Env = append(os.Environ(), insideEnv+"="+dir)
	c.Stdin = strings.NewReader(string(text))
	c.Stdout = os.Stdout
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) } // it stops its engine
	if err := c.Run(); err != nil {
		return fmt.Errorf("the run: %w", err)
	}
	return nil
}

// inside starts the engine and plays the commands.
func inside(ctx context.Context, dir string) (err error) {
	var from sources
	if err := json.NewDecoder(os.Stdin).Decode(&from); err != nil {
		return err
	}
	if err := raiseLoopback(); err != nil {
		return fmt.Errorf("the loopback of this network: %w", err)
	}
	docker, err := startEngine(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, docker.stop()) }()
	if err := docker.standIns(ctx, from); err != nil {
		return err
	}
	s, err := newStack(ctx, docker)
	if err != nil {
		return err
	}
	commands, err := headOf(filepath.Join(top, "docker-compose.yml"))
	if err != nil {
		return err
	}
	if err := s.play(ctx, commands); err != nil {
		return errors.Join(err, s.logs(ctx))
	}
	fmt.Printf("image ok size=%.1fMB parts=%s\n", float64(s.size)/1e6, strings.Join(s.parts, ","))
	fmt.Printf("compose ok version=%s commands=%d services=%s\n", from.Compose, s.commands, strings.Join(s.services, ","))
	return nil
}
