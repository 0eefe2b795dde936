package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	payments "github.com/onlyonce/onlyonce/examples/payments-api"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/test/demo/servers"
	"github.com/onlyonce/onlyonce/test/devenv"
)

// sink is the provider's name in the outbox.
const sink = "payments-api"

// apiKeys are those of two accounts.
var apiKeys = []string{"sk_test_1", "sk_test_2"}

// world is a database, the API's process over it, the provider, and the control server, by which
// the suite counts, restarts and lets answers expire.
type world struct {
	admin    *pgx.Conn
	database string
	pool     *pgxpool.Pool
	provider *provider
	listener *os.File
	url      string
	orders   orders
	control  struct {
		url    string
		server *http.Server
	}

	mu       sync.Mutex
	process  *process
	restarts int
}

// outsideSQL lets Postgres be slow at one amount, and fail at each second insertion of another one,
// as a database may. nextval is not undone with the transaction.
var outsideSQL = fmt.Sprintf(`
create sequence onlyonce_payments.broken;
create function onlyonce_payments.misbehave() returns trigger language plpgsql as $$
begin
  if new.amount = %d then
    perform pg_sleep(%g);
  elsif nextval('onlyonce_payments.broken') %% 2 = 1 then
    raise exception 'the disk is full' using errcode = '53100';
  end if;
  return new;
end $$;
create trigger misbehave before insert on onlyonce_payments.charges for each row
  when (new.amount in (%d, %d)) execute function onlyonce_payments.misbehave()`, slowAmount, slowFor.Seconds(), slowAmount, brokenAmount)

// newWorld starts all of it, in a database of its own.
func newWorld(ctx context.Context) (w *world, err error) {
	at := os.Getenv(devenv.EnvPostgresURL)
	if at == "" {
		return nil, errors.New(devenv.EnvPostgresURL + " must name a Postgres: run make idemcheck")
	}
	w = &world{database: "idemcheck_" + strings.ToLower(rand.Text())}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if w.admin, err = pgx.Connect(ctx, at); err != nil {
		return w, err
	}
	if _, err := w.admin.Exec(ctx, "create database "+w.database); err != nil {
		return w, err
	}
	address, err := url.Parse(at)
	if err != nil {
		return w, fmt.Errorf("%s: %w", devenv.EnvPostgresURL, err)
	}
	address.Path = "/" + w.database
	if err := w.prepare(ctx, address.String()); err != nil {
		return w, err
	}
	if w.provider, err = newProvider(); err != nil {
		return w, err
	}
	w.orders = orders{Postgres: address.String(), API: payments.Config{Sink: sink, Provider: w.provider.url, Secret: seal.Key{1},
		Accounts: map[string]string{apiKeys[0]: "acct_1", apiKeys[1]: "acct_2"}}}
	if err := w.listen(); err != nil {
		return w, err
	}
	w.process, err = start(w.listener, w.orders)
	return w, err
}

// prepare makes the schema and the tables.
func (w *world) prepare(ctx context.Context, address string) (err error) {
	if w.pool, err = servers.OpenPool(ctx, address, 4); err != nil {
		return err
	}
	err = w.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		_, err := migrations.Apply(ctx, c.Conn())
		return err
	})
	if err != nil {
		return err
	}
	return servers.CreateTables(ctx, w.pool, payments.Schema+outsideSQL)
}

// listen opens the API's listener, which outlives its processes, and serves the control server.
func (w *world) listen() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	w.url = "http://" + l.Addr().String()
	w.listener, err = l.(*net.TCPListener).File()
	if err := errors.Join(err, l.Close()); err != nil { // the file is a copy
		return err
	}
	control, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	w.control.url = "http://" + control.Addr().String()
	w.control.server = &http.Server{Handler: w.controls(), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = w.control.server.Serve(control) }()
	return nil
}

// close ends what was started, and drops the database.
func (w *world) close() error {
	var errs []error
	if w.control.server != nil {
		errs = append(errs, w.control.server.Close())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.process != nil {
		errs = append(errs, w.process.kill())
	}
	if w.provider != nil {
		errs = append(errs, w.provider.close())
	}
	if w.listener != nil {
		errs = append(errs, w.listener.Close())
	}
	if w.pool != nil {
		w.pool.Close()
	}
	if w.admin != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		_, err := w.admin.Exec(ctx, "drop database if exists "+w.database+" with (force)")
		errs = append(errs, err, w.admin.Close(ctx))
	}
	return errors.Join(errs...)
}
