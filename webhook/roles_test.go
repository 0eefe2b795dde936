package webhook_test

import (
	"context"
	"net/url"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/webhook"
)

// S2: a receiver and a worker need only the rights of onlyonce_app, whichever role rotates and
// forgets. They need no prepared statements, for example with PgBouncer.
func TestS2ReceiverAndWorkerWithLeastPrivileges(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil) // of its own, because roles are the whole server's
	r := &rig{t: t, pool: pgtest.Pool(t, server)}
	roles, err := os.ReadFile("../docs/roles.sql")
	if err != nil {
		t.Fatal(err)
	}
	r.exec(string(roles))
	r.exec(`create role hooks login in role onlyonce_app`)
	r.exec(`create role sweeper login in role onlyonce_app, onlyonce_rotator`)
	r.exec(`create table effects (id text not null, at bigserial);
		grant insert, select on effects to hooks;
		grant usage on sequence effects_at_seq to hooks`)
	as := func(login string) *pgxpool.Pool {
		u, err := url.Parse(server)
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.User(login)
		return r.open(u.String() + "&default_query_exec_mode=exec")
	}
	r.recv = as("hooks")
	owner := r.pool
	r.pool = r.recv
	var ordered webhook.Ordered
	ordered.Version = func(e *webhook.Event) (string, int64, error) { return "o", int64(len(e.Body)), nil }
	h, err := webhook.InOrder(ordered, consumer.HandlerFunc(effect))
	if err != nil {
		t.Fatal(err)
	}
	r.work(h.Handle)
	r.pool = owner
	e := r.serve(unknownSender(), func(c *webhook.Config) {
		c.OrderingKey = func(*webhook.Event) string { return "o" }
		c.Forward = &webhook.Forward{Sink: "kafka", Target: "/hooks"}
		c.MaxBody = 1 << 20
	})
	inlineToo := r.serve(unknownSender(), inline(h.Handle), func(c *webhook.Config) { c.Name = "i" })
	for _, to := range []*endpoint{e, inlineToo} {
		to.sendAs("d-1", "push").want(t, 200, false)
		to.sendAs("d-1", "push").want(t, 200, true)
		to.sendAs("d-1", "other").want(t, 200, true)
		to.sendAs("d-2", "push").want(t, 200, true)
		to.sendAs("d-3", "pus").want(t, 200, false) // stale
	}
	r.until("all are handled", func() bool { return r.count("effects") == 2 && r.count("onlyonce.parked") == 6 })
	r.exec(`update onlyonce.webhook_bodies set seen_at = seen_at - interval '8 days'`)
	r.recv = as("sweeper")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	purged := make(chan int64, 1)
	done := make(chan error, 1)
	x := r.receiver(e.sample, func(c *webhook.Config) { c.Hooks.Forgotten = func(n int64) { purged <- n } })
	go func() { done <- x.Upkeep(ctx) }()
	if n := pgtest.Receive(t, patience, "purged", purged); n != 3 {
		t.Errorf("%d bodies were forgotten, want 3: that which was set aside too", n)
	}
	stop()
	if err := pgtest.Receive(t, patience, "it is done", done); err != nil {
		t.Error(err)
	}
	if _, err := as("hooks").Exec(t.Context(), `delete from onlyonce.inbox`); guard.SQLState(err) != "42501" {
		t.Errorf("a receiver may delete what was claimed: %v", err)
	}
}
