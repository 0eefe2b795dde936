package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/testcontainers/testcontainers-go"
)

// part is a container.
type part struct {
	name, image, user string
	program           []string // in place of the image's
	args              []string
	env               map[string]string
	binds             []string
	tmpfs             map[string]string
	grace             time.Duration // between SIGTERM and SIGKILL
	c                 testcontainers.Container
}

// portIn finds the port of an address among arguments, as ":8098" and "127.0.0.1:8091".
var portIn = regexp.MustCompile(`:\d{4,5}$`)

// start runs a part on this machine's network, with free ports in place of its own, and the run's
// database in place of the one that the file names.
func (s *stack) start(ctx context.Context, p *part) (*part, error) {
	args := make([]string, len(p.args))
	for i, arg := range p.args {
		args[i] = arg
		if named := strings.TrimPrefix(portIn.FindString(arg), ":"); named != "" {
			port, known := s.ports[named]
			if !known {
				var err error
				if port, err = s.port(named); err != nil {
					return nil, err
				}
			}
			args[i] = strings.Replace(arg, ":"+named, ":"+port, 1)
		}
	}
	env := map[string]string{}
	for name, value := range p.env {
		env[name] = value
		if name == "ONLYONCE_POSTGRES_URL" {
			env[name] = s.url
		}
	}
	request := testcontainers.ContainerRequest{
		Image: p.image, Entrypoint: p.program, Cmd: args, Env: env, User: p.user,
		HostConfigModifier: func(c *container.HostConfig) {
			c.NetworkMode = "host"
			c.ReadonlyRootfs = true
			c.Binds = p.binds
			c.Tmpfs = p.tmpfs
		},
	}
	c, err := testcontainers.GenericContainer(ctx, testcontainers.GenericContainerRequest{ContainerRequest: request, Started: true})
	if c != nil {
		p.c = c
		s.containers = append(s.containers, p)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	return p, nil
}

// removeAll removes the containers.
func (s *stack) removeAll() (err error) {
	for _, p := range s.containers {
		err = errors.Join(err, testcontainers.TerminateContainer(p.c))
	}
	return err
}

// running returns an error if the container has ended.
func (p *part) running(ctx context.Context) error {
	state, err := p.c.State(ctx)
	if err == nil && !state.Running {
		return fmt.Errorf("%s ended with status %d: %s", p.name, state.ExitCode, p.log(ctx))
	}
	return err
}

// ended waits until the container has ended by itself with status 0.
func (p *part) ended(ctx context.Context) error {
	return wait(ctx, p.name+" ends", func() error {
		state, err := p.c.State(ctx)
		switch {
		case err != nil:
			return err
		case state.Running:
			return errors.New("it runs")
		case state.ExitCode != 0:
			return final{fmt.Errorf("%s ended with status %d: %s", p.name, state.ExitCode, p.log(ctx))}
		}
		return nil
	})
}

// drain sends SIGTERM: the program must end with status 0 before the grace is over.
func (p *part) drain(ctx context.Context) error {
	if err := p.running(ctx); err != nil {
		return err
	}
	if err := p.c.Stop(ctx, &p.grace); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return p.ended(ctx)
}

// says waits until the container's log matches, and returns the match.
func (p *part) says(ctx context.Context, pattern *regexp.Regexp) (match string, err error) {
	err = wait(ctx, p.name+" says "+pattern.String(), func() error {
		log := p.log(ctx)
		if match = pattern.FindString(log); match == "" {
			return errors.Join(fmt.Errorf("it says %q", log), p.running(ctx))
		}
		return nil
	})
	return match, err
}

func (p *part) log(ctx context.Context) string {
	r, err := p.c.Logs(ctx)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = r.Close() }()
	text, _ := io.ReadAll(r)
	return string(text)
}

// final is an error after which waiting has no point.
type final struct{ error }

// wait tries again until there is no error.
func wait(ctx context.Context, what string, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		var end final
		if errors.As(err, &end) {
			return err
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
