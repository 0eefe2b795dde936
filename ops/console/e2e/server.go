package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/ops/console"
)

// server is the Postgres server, and the consoles over its databases.
type server struct {
	address *url.URL
	admin   *pgx.Conn
	made    int
	ends    []func()
}

func newServer(ctx context.Context, address string) (*server, error) {
	if address == "" {
		return nil, errors.New("ONLYONCE_POSTGRES_URL is not set: run `make e2e`")
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	admin, err := pgx.Connect(ctx, address)
	if err != nil {
		return nil, err
	}
	return &server{address: u, admin: admin}, nil
}

func (s *server) close() {
	for i := len(s.ends) - 1; i >= 0; i-- {
		s.ends[i]()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for n := range s.made {
		_, _ = s.admin.Exec(ctx, `drop database if exists `+database(n)+` with (force)`)
	}
	_ = s.admin.Close(ctx)
}

func database(n int) string { return "onlyonce_e2e_" + strconv.Itoa(n) }

// database makes a database with the schema.
func (s *server) database(ctx context.Context) (*pgxpool.Pool, error) {
	name := database(s.made)
	s.made++
	for _, sql := range []string{`drop database if exists ` + name + ` with (force)`, `create database ` + name} {
		if _, err := s.admin.Exec(ctx, sql); err != nil {
			return nil, err
		}
	}
	u := *s.address
	u.Path = "/" + name
	pool, err := pgxpool.New(ctx, u.String())
	if err != nil {
		return nil, err
	}
	s.ends = append(s.ends, pool.Close)
	return pool, pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		_, err := migrations.Apply(ctx, c.Conn())
		return err
	})
}

// filled makes a database, fills it (nil: with nothing), and serves a console of it at an address.
func (s *server) filled(
	ctx context.Context,
	c console.Config,
	fill func(context.Context, *pgxpool.Pool) error,
) (pool *pgxpool.Pool, at string, err error) {
	if pool, err = s.database(ctx); err == nil && fill != nil {
		err = fill(ctx, pool)
	}
	if err == nil {
		at, err = s.console(pool, c)
	}
	return pool, at, err
}

// console serves a console on a port of its own, and returns its address.
func (s *server) console(pool *pgxpool.Pool, c console.Config) (string, error) {
	h, err := console.New(pool, c)
	if err != nil {
		return "", err
	}
	return s.serve(h)
}

func (s *server) serve(h http.Handler) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = srv.Serve(l) }()
	s.ends = append(s.ends, func() { _ = srv.Close() })
	return fmt.Sprintf("http://%s", l.Addr()), nil
}

// as authorizes every request as one person.
func as(actor console.Actor, access console.Access) console.Authorizer {
	return func(*http.Request) (console.Actor, console.Access, error) { return actor, access, nil }
}
