package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// meter has what each statement did at its worst. It hears of every statement that a session of its
// pools runs, and of those in functions and triggers, as notices of auto_explain.
type meter struct {
	mu      sync.Mutex
	on      bool
	shape   string
	indexes map[string]int // of each table of ours
	dead    map[string]int // of each table, since the shape was filled: no vacuum runs
	worst   map[string]*reading
	ran     map[ran]bool
	faults  []error
}

// reading is what a statement did in the shape in which it did most.
type reading struct {
	name  string // of the constant or the function that it stands in, and its beginning
	text  string
	shape string
	runs  int
	sample

	now []sample // the runs in the present shape
}

// sample is one run.
type sample struct {
	work work
	plan string // as auto_explain has printed it
}

// ran is a statement that a session has run.
type ran struct {
	session uint32
	id      string
}

// settle takes the shape's runs into account: the worst of them, or if there are ten or more, the
// worst of nine in ten, because the first one after many rows have died marks their entries in the
// index as dead. The first run of a session counts only if there is no other.
func (r *reading) settle(shape string) {
	if len(r.now) == 0 {
		return
	}
	r.runs += len(r.now)
	if warm := slices.DeleteFunc(slices.Clone(r.now), func(s sample) bool { return s.work.cold }); len(warm) > 0 {
		r.now = warm
	}
	slices.SortFunc(r.now, func(a, b sample) int { return cmp.Compare(a.work.load(), b.work.load()) })
	most := r.now[len(r.now)-1-len(r.now)/10]
	r.now = nil
	if r.shape == "" || most.work.load() > r.work.load() {
		r.sample = most
		r.shape = shape
	}
}

// sessions are the settings of a session that is metered. They need a superuser.
var sessions = map[string]string{
	"session_preload_libraries":             "auto_explain",
	"auto_explain.log_min_duration":         "0",
	"auto_explain.log_analyze":              "on",
	"auto_explain.log_buffers":              "on",
	"auto_explain.log_timing":               "off",
	"auto_explain.log_nested_statements":    "on",
	"auto_explain.log_format":               "json",
	"auto_explain.log_level":                "notice",
	"auto_explain.log_parameter_max_length": "0",
	"client_min_messages":                   "notice",
}

// pool connects to a database, in sessions that are metered.
func (m *meter) pool(ctx context.Context, address string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, err
	}
	for name, value := range sessions {
		cfg.ConnConfig.RuntimeParams[name] = value
	}
	cfg.MaxConns = 40
	cfg.ConnConfig.OnNotice = func(conn *pgconn.PgConn, n *pgconn.Notice) { m.hear(conn.PID(), n) }
	return pgxpool.NewWithConfig(ctx, cfg)
}

// hear takes a notice of a session.
func (m *meter) hear(session uint32, n *pgconn.Notice) {
	_, text, is := strings.Cut(n.Message, "plan:\n")
	m.mu.Lock()
	defer m.mu.Unlock()
	if !is || !m.on {
		return
	}
	p, err := readPlan(text)
	if err != nil {
		m.faults = append(m.faults, fmt.Errorf("a plan is not what it should be: %w: %.200s", err, text))
		return
	}
	w := workOf(p, m.indexes)
	for table, n := range m.dead {
		if w.tables[table] {
			w.dead += n
		}
	}
	for table, n := range w.died {
		m.dead[table] += n
	}
	if w.pages == 0 {
		return
	}
	function, normal := statementOf(p.Text, n.Where)
	id := function + "|" + normal
	r := m.worst[id]
	if r == nil {
		r = &reading{name: function, text: normal}
		m.worst[id] = r
	}
	first := !m.ran[ran{session, id}]
	m.ran[ran{session, id}] = true
	w.cold = first
	r.now = append(r.now, sample{w, text})
}

// begin makes the meter count, in a shape that has so many dead rows.
func (m *meter) begin(shape string, dead map[string]int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = dead
	m.ran = map[ran]bool{}
	m.shape = shape
	m.on = true
}

// end makes it count no more.
func (m *meter) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.on = false
	for _, r := range m.worst {
		r.settle(m.shape)
	}
}

const indexesSQL = `
select c.relname::text, count(i.indexrelid) from pg_class c left join pg_index i on i.indrelid = c.oid
 where c.relnamespace in ('onlyonce'::regnamespace, 'onlyonce_segments'::regnamespace) and c.relkind in ('r', 'p')
 group by c.relname`

// learn reads how many indexes each table has.
func (m *meter) learn(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, indexesSQL)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.indexes = map[string]int{}
	var table string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&table, &n}, func() error {
		m.indexes[table] = n
		return nil
	})
	return err
}
