package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

const (
	commandTimeout = 10 * time.Second // of a command that prints a secret
	commandServes  = time.Minute      // how long what it printed is used
)

// secret is a password or token that is not in the configuration. It is read anew each time it is
// needed, so that it can be rotated.
type secret func(ctx context.Context) (string, error)

// secret parses a reference to a secret: {"env": "NAME"}, {"file": "PATH"} or {"command":
// ["PROGRAM", "ARGUMENT"]}, with an optional "prefix". It returns nil if there is none.
func (s *section) secret(field string) secret {
	raw, ok := s.fields[field]
	if !ok {
		return nil
	}
	const form = `must be {"env": "NAME"}, {"file": "PATH"} or {"command": ["PROGRAM", "ARGUMENT"]}: secrets do not stand in this file`
	if !bytes.HasPrefix(bytes.TrimSpace(raw), []byte("{")) {
		delete(s.fields, field)
		s.fault(field, "%s", form)
		return nil
	}
	o := s.object(field)
	env, file, command, prefix := o.text("env"), o.text("file"), o.texts("command"), o.text("prefix")
	o.unknown()
	var get secret
	switch {
	case env != "" && file == "" && len(command) == 0:
		get = func(context.Context) (string, error) {
			if v := s.env(env); v != "" {
				return v, nil
			}
			return "", fmt.Errorf("the environment variable %s is not set", env)
		}
	case env == "" && file != "" && len(command) == 0:
		get = fromFile(file)
	case env == "" && file == "" && len(command) > 0:
		get = fromCommand(command)
	default:
		s.fault(field, "%s", form)
		return nil
	}
	if _, err := get(context.Background()); err != nil {
		s.fault(field, "%v", err)
	}
	return func(ctx context.Context) (string, error) {
		v, err := get(ctx)
		return prefix + v, err
	}
}

// fromFile returns the secret in a file, without the end of its line.
func fromFile(file string) secret {
	return func(context.Context) (string, error) {
		data, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		v := strings.TrimRight(string(data), "\r\n")
		if v == "" {
			return "", fmt.Errorf("the file %s is empty", file)
		}
		return v, nil
	}
}

// fromCommand returns the secret that a command prints, without the end of its line. It runs the
// command again once the last answer is commandServes old.
func fromCommand(argv []string) secret {
	var mu sync.Mutex
	var last string
	var asked time.Time
	return func(ctx context.Context) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if last != "" && time.Since(asked) < commandServes {
			return last, nil
		}
		if ctx.Err() != nil { // it waited for another one's command
			return "", context.Cause(ctx)
		}
		ctx, cancel := context.WithTimeout(ctx, commandTimeout)
		defer cancel()
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.WaitDelay = time.Second // for what the command started and did not end
		at := time.Now()
		out, err := cmd.Output()
		if err != nil {
			if exit, is := errors.AsType[*exec.ExitError](err); is && len(exit.Stderr) > 0 {
				err = fmt.Errorf("%w: %.200s", err, oneLine(strings.TrimSpace(string(exit.Stderr))))
			}
			return "", fmt.Errorf("the command %s: %w", argv[0], err)
		}
		v := strings.TrimRight(string(out), "\r\n")
		if v == "" {
			return "", fmt.Errorf("the command %s printed nothing", argv[0])
		}
		last, asked = v, at
		return v, nil
	}
}
