package inbox_test

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// The inbox is compared with a model, for sequences of claims in every form, in transactions that
// commit, roll back or stay open, at two isolation levels; of rotations step by step; of time that
// passes; of filters that are built, loaded and out of date. In the model a key is held in
// generations: one for each time that a segment was opened. It is known while one of them is
// current, draining or closed. That is all that a user can see of K2 to K6.

// modelHorizon is how long the rings remember, in steps of time. It is chosen so that a seventh of
// it is less than one step, so each step opens a segment.
const modelHorizon = 6

// modelKeys is how many keys there are: few, so that they collide.
const modelKeys = 12

func modelKey(n int) (k uuid.UUID) {
	// Filters know the last 8 bytes, and the index all.
	binary.BigEndian.PutUint64(k[:], uint64(n)*0x9e3779b97f4a7c15)
	binary.BigEndian.PutUint64(k[8:], uint64(n)*0xbf58476d1ce4e5b9)
	return k
}

// standing is what is known of a key.
type standing struct {
	print       int64
	generations []int
	since       int // a number that rises with each commit
}

// modelRing is a ring as it must be.
type modelRing struct {
	name                   string
	rotator                *ring.Rotator
	cur, draining, retired int   // generations, 0: none
	closed                 []int // youngest first
	slots                  map[int]int16
	opened, closedAt       map[int]int // times by generation
	generations            int
	version                int // rises with each step
	keys                   map[int]standing
}

func (m *modelRing) live(g int) bool {
	return g == m.cur || g == m.draining && g != 0 || slices.Contains(m.closed, g)
}

func (m *modelRing) known(k int) (standing, bool) {
	s, ok := m.keys[k]
	return s, ok && slices.ContainsFunc(s.generations, m.live)
}

// open is the segment that a claim inserts into now.
func (m *modelRing) open() []int {
	if m.draining != 0 {
		return []int{m.draining, m.cur}
	}
	return []int{m.cur}
}

// modelTx is a transaction that stays open.
type modelTx struct {
	tx     pgx.Tx
	level  pgx.TxIsoLevel
	before map[string]int // each ring's version when its snapshot was taken
	commit int            // the last commit that its snapshot holds
	wrote  map[string]map[int]standing
}

type model struct {
	*rig
	rings    map[string]*modelRing
	now      int
	frontier int // of the one cursor
	commits  int
	tx       *modelTx // the one that stays open, nil: none
	begun    []*modelTx
}

const resetSQL = `
do $$
declare t text;
begin
  for t in select 'onlyonce_segments.' || x || '_' || s from unnest(array['consumer_keys', 'standard_keys']) x, generate_series(0, 9) s loop
    if pg_relation_size(t::regclass) > 0 then
      execute 'truncate table ' || t;
    end if;
  end loop;
  update onlyonce.rings set cur = 0, draining = null, closed = '{}', retired = null, version = version + 1, horizon = '1 hour'
  where name in ('consumer_keys', 'standard_keys');
  perform setval('onlyonce.consumer_keys_version', (select version from onlyonce.rings where name = 'consumer_keys')),
          setval('onlyonce.standard_keys_version', (select version from onlyonce.rings where name = 'standard_keys'));
  update onlyonce.segments set opened_at = case slot when 0 then clock_timestamp() end, closed_at = null, bound = null
  where ring in ('consumer_keys', 'standard_keys');
  update onlyonce.leases set until = null, nonce = null;
  delete from onlyonce.filters;
  insert into onlyonce.frontiers select id, 0, clock_timestamp() from onlyonce.cursors on conflict (cursor_id) do update
  set frontier = excluded.frontier;
end $$`

// newModel begins with empty rings.
func newModel(t *testing.T, r *rig) *model {
	log := slog.New(slog.DiscardHandler)
	r.t = t
	r.exec(resetSQL)
	r.builder, r.filters = inbox.NewBuilder(r.pool, ring.ConsumerKeys(), log), inbox.NewFilters(r.pool, "consumer_keys", log)
	m := &model{rig: r, rings: map[string]*modelRing{}}
	for _, which := range ring.Keys() {
		x, err := ring.New(r.pool, which, ring.Config{MaxBytes: math.MaxInt64})
		if err != nil {
			t.Fatal(err)
		}
		m.rings[which.Name] = &modelRing{
			name:        which.Name,
			rotator:     x,
			cur:         1,
			generations: 1,
			slots:       map[int]int16{1: 0},
			opened:      map[int]int{1: 0},
			closedAt:    map[int]int{},
			keys:        map[int]standing{},
		}
	}
	return m
}

