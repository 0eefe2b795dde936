package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// stack is the run's images and containers.
type stack struct {
	docker  *engine
	compose compose
	chart   manifests
	size    int64 // of our image

	exports  []string // variables that commands have set
	commands int      // that were played
	services []string // that were seen to work
	parts    []string // of the chart that were seen to work
}

func newStack(ctx context.Context, docker *engine) (*stack, error) {
	s := &stack{docker: docker}
	var err error
	if s.compose, err = loadCompose(ctx); err != nil {
		return nil, err
	}
	s.chart, err = renderChart(map[string]any{"console": map[string]any{"enabled": true}})
	return s, err
}

// inspect notes the size of the image that Compose has built. It must not run as root.
func (s *stack) inspect(ctx context.Context) error {
	described, err := s.docker.docker(ctx, nil, "image", "inspect", "-f", "{{.Size}} {{.Config.User}}", s.image())
	if err != nil {
		return err
	}
	number, user, _ := strings.Cut(described, " ")
	if uid, _, _ := strings.Cut(user, ":"); uid == "" || uid == "0" || uid == "root" {
		return fmt.Errorf("the image runs as user %q", user)
	}
	s.size, err = strconv.ParseInt(number, 10, 64)
	return err
}

// image is that of our programs.
func (s *stack) image() string { return s.compose.Services["relay"].Image }

// headOf returns the commands of the comment at the head of a file.
func headOf(file string) (commands []string, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			break
		}
		if command, is := strings.CutPrefix(line, "#   "); is {
			command, _, _ = strings.Cut(command, " # ")
			commands = append(commands, strings.TrimSpace(command))
		}
	}
	return commands, nil
}

// run plays a command with a shell, in the repository's root.
func (s *stack) run(ctx context.Context, command string) error {
	fmt.Fprintln(os.Stderr, "$", command)
	c := exec.CommandContext(ctx, "sh", "-c", strings.Join(append(s.exports, command), "\n"))
	c.Dir = top
	c.Stdout = os.Stderr
	c.Stderr = os.Stderr
	s.commands++
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	return nil
}

// play plays commands in their order. Before one that takes services down it looks whether each
// works that was to be started, and after it that none is left.
func (s *stack) play(ctx context.Context, commands []string) error {
	profile := ""
	for _, command := range commands {
		if strings.HasPrefix(command, "export ") {
			s.exports = append(s.exports, command)
			continue
		}
		if m := regexp.MustCompile(`--profile (\S+) up`).FindStringSubmatch(command); m != nil {
			profile = m[1]
		}
		down := strings.HasPrefix(command, "docker compose ") && strings.Contains(command, " down")
		if down {
			if err := s.look(ctx, profile); err != nil {
				return err
			}
		}
		if err := s.run(ctx, command); err != nil {
			return err
		}
		if !down {
			continue
		}
		if left, err := s.docker.docker(ctx, nil, "ps", "-aq"); err != nil || left != "" {
			return errors.Join(err, fmt.Errorf("%s left containers %q", command, left))
		}
	}
	if all := slices.Sorted(maps.Keys(s.compose.Services)); !slices.Equal(s.services, all) {
		return fmt.Errorf("of the services %q the commands of docker-compose.yml start %q", all, s.services)
	}
	return nil
}

// state is that of a service's container, as Compose prints it.
type state struct {
	Service, State, Health string
	ExitCode               int
}

// look waits until each service of a profile works: until it is healthy, runs, or has ended with
// status 0 if others wait for that. Then it looks at the relay, if it is one of them.
func (s *stack) look(ctx context.Context, profile string) error {
	s.services = nil
	want := map[string]state{}
	for _, name := range slices.Sorted(maps.Keys(s.compose.Services)) {
		service := s.compose.Services[name]
		if len(service.Profiles) > 0 && !slices.Contains(service.Profiles, profile) {
			continue
		}
		one := state{Service: name, State: "running"}
		if service.HealthCheck != nil {
			one.Health = "healthy"
		}
		if name == "migrate" {
			one.State = "exited"
		}
		want[name] = one
		s.services = append(s.services, name)
	}
	if err := wait(ctx, "services", func() error {
		states, err := s.states(ctx)
		if err == nil && !maps.Equal(states, want) {
			err = fmt.Errorf("they are %+v, want %+v", states, want)
		}
		return err
	}); err != nil {
		return err
	}
	if profile != "relay" {
		return nil
	}
	if err := s.page(ctx, "http://127.0.0.1:8098/healthz", "relay-worker"); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	if err := errors.Join(s.inspect(ctx), s.beside(ctx)); err != nil {
		return err
	}
	if err := s.run(ctx, "docker compose --profile relay stop relay"); err != nil {
		return err
	}
	states, err := s.states(ctx)
	if want := (state{Service: "relay", State: "exited"}); err == nil && states["relay"] != want {
		err = fmt.Errorf("the relay's stop: %+v, want %+v", states["relay"], want)
	}
	return err
}

