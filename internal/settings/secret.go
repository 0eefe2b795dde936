package settings

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/internal/show"
)

const (
	commandTimeout = 10 * time.Second // of a command that prints a secret
	commandServes  = time.Minute      // how long what it printed is used
)

// Source returns a password, key or token that is not in the configuration. It reads it anew each
// time, so that the secret can be rotated.
type Source func(ctx context.Context) (string, error)

// Secret is a reference to a secret: {"env": "NAME"}, {"file": "PATH"} or {"command": ["PROGRAM",
// "ARGUMENT"]}, with an optional "prefix".
type Secret struct {
	Env     string   `json:"env"`
	File    string   `json:"file"`
	Command []string `json:"command"`
	Prefix  string   `json:"prefix"`

	read Source // without the prefix; nil: the reference has faults
}

// Form is the text of the fault of a secret that is in the file itself.
func (*Secret) Form() string {
	return `{"env": "NAME"}, {"file": "PATH"} or {"command": ["PROGRAM", "ARGUMENT"]}: ` +
		`secrets do not stand in this file`
}

// Check notes a reference that names no place or several, and a secret that cannot be read.
func (s *Secret) Check(f *File, path string) {
	var read Source
	switch {
	case s.Env != "" && s.File == "" && len(s.Command) == 0:
		read = fromEnv(s.Env, f.Env)
	case s.Env == "" && s.File != "" && len(s.Command) == 0:
		read = FromFile(s.File)
	case s.Env == "" && s.File == "" && len(s.Command) > 0:
		read = FromCommand(s.Command)
	default:
		f.Fault(path, "must be %s", s.Form())
		return
	}
	if _, err := read(context.Background()); err != nil {
		f.Fault(path, "%v", err)
		return
	}
	s.read = read
}

// Read returns the secret as it is now.
func (s *Secret) Read(ctx context.Context) (string, error) {
	v, err := s.read(ctx)
	return s.Prefix + v, err
}

// Usable reports whether the secret is there and was read without a fault.
func (s *Secret) Usable() bool { return s != nil && s.read != nil }

func fromEnv(name string, env func(string) string) Source {
	return func(context.Context) (string, error) {
		if v := env(name); v != "" {
			return v, nil
		}
		return "", fmt.Errorf("the environment variable %s is not set", name)
	}
}

// FromFile returns the secret in a file, without the end of its line.
func FromFile(file string) Source {
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

// FromCommand returns the secret that a command prints, without the end of its line. It runs the
// command again once the last answer is commandServes old.
func FromCommand(argv []string) Source {
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
		at := time.Now()
		v, err := printed(ctx, argv)
		if err != nil {
			return "", err
		}
		last = v
		asked = at
		return v, nil
	}
}

// printed runs a command and returns what it prints, without the end of its line.
func printed(ctx context.Context, argv []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.WaitDelay = time.Second // for what the command started and did not end
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && len(exit.Stderr) > 0 {
			err = fmt.Errorf("%w: %.200s", err, show.Printable(show.OneLine(string(exit.Stderr))))
		}
		return "", fmt.Errorf("the command %s: %w", argv[0], err)
	}
	v := strings.TrimRight(string(out), "\r\n")
	if v == "" {
		return "", fmt.Errorf("the command %s printed nothing", argv[0])
	}
	return v, nil
}