// TestK4ModelOfTheInbox runs the model.
func TestK4ModelOfTheInbox(t *testing.T) {
	r := newRig(t)
	r.exec(`with l as (insert into onlyonce.leases (name) values ('cursor/stock/orders/0') returning id)
	  insert into onlyonce.cursors (id, scope, topic, partition, cluster_id, start_offset, run_start, start_policy)
	  select id, 'stock', 'orders', 0, 'k', 0, 0, 'earliest' from l`)
	// Bounded, unless more is asked for. A failure names its seed.
	for name, value := range map[string]string{"rapid.checks": "60", "rapid.nofailfile": "true"} {
		if f := flag.Lookup(name); f.Value.String() == f.DefValue {
			if err := f.Value.Set(value); err != nil {
				t.Fatal(err)
			}
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(t, r)
		defer m.end()
		rt.Repeat(map[string]func(*rapid.T){
			"":       m.stands,
			"claim":  m.claims,
			"claim2": m.claims, // as often as both of the others
			"claim3": m.claims,
			"open":   m.opens,
			"close":  m.closesTx,
			"rotate": m.rotates,
			"turn": func(rt *rapid.T) { // what leads to the next state soon
				m.passes(1)
				for range rapid.IntRange(2, 4).Draw(rt, "steps") {
					m.steps(rt, m.rings["consumer_keys"])
				}
			},
			"filters": func(rt *rapid.T) {
				m.builds(rt)
				m.loadsThem(rt)
			},
			"passes": func(rt *rapid.T) { m.passes(rapid.IntRange(1, modelHorizon).Draw(rt, "steps")) },
			"catch up": func(*rapid.T) {
				m.frontier = m.now
				m.exec(`update onlyonce.frontiers set frontier = clock_timestamp()`)
			},
			"build": m.builds,
			"load":  m.loadsThem,
		})
	})
}

func (m *model) builds(rt *rapid.T) {
	if _, err := m.builder.Step(context.Background()); err != nil {
		rt.Fatal(err)
	}
}

func (m *model) loadsThem(rt *rapid.T) {
	if err := m.filters.Load(context.Background()); err != nil {
		rt.Fatal(err)
	}
}

// end rolls back all transactions that were left open, so that the next sequence can begin.
func (m *model) end() {
	for _, x := range m.begun {
		_ = x.tx.Rollback(context.Background())
	}
}

// passes lets time pass: a step is a sixth of the horizon.
func (m *model) passes(steps int) {
	m.now += steps
	m.exec(
		`update onlyonce.segments
			set opened_at = opened_at - $1 * interval '10 minutes', closed_at = closed_at - $1 * interval '10 minutes'`,
		steps,
	)
	m.exec(`update onlyonce.frontiers set frontier = frontier - $1 * interval '10 minutes'`, steps)
}

// stands compares the rings' rows with the model.
func (m *model) stands(rt *rapid.T) {
	for name, x := range m.rings {
		var cur int16
		var draining, retired *int16
		var closed []int16
		if err := m.pool.QueryRow(context.Background(), `select cur, draining, closed, retired from onlyonce.rings where name = $1`,
			name).Scan(
			&cur,
			&draining,
			&closed,
			&retired,
		); err != nil {
			rt.Fatal(err)
		}
		slot := func(g int) *int16 {
			if s, ok := x.slots[g]; ok {
				return &s
			}
			return nil
		}
		same := func(p *int16, g int) bool {
			q := slot(g)
			return p == nil && q == nil || p != nil && q != nil && *p == *q
		}
		good := same(&cur, x.cur) &&
			same(draining, x.draining) &&
			same(retired, x.retired) &&
			len(closed) == len(x.closed)
		if !good {
			rt.Fatalf("%s: current %v, draining %v, closed %v, retired %v, and in the model %+v", name, cur, draining, closed, retired, x)
		}
		for i, s := range closed {
			if s != x.slots[x.closed[i]] {
				rt.Fatalf("%s: closed %v, and in the model %+v", name, closed, x)
			}
		}
	}
}

// rotates takes one step of a ring.
func (m *model) rotates(rt *rapid.T) {
	m.steps(rt, m.rings[rapid.SampledFrom([]string{"consumer_keys", "standard_keys"}).Draw(rt, "ring")])
}