// states returns the state of each service's container.
func (s *stack) states(ctx context.Context) (map[string]state, error) {
	out, err := s.docker.docker(ctx, nil, "compose", "-f", filepath.Join(top, "docker-compose.yml"), "--profile", "*", "ps", "-a",
		"--format", "json")
	if err != nil {
		return nil, err
	}
	states := map[string]state{}
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var one state
		if err := d.Decode(&one); err != nil {
			return nil, err
		}
		states[one.Service] = one
	}
	return states, nil
}

// beside runs the exporter and the console as the chart does, against the services' database.
func (s *stack) beside(ctx context.Context) error {
	address := regexp.MustCompile(`http://127\.0\.0\.1:\d+/\S+`)
	for _, look := range []struct {
		part, page, text string
		says             *regexp.Regexp // what the part prints, in place of page
	}{
		{"exporter", "http://127.0.0.1:9465/metrics", "onlyonce_database_up{", nil},
		{"console", "", "<title>", address},
	} {
		p := s.chart.part(look.part)
		if err := s.start(ctx, p); err != nil {
			return err
		}
		if look.says != nil {
			var err error
			if look.page, err = s.says(ctx, p, look.says); err != nil {
				return err
			}
		}
		if err := s.page(ctx, look.page, look.text); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if err := s.drain(ctx, p); err != nil {
			return err
		}
		s.parts = append(s.parts, p.name)
	}
	return nil
}

// start runs a part of the chart on this network, with the address that commands were given in
// place of the secret's.
func (s *stack) start(ctx context.Context, p *part) error {
	args := []string{"run", "-d", "--name", p.name, "--read-only", "--network", "host"}
	for name, value := range p.env {
		if name != "ONLYONCE_POSTGRES_URL" {
			args = append(args, "-e", name+"="+value)
		}
	}
	url := ""
	for _, export := range s.exports {
		if text, is := strings.CutPrefix(export, "export ONLYONCE_POSTGRES_URL="); is {
			url = strings.Trim(text, "'")
		}
	}
	args = append(args, "-e", "ONLYONCE_POSTGRES_URL="+url)
	_, err := s.docker.docker(ctx, nil, append(append(args, s.image()), p.args...)...)
	return err
}

// says waits until a part's log matches, and returns the match.
func (s *stack) says(ctx context.Context, p *part, pattern *regexp.Regexp) (match string, err error) {
	err = wait(ctx, p.name+" says "+pattern.String(), func() error {
		out, err := exec.CommandContext(ctx, "docker", "logs", p.name).CombinedOutput()
		if match = pattern.FindString(string(out)); match == "" {
			return errors.Join(fmt.Errorf("it says %q", out), err)
		}
		return nil
	})
	return match, err
}

// drain sends SIGTERM: the program must end with status 0 before the grace is over.
func (s *stack) drain(ctx context.Context, p *part) error {
	grace := strconv.Itoa(int(p.grace / time.Second))
	if _, err := s.docker.docker(ctx, nil, "stop", "-t", grace, p.name); err != nil {
		return err
	}
	if status, err := s.docker.docker(ctx, nil, "inspect", "-f", "{{.State.ExitCode}}", p.name); err != nil || status != "0" {
		return errors.Join(err, fmt.Errorf("%s ended with status %s", p.name, status))
	}
	_, err := s.docker.docker(ctx, nil, "rm", p.name)
	return err
}

// page waits for a page that contains text.
func (s *stack) page(ctx context.Context, address, text string) error {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return err
	}
	client := http.Client{Timeout: 10 * time.Second, Jar: jar}
	return wait(ctx, address, func() error {
		body, err := get(ctx, &client, address)
		if err == nil && !strings.Contains(body, text) {
			err = fmt.Errorf("%q is not in it: %.200q", text, body)
		}
		return err
	})
}

// logs returns what the containers have printed last.
func (s *stack) logs(ctx context.Context) error {
	ids, err := s.docker.docker(ctx, nil, "ps", "-aq")
	if err != nil {
		return err
	}
	for _, id := range strings.Fields(ids) {
		name, _ := s.docker.docker(ctx, nil, "inspect", "-f", "{{.Name}} {{.State.Status}} {{.State.ExitCode}}", id)
		out, _ := exec.CommandContext(ctx, "docker", "logs", "--tail", "30", id).CombinedOutput()
		err = errors.Join(err, fmt.Errorf("%s: %s", name, out))
	}
	return err
}
