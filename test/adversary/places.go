package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/internal/rig/workerdb"
	"github.com/onlyonce/onlyonce/shard"
)

// placesScenes have tenants that live in one of two databases, near and far. In one of them the
// process under test serves tenants that no process has met before. In the others it is the command
// that takes a tenant out of near, or into far.
func placesScenes() []scene {
	return []scene{
		{name: "places/request", make: func() stage { return &housed{each: true} }},
		{name: "places/leave", command: true, make: func() stage { return &moving{} }},
		{name: "places/adopt", command: true, make: func() stage { return &moving{left: true} }},
	}
}

// housed is a server whose tenants live in two databases, and its client.
type housed struct {
	*serving
	each  bool // each key is of a tenant of its own
	far   *workerdb.DB
	route atomic.Pointer[string] // the database that the server's function names
}

const (
	near = "near"
	far  = "far"
)

// setUp implements stage.
func (x *housed) setUp(r *rig) error {
	var err error
	if x.far, err = r.worker.database(r.ctx, far); err != nil {
		return err
	}
	x.send(near)
	x.serving = newServing(func(s *serving, r *rig, pool *pgxpool.Pool) (http.Handler, func(context.Context) error, error) {
		return s.layer(r, pool, idempotency.Transactional, "")
	})
	x.newSharded = func(pool *pgxpool.Pool, cfg idempotency.Config) (*idempotency.Layer, error) {
		to := *x.route.Load()
		set, err := shard.New(shard.Config{
			Pools:   map[string]*pgxpool.Pool{near: pool, far: x.far.Pool},
			OfPlace: func(string) string { return to },
		})
		if err != nil {
			return nil, err
		}
		return idempotency.NewSharded(set, cfg)
	}
	if x.each {
		x.tenant = func(key string) string { return key }
		rival, err := shard.New(shard.Config{
			Pools:   map[string]*pgxpool.Pool{near: r.db.Pool, far: x.far.Pool},
			OfPlace: func(string) string { return far },
		})
		if err != nil {
			return err
		}
		x.refusal = func(key string) { x.take(r, rival, key) }
	}
	return x.serving.setUp(r)
}

// send makes servers that start from now on send all tenants to a database.
func (x *housed) send(database string) { x.route.Store(&database) }

// take is another program, whose function sends all tenants to far. It meets a tenant after a
// fault. A tenant that it has is its own: the client asks no more.
func (x *housed) take(r *rig, rival *shard.Set, tenant string) {
	if !r.hasStruck() {
		return
	}
	ctx, cancel := context.WithTimeout(r.ctx, r.bound)
	defer cancel()
	_, err := rival.Find(ctx, tenant)
	r.say("another program: %s lives in far: %v", tenant, err)
	if err == nil {
		x.pass(tenant)
	}
}

const placesSQL = `select place from onlyonce.places where state in ('here', 'leaving') order by place`

// check implements stage.
func (x *housed) check(r *rig) ([]string, error) {
	found, err := x.serving.checkIn(r, r.db.Pool, x.far.Pool)
	if err != nil {
		return nil, err
	}
	lives := map[string]int{}
	for _, pool := range []*pgxpool.Pool{r.db.Pool, x.far.Pool} {
		places, err := texts(r.ctx, pool, placesSQL)
		if err != nil {
			return nil, err
		}
		for _, p := range places {
			if lives[p]++; lives[p] > 1 {
				found = append(found, fmt.Sprintf("N1 %s lives in two databases", p))
			}
		}
	}
	return found, nil
}

// moving is a tenant that moves from near to far while requests come. The process under test is the
// command that takes it out of near, or that takes it into far after it has left near.
type moving struct {
	housed
	left bool // near, before the process under test starts
	over bool // the process under test has ended
}

func (x *moving) leave(ctx context.Context, r *rig, nearURL string) error {
	_, err := r.command(ctx, nearURL, "place", "leave", "-place", "t", "-to", far, "-reason", "x", "-yes")
	return err
}

// abandonedSQL ends the sessions that an adoption left in its transaction. The server does it after
// ten minutes, which is longer than the rig waits. All other sessions end sooner than these are
// looked for. In: milliseconds.
const abandonedSQL = `
select pg_terminate_backend(pid) from pg_stat_activity
 where datname = current_database()
   and state = 'idle in transaction'
   and state_change < clock_timestamp() - $1 * interval '1 ms'`

func (x *moving) adopt(ctx context.Context, r *rig, nearURL, farURL string) error {
	_, err := r.command(ctx, farURL, "place", "adopt", "-place", "t", "-from", nearURL, "-as", far, "-without-keys", "-reason", "x", "-yes")
	if err != nil {
		if _, err := x.far.Pool.Exec(r.ctx, abandonedSQL, (5 * r.bound).Milliseconds()); err != nil {
			return err
		}
	}
	return err
}

// setUp implements stage: some requests are answered before the tenant moves.
func (x *moving) setUp(r *rig) error {
	if err := x.housed.setUp(r); err != nil {
		return err
	}
	stop, err := x.serving.start(r, r.db.Pool)
	if err != nil {
		return err
	}
	if err := r.until("answered before the move", func() (bool, error) { return x.serving.done(r) }); err != nil {
		return err
	}
	if err := x.more(r); err != nil {
		return err
	}
	if !x.left {
		return stop()
	}
	x.send(far)
	return errors.Join(stop(), x.leave(r.ctx, r, r.db.Address()))
}

// start implements stage.
func (x *moving) start(r *rig, pool *pgxpool.Pool) (func() error, error) {
	nearURL := r.db.Address()
	farURL := x.far.Address()
	if pool != r.pool {
		x.over = true
		if !x.left {
			if err := x.adopt(r.ctx, r, nearURL, farURL); err != nil {
				return nil, err
			}
		}
		x.send(far)
		return x.serving.start(r, r.db.Pool)
	}
	stop, err := x.serving.start(r, r.db.Pool)
	if err != nil {
		return nil, err
	}
	return r.commands(func(ctx context.Context, wired func(string) string) error {
		if x.left {
			return x.adopt(ctx, r, wired(nearURL), wired(farURL))
		}
		return x.leave(ctx, r, wired(nearURL))
	}, stop)
}

// done implements stage. A tenant that has left and is adopted nowhere yet is refused, so its
// requests are not all answered before the successor has started.
func (x *moving) done(r *rig) (bool, error) {
	if x.left || x.over {
		return x.serving.done(r)
	}
	var left bool
	err := r.db.Pool.QueryRow(r.ctx, `select exists (select from onlyonce.places where place = 't' and state = 'left')`).Scan(&left)
	return left, err
}