func (m *model) steps(rt *rapid.T, x *modelRing) {
	// What was rolled back takes space too, and whether there is any decides: that is asked.
	var holds bool
	if err := m.pool.QueryRow(context.Background(), `select pg_relation_size($1::text::regclass) > 0`,
		fmt.Sprintf("onlyonce_segments.%s_%d", x.name, x.slots[x.cur])).Scan(&holds); err != nil {
		rt.Fatal(err)
	}
	out, err := x.rotator.Step(context.Background())
	if err != nil {
		rt.Fatal(err)
	}
	due := holds && m.now > x.opened[x.cur]
	oldest := 0
	if len(x.closed) > 0 {
		oldest = x.closed[len(x.closed)-1]
	}
	expired := oldest != 0 && m.now-x.closedAt[oldest] >= modelHorizon
	passed := oldest != 0 && (x.name == "standard_keys" || m.frontier-x.closedAt[oldest] >= modelHorizon)
	var allowed []ring.Action
	switch {
	case x.draining != 0:
		// The rotator may wait for another test's transaction at any time. It must wait for ours,
		// unless that began after the wait.
		allowed = []ring.Action{ring.Waiting, ring.Closed}
	case x.retired != 0 && due:
		allowed = []ring.Action{ring.Truncated, ring.Announced, ring.Full}
	case x.retired != 0:
		allowed = []ring.Action{ring.Truncated, ring.Waiting, ring.Busy}
	case due && len(x.closed) < 9:
		allowed = []ring.Action{ring.Announced}
	case expired && passed:
		allowed = []ring.Action{ring.Retired}
	case due:
		allowed = []ring.Action{ring.Full}
	case expired:
		allowed = []ring.Action{ring.Needed}
	default:
		allowed = []ring.Action{ring.Idle}
	}
	if !slices.Contains(allowed, out.Action) {
		rt.Fatalf("a step of %s came to %+v, and not to %v: at %d, frontier %d, %+v", x.name, out, allowed, m.now, m.frontier, x)
	}
	if !out.Changed() {
		return
	}
	x.version++
	switch out.Action {
	case ring.Announced:
		x.generations++
		x.draining = x.cur
		x.cur = x.generations
		x.slots[x.cur] = out.Slot
		x.opened[x.cur] = m.now
	case ring.Closed:
		x.closed = slices.Insert(x.closed, 0, x.draining)
		x.closedAt[x.draining] = m.now
		x.draining = 0
	case ring.Retired:
		x.retired = oldest
		x.closed = x.closed[:len(x.closed)-1]
	case ring.Truncated:
		delete(x.slots, x.retired)
		x.retired = 0
	}
}

// opens begins a transaction that stays open, and takes its snapshot.
func (m *model) opens(rt *rapid.T) {
	if m.tx != nil {
		rt.SkipNow()
	}
	level := rapid.SampledFrom([]pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead}).Draw(rt, "level")
	m.tx = m.begin(level)
}

func (m *model) begin(level pgx.TxIsoLevel) *modelTx {
	ctx := context.Background()
	tx, err := m.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
	if err != nil {
		m.t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `set local lock_timeout = '5ms'`); err != nil {
		m.t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `select 1`); err != nil {
		m.t.Fatal(err)
	}
	x := &modelTx{tx: tx, level: level, before: map[string]int{}, commit: m.commits, wrote: map[string]map[int]standing{}}
	m.begun = append(m.begun, x)
	for name, r := range m.rings {
		x.before[name] = r.version
		x.wrote[name] = map[int]standing{}
	}
	return x
}

// closesTx ends the transaction that is open.
func (m *model) closesTx(rt *rapid.T) {
	if m.tx == nil {
		rt.SkipNow()
	}
	x := m.tx
	m.tx = nil
	m.ends(rt, x, rapid.Bool().Draw(rt, "commits"))
}

func (m *model) ends(rt *rapid.T, x *modelTx, commits bool) {
	if !commits {
		if err := x.tx.Rollback(context.Background()); err != nil {
			rt.Fatal(err)
		}
		return
	}
	if err := x.tx.Commit(context.Background()); err != nil {
		rt.Fatal(err)
	}
	m.commits++
	for name, wrote := range x.wrote {
		for k, s := range wrote {
			s.since = m.commits
			m.rings[name].keys[k] = s
		}
	}
}

// forms are the ways in which keys are claimed, with the ring of each.
var forms = map[string]string{
	"claim_consumer":       "consumer_keys",
	"claim_consumer_fresh": "consumer_keys",
	"claim_standard":       "standard_keys",
	"claim":                "standard_keys",
}

