package main

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/eventsource"
)

// keyed are keys.
type keyed struct {
	claim  string // statement
	cursor bool   // a consumer has said that it has passed all, so only the horizon keeps a segment
}

const cursorSQL = `
with l as (insert into onlyonce.leases (name) values ('cursor/x/t/0') returning id),
     c as (insert into onlyonce.cursors (
       id,
       scope,
       topic,
       partition,
       start_offset,
       run_start,
       start_policy
     )
       select id,
              'x',
              't',
              0,
              0,
              0,
              'earliest'
         from l returning id)
insert into onlyonce.frontiers (cursor_id, run, frontier) select id, 0, clock_timestamp() from c`

func (k *keyed) setUp(r *rig) (err error) {
	if k.cursor {
		_, err = r.db.Pool.Exec(r.ctx, cursorSQL)
	}
	return err
}

func (k *keyed) put(ctx context.Context, tx pgx.Tx, names ...string) ([]bool, error) {
	keys := make([]uuid.UUID, len(names))
	prints := make([]int64, len(names))
	for i, name := range names {
		keys[i] = uuid.NewSHA1(uuid.Nil, []byte(name))
	}
	var outcomes []int16
	if err := tx.QueryRow(ctx, k.claim, keys, prints).Scan(&outcomes); err != nil {
		return nil, err
	}
	fresh := make([]bool, len(names))
	for i, o := range outcomes {
		fresh[i] = o == 0
	}
	return fresh, nil
}

func (k *keyed) copies() bool { return true }

func (k *keyed) read(*rig) ([]string, error) { return nil, nil }

// called are calls of the outbox, and a relay that only reads them.
type called struct{}

const (
	sinkSQL = `
with s as (insert into onlyonce.sinks (name) values ('main')),
     l as (insert into onlyonce.leases (name)
             select 'relay/main/' || n from generate_series(0, 15) n returning id, name),
     made as (insert into onlyonce.sink_lanes (id, sink, lane)
                select id, 'main', split_part(name, '/', 3)::smallint from l returning id)
insert into onlyonce.lane_cursors (id) select id from made`
	callSQL = `
select onlyonce.enqueue_calls(
  checks => array[0::smallint],
  keys => array[$1::uuid],
  order_keys => array[null::uuid],
  sinks => array['main'],
  tenants => array['t'],
  scopes => array['s'],
  names => array[$2::text],
  methods => array['POST'],
  targets => array['/'],
  headers => array[''],
  traces => array[null::text],
  bodies => array['x'::bytea],
  not_before => array[null::timestamptz],
  origin_times => array[null::timestamptz],
  redo => array[false],
  capture => array[false],
  sealed => array[false]
)`
	passSQL = `
select onlyonce.advance(
  lane_id => id,
  seen => version,
  last_id => 0,
  freeze => true,
  keep_started => false
) from onlyonce.lanes`
	passedSQL = `
select r.name from onlyonce.lanes l cross join lateral (
    select n.name, n.xid
      from onlyonce.outbox_log n where n.sink = l.sink and n.lane = l.lane and n.xid >= pg_snapshot_xmax(l.prev)
    union all
    select n.name, n.xid
      from onlyonce.outbox_log n
     where n.sink = l.sink and n.lane = l.lane and n.xid in (select pg_snapshot_xip(l.prev))) r
 where pg_visible_in_snapshot(r.xid, l.target)`
)

func (c *called) setUp(r *rig) error {
	_, err := r.db.Pool.Exec(r.ctx, sinkSQL)
	return err
}

func (c *called) put(ctx context.Context, tx pgx.Tx, names ...string) ([]bool, error) {
	for _, name := range names {
		if _, err := tx.Exec(ctx, callSQL, uuid.New(), name); err != nil {
			return nil, err
		}
	}
	return make([]bool, len(names)), nil
}

func (c *called) copies() bool { return false }

// read makes two passes: after the second one every lane has passed what the first has found.
func (c *called) read(r *rig) (all []string, err error) {
	for range 2 {
		if _, err := r.db.Pool.Exec(r.ctx, passSQL); err != nil {
			return nil, err
		}
		names, err := texts(r.ctx, r.db.Pool, passedSQL)
		if err != nil {
			return nil, err
		}
		all = append(all, names...)
	}
	return all, nil
}

// appended are events, and a consumer that only reads them.
type appended struct{ next int64 }

const (
	readerSQL = `
with l as (insert into onlyonce.leases (name) values ('cursor/x/` + topic + `/0') returning id)
insert into onlyonce.cursors (
  id,
  scope,
  topic,
  partition,
  cluster_id,
  topic_id,
  start_offset,
  start_policy,
  run_start
)
select l.id,
       'x',
       s.topic,
       0,
       'postgres',
       s.incarnation,
       0,
       'earliest',
       0
  from l, onlyonce.streams s where s.topic = '` + topic + `'`
	eventsSQL  = `select "offset", id from onlyonce.event_log where "offset" >= $1 order by "offset"`
	handledSQL = `update onlyonce.cursors set run_start = $1`
)

func (a *appended) setUp(r *rig) error {
	_, err := eventsource.MakeStream(r.ctx, r.db.Pool, topic, 1)
	if err == nil {
		_, err = r.db.Pool.Exec(r.ctx, readerSQL)
	}
	return err
}

func (a *appended) put(ctx context.Context, tx pgx.Tx, names ...string) ([]bool, error) {
	var events []eventsource.Event
	for _, name := range names {
		events = append(events, eventsource.Event{Topic: topic, ID: name, Body: []byte("x")})
	}
	return make([]bool, len(names)), eventsource.Append(ctx, tx, events...)
}

func (a *appended) copies() bool { return false }

func (a *appended) read(r *rig) (names []string, err error) {
	rows, err := r.db.Pool.Query(r.ctx, eventsSQL, a.next)
	if err != nil {
		return nil, err
	}
	var offset int64
	var name string
	_, err = pgx.ForEachRow(rows, []any{&offset, &name}, func() error {
		if offset != a.next {
			return broken("I1 the next event is at offset %d and not at %d", offset, a.next)
		}
		a.next++
		names = append(names, name)
		return nil
	})
	if err != nil {
		return nil, err
	}
	_, updated := r.db.Pool.Exec(r.ctx, handledSQL, a.next)
	return names, errors.Join(err, updated)
}
