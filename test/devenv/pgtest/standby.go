package pgtest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// StandbyAway is a server whose synchronous standby is away: every COMMIT waits, but
// those of sessions with synchronous_commit=local, such as Admin's.
type StandbyAway struct {
	// URL is the server's address.
	URL string
	// Admin is a pool whose COMMITs do not wait.
	Admin *pgxpool.Pool

	t     testing.TB
	quit  chan struct{}
	ended chan struct{}
}

// NewStandbyAway starts a server of the test's own, whose standby is there at first.
func NewStandbyAway(t testing.TB) *StandbyAway {
	t.Helper()
	s := &StandbyAway{t: t, URL: Server(t, nil), quit: make(chan struct{}), ended: make(chan struct{})}
	s.Admin = pool(t, s.URL+"&synchronous_commit=local")
	s.exec(`create table standby_probe ()`)
	return s
}

// Leave takes the standby away, and returns when COMMITs wait for it.
func (s *StandbyAway) Leave() {
	s.t.Helper()
	s.exec(`alter system set synchronous_standby_names = 'nobody'`)
	s.exec(`select pg_reload_conf()`)
	probe, err := pgx.Connect(context.Background(), s.URL+"&application_name=standby_probe")
	if err != nil {
		s.t.Fatalf("pgtest: %v", err)
	}
	go func() { // commits until one waits, and further until it is stopped
		defer close(s.ended)
		defer func() { _ = probe.Close(context.Background()) }()
		for {
			select {
			case <-s.quit:
				return
			default:
			}
			if _, err := probe.Exec(context.Background(), `insert into standby_probe default values`); err != nil {
				s.t.Errorf("pgtest: %v", err)
				return
			}
		}
	}()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !s.Waits("standby_probe") {
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Fatal("pgtest: no COMMIT waits for a standby")
		}
	}
}

// Waits reports whether a COMMIT of an application waits for the standby.
func (s *StandbyAway) Waits(application string) (waits bool) {
	s.t.Helper()
	const sql = `select exists (select from pg_stat_activity where application_name = $1 and wait_event = 'SyncRep')`
	if err := s.Admin.QueryRow(context.Background(), sql, application).Scan(&waits); err != nil {
		s.t.Fatalf("pgtest: %v", err)
	}
	return waits
}

// CancelAnother cancels the wait of a session of its own, and returns after that has ended. If a
// wait was cancelled before by another session, it would have ended by then, too.
func (s *StandbyAway) CancelAnother() {
	s.t.Helper()
	close(s.quit)
	s.exec(`select pg_cancel_backend(pid) from pg_stat_activity where application_name = 'standby_probe'`)
	<-s.ended
}

// Return ends all waiting.
func (s *StandbyAway) Return() {
	s.t.Helper()
	s.exec(`alter system reset synchronous_standby_names`)
	s.exec(`select pg_reload_conf()`)
}

func (s *StandbyAway) exec(sql string) {
	s.t.Helper()
	if _, err := s.Admin.Exec(context.Background(), sql); err != nil {
		s.t.Fatalf("pgtest: %s: %v", sql, err)
	}
}
