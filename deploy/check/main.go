// Command check builds the image of deploy/Dockerfile and runs its parts as docker-compose.yml and
// the chart do, against a Postgres in a container: it migrates, sends a call, scrapes the exporter
// and opens the console. Each container has a read-only root file system and no root user, and ends
// with status 0 within its grace.
//
//	go -C deploy/check run .
//
// Without a Docker engine it starts dockerd, as root. It pulls
// nothing: the images of Go and Postgres are imported from this machine's installations. Exit
// status 1: a step failed.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/outbox"
)

const top = "../.."

// sinkName is the sink of deploy/relay.json.
const sinkName = "relay-worker"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "onlyonce-image-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	docker, err := findEngine(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, docker.stop()) }()
	size, err := docker.images(ctx)
	if err != nil {
		return err
	}
	s := &stack{docker: docker, dir: dir, ports: map[string]string{}}
	defer func() { err = errors.Join(err, s.removeAll()) }()
	if err := s.play(ctx); err != nil {
		return err
	}
	fmt.Printf("image ok size=%.1fMB parts=migrate,relay,exporter,console\n", float64(size)/1e6)
	return nil
}

// stack is the containers of one run. They share the machine's network.
type stack struct {
	docker     *engine
	dir        string
	url        string            // of the database
	ports      map[string]string // that files name, and that the containers have here
	containers []*part
}

func (s *stack) play(ctx context.Context) error {
	compose, err := loadCompose(ctx)
	if err != nil {
		return err
	}
	chart, err := renderChart(map[string]any{"console": map[string]any{"enabled": true}})
	if err != nil {
		return err
	}
	if err := s.database(ctx); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	migrate, err := s.start(ctx, compose.part("migrate"))
	if err != nil {
		return err
	}
	if err := migrate.ended(ctx); err != nil {
		return err
	}
	calls := make(chan string, 1)
	remote := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case calls <- r.Header.Get("Idempotency-Key"):
		default: // a call is sent at least once
		}
	}))
	defer remote.Close()
	text, err := os.ReadFile(compose.Configs["relay"].File)
	if err != nil {
		return err
	}
	config := strings.ReplaceAll(string(text), "http://host.docker.internal:8099", remote.URL)
	file := filepath.Join(s.dir, "relay.json")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil { //nolint:gosec // another user reads it
		return err
	}
	relay := compose.part("relay")
	relay.binds = []string{file + ":/relay.json:ro"}
	exporter, console := chart.part("exporter"), chart.part("console")
	for _, p := range []*part{relay, exporter, console} {
		if _, err := s.start(ctx, p); err != nil {
			return err
		}
	}
	if _, err := s.page(ctx, "http://127.0.0.1:"+s.ports["8098"]+"/healthz", sinkName); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	if err := s.enqueue(ctx); err != nil {
		return err
	}
	select {
	case key := <-calls:
		if key == "" {
			return errors.New("relay: the call has no Idempotency-Key")
		}
	case <-ctx.Done():
		return fmt.Errorf("relay: no call: %w", ctx.Err())
	}
	if _, err := s.page(ctx, "http://127.0.0.1:"+s.ports["9465"]+"/metrics", "onlyonce_database_up{"); err != nil {
		return fmt.Errorf("exporter: %w", err)
	}
	address, err := console.says(ctx, regexp.MustCompile(`http://127\.0\.0\.1:\d+/\S+`))
	if err != nil {
		return err
	}
	if _, err := s.page(ctx, address, "<title>"); err != nil {
		return fmt.Errorf("console: %w", err)
	}
	for _, p := range []*part{relay, exporter, console} {
		if err := p.drain(ctx); err != nil {
			return err
		}
	}
	return nil
}

// database starts Postgres and waits until it answers.
func (s *stack) database(ctx context.Context) error {
	port, err := s.port("5432")
	if err != nil {
		return err
	}
	s.url = "postgres://postgres@127.0.0.1:" + port + "/postgres?sslmode=disable"
	p, err := s.start(ctx, &part{
		name: "postgres", image: postgresImage, user: "1000:1000", tmpfs: map[string]string{"/data": "mode=1777", "/tmp": "mode=1777"},
		args: []string{
			"/bin/sh",
			"-c",
			"initdb -D /data/pg -U postgres -A trust -E UTF8 --no-locale >/dev/null && exec postgres -D " +
				"/data/pg -c listen_addresses=127.0.0.1 -c unix_socket_directories=/tmp -p " +
				port,
		},
	})
	if err != nil {
		return err
	}
	return wait(ctx, "connecting", func() error {
		conn, err := pgx.Connect(ctx, s.url)
		if err != nil {
			return errors.Join(err, p.running(ctx))
		}
		return conn.Close(ctx)
	})
}

// enqueue commits a call for the relay.
func (s *stack) enqueue(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		return outbox.Enqueue(ctx, tx, outbox.Call{
			Sink:   sinkName,
			Name:   "charge",
			Target: "/charges",
			ID:     "order-17",
			Scope:  "shop",
			Body:   []byte(`{}`),
		})
	})
}

// page waits for a page that contains text.
func (s *stack) page(ctx context.Context, address, text string) (body string, err error) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return "", err
	}
	client := http.Client{Timeout: 10 * time.Second, Jar: jar}
	err = wait(ctx, address, func() error {
		body, err = get(ctx, &client, address)
		if err == nil && !strings.Contains(body, text) {
			err = fmt.Errorf("%q is not in it: %.200q", text, body)
		}
		return err
	})
	return body, err
}

// port returns a free port for one that a file names.
func (s *stack) port(named string) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	s.ports[named] = strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	return s.ports[named], l.Close()
}
