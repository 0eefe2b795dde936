package pgtest

import (
	"context"
	"net"
	"strconv"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/test/devenv"
)

// Switchover is an address that leads to a primary, for a while to its standby, and then to the
// primary again. The primary's sockets break when it begins, as by a restart; the standby's stay
// open when it ends.
type Switchover struct {
	t                testing.TB
	primary, standby *devenv.Postgres

	mu   sync.Mutex
	away bool // new sockets lead to the standby
	open []net.Conn
}

// NewSwitchover starts two servers of the test's own, with our schema.
func NewSwitchover(t testing.TB) *Switchover {
	t.Helper()
	s := &Switchover{t: t, primary: ownServer(t, nil)}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	var err error
	if s.standby, err = s.primary.Standby(ctx, "twin", devenv.Options{PostgresSettings: devenv.ThrowawaySettings()}); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		if err := s.standby.Stop(); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return s
}

// Direct returns a pool that always leads to the primary.
func (s *Switchover) Direct() *pgxpool.Pool { return pool(s.t, s.primary.URL) }

// Pool returns a pool on the address, with few connections. Its sessions have the default isolation
// level, or the one that is given.
func (s *Switchover) Pool(isolation ...string) *pgxpool.Pool {
	s.t.Helper()
	cfg, err := pgxpool.ParseConfig(s.primary.URL)
	if err != nil {
		s.t.Fatal(err)
	}
	cfg.MaxConns = 6
	for _, level := range isolation {
		cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = level
	}
	at := map[bool]string{false: hostPort(cfg)}
	standby, err := pgxpool.ParseConfig(s.standby.URL)
	if err != nil {
		s.t.Fatal(err)
	}
	at[true] = hostPort(standby)
	cfg.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", at[s.away])
		if err == nil {
			s.open = append(s.open, conn)
		}
		return conn, err
	}
	p, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(p.Close)
	return p
}

func hostPort(c *pgxpool.Config) string {
	return net.JoinHostPort(c.ConnConfig.Host, strconv.Itoa(int(c.ConnConfig.Port)))
}

// Begin breaks all sockets. New ones lead to the standby, which has everything by then.
func (s *Switchover) Begin() {
	s.t.Helper()
	if err := s.primary.CaughtUp(s.t.Context(), "twin"); err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = true
	for _, c := range s.open {
		_ = c.Close()
	}
	s.open = nil
}

// End fills a pool of [Switchover.Pool] with connections to the standby. New sockets lead to the
// primary from then on, and those stay.
func (s *Switchover) End(p *pgxpool.Pool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), startTimeout)
	defer cancel()
	held := hold(ctx, s.t, p)
	s.mu.Lock()
	s.away = false
	s.mu.Unlock()
	for _, c := range held {
		c.Release()
	}
}

// Stale returns a pool of four connections to the database of base, whose sessions take no writes,
// as after a switchover. New ones do.
func Stale(t testing.TB, base *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	cfg := base.Config().Copy()
	cfg.MaxConns = 4
	stale, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stale.Close)
	ReadOnly(t, base, func() {
		for _, c := range hold(t.Context(), t, stale) {
			c.Release()
		}
	})
	return stale
}

// ReadOnly calls connect. The sessions that begin meanwhile in the database of base take no writes,
// for as long as they last.
func ReadOnly(t testing.TB, base *pgxpool.Pool, connect func()) {
	t.Helper()
	conn, err := base.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	set := func(sql string) {
		if _, err := conn.Exec(t.Context(), `alter database "`+base.Config().ConnConfig.Database+`" `+sql); err != nil {
			t.Fatal(err)
		}
	}
	set(`set default_transaction_read_only = on`)
	connect()
	set(`reset default_transaction_read_only`)
}

// hold takes all connections of a pool.
func hold(ctx context.Context, t testing.TB, p *pgxpool.Pool) []*pgxpool.Conn {
	t.Helper()
	held := make([]*pgxpool.Conn, p.Config().MaxConns)
	for i := range held {
		var err error
		if held[i], err = p.Acquire(ctx); err != nil {
			t.Fatalf("pgtest: %v", err)
		}
	}
	return held
}