// claims claims some keys, in the open transaction or in one of its own.
func (m *model) claims(rt *rapid.T) {
	form := rapid.SampledFrom(slices.Sorted(maps.Keys(forms))).Draw(rt, "form")
	x := m.rings[forms[form]]
	numbers := rapid.SliceOfN(rapid.IntRange(1, modelKeys), 0, 5).Draw(rt, "keys")
	prints := make([]int64, len(numbers))
	for i := range prints {
		prints[i] = rapid.SampledFrom([]int64{7, 7, 7, 8, 0}).Draw(rt, "fingerprint")
	}
	tx := m.tx
	inOpen := tx != nil && rapid.Bool().Draw(rt, "in the open transaction")
	if !inOpen {
		tx = m.begin(rapid.SampledFrom([]pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead}).Draw(rt, "level"))
	}
	want, code, fresh := m.expect(tx, x, form, numbers, prints)
	got, err := m.run(tx, form, rapid.IntRange(0, 3).Draw(rt, "filtered") > 0, numbers, prints)
	var pg *pgconn.PgError
	if err != nil && !errors.As(err, &pg) {
		rt.Fatal(err)
	}
	switch {
	case err != nil && !slices.Contains(code, pg.Code), err == nil && len(code) > 0:
		rt.Fatalf("%s of %v: %v, and not %v: %+v, open %+v", form, numbers, err, code, x, m.tx)
	case err == nil && form != "claim_consumer_fresh" && !slices.Equal(got, want):
		rt.Fatalf("%s of %v, %v came to %v, and not to %v: %+v", form, numbers, prints, got, want, x)
	case err != nil:
		_ = tx.tx.Rollback(context.Background())
		if inOpen {
			m.tx = nil
		}
		return
	}
	for k, s := range fresh {
		tx.wrote[x.name][k] = s
	}
	if !inOpen {
		m.ends(rt, tx, rapid.IntRange(0, 3).Draw(rt, "rolls back") > 0)
	}
}

// run claims at the server.
func (m *model) run(tx *modelTx, form string, filtered bool, numbers []int, prints []int64) (got []int16, err error) {
	keys := make([]uuid.UUID, len(numbers))
	raw := make([][16]byte, len(numbers))
	for i, n := range numbers {
		keys[i], raw[i] = modelKey(n), modelKey(n)
	}
	if form == "claim" {
		err = tx.tx.QueryRow(context.Background(), `select onlyonce.claim($1, $2)`, keys, prints).Scan(&got)
		return got, err
	}
	var asked, uses []int64
	var hits [][16]byte
	if filtered && forms[form] == "consumer_keys" {
		asked, uses, hits = m.filters.Ask(raw)
	}
	sql := fmt.Sprintf(`select onlyonce.%s($1, $2, $3, $4, $5)`, form)
	args := []any{keys, prints, orEmpty(asked), orEmpty(uses), orEmpty(hits)}
	if form == "claim_consumer_fresh" {
		_, err = tx.tx.Exec(context.Background(), sql, args...)
		return nil, err
	}
	err = tx.tx.QueryRow(context.Background(), sql, args...).Scan(&got)
	return got, err
}

// expect is what a claim comes to: outcomes, or one of these errors, and what it inserts.
func (m *model) expect(
	tx *modelTx,
	x *modelRing,
	form string,
	numbers []int,
	prints []int64,
) (want []int16, codes []string, fresh map[int]standing) {
	fresh = map[int]standing{}
	if len(numbers) == 0 && form != "claim_consumer_fresh" {
		return []int16{}, nil, fresh
	}
	above := tx.level != pgx.ReadCommitted
	if above && tx.before[x.name] != x.version {
		return nil, []string{"40001"}, nil
	}
	var known, waits, newer bool
	for i, k := range numbers {
		s, is := x.known(k)
		if own, wrote := tx.wrote[x.name][k]; wrote {
			s = own
			is = true
		} else if m.tx != nil && m.tx != tx {
			if _, pending := m.tx.wrote[x.name][k]; pending && !is {
				waits = true
				continue
			}
		}
		if first, again := fresh[k]; again {
			s = first
			is = true
		}
		if !is {
			fresh[k] = standing{print: prints[i], generations: slices.Clone(x.open())}
			want = append(want, 0)
			continue
		}
		known = true
		newer = newer || s.since > tx.commit
		switch {
		case s.print == prints[i] || s.print == 0 || prints[i] == 0:
			want = append(want, 1)
		default:
			want = append(want, 2)
		}
	}
	// Another transaction has not ended, or has ended after this snapshot: that stops a claim when
	// it comes to the key. A claim that raises may come to another key before.
	if waits {
		codes = append(codes, "55P03")
	}
	if form == "claim_consumer_fresh" {
		if known {
			codes = append(codes, "23505")
		}
		return nil, codes, fresh
	}
	if newer && above {
		codes = append(codes, "40001")
	}
	return want, codes, fresh
}
