package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/test/devenv"
)

// spread is a run over shapes.
type spread struct {
	root    string // folder of the module
	rows    int    // of a table
	seed    uint64
	shapes  []shape
	out     io.Writer
	plans   string // folder for the plans; empty: none
	verbose bool

	meter *meter
	names map[string]string // of the source's constants, by their texts
	late  int               // shapes in which the parts were not done in time
}

// patience is how long the parts may take for a round of a shape.
const patience = 2 * time.Minute

// run plays the shapes, each in a database of its own. It returns whether every statement that ran
// has read no more than it may, and whether the parts came to an end in each shape.
func (s *spread) run(ctx context.Context) (ok bool, err error) {
	server, err := devenv.StartPostgres(ctx, devenv.Options{Own: true, PostgresSettings: map[string]string{
		"fsync":              "off",
		"full_page_writes":   "off",
		"synchronous_commit": "off",
		"autovacuum":         "off",
		"max_connections":    "100",
		"shared_buffers":     "256MB",
	}})
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	s.meter = &meter{worst: map[string]*reading{}}
	if s.names, err = newSources(s.root).names(); err != nil {
		return false, err
	}
	for i, sh := range s.shapes {
		address, err := database(ctx, server.URL, fmt.Sprintf("shape_%d", i))
		if err != nil {
			return false, err
		}
		begun := time.Now()
		done, err := s.play(ctx, address, sh)
		if err != nil {
			return false, fmt.Errorf("shape %s: %w", sh.name, err)
		}
		how := "done"
		if !done {
			how = "NOT DONE IN TIME"
			s.late++
		}
		_, _ = fmt.Fprintf(s.out, "shape %s: %s, %.0f s\n", sh.name, how, time.Since(begun).Seconds())
	}
	return s.judge(), errors.Join(s.meter.faults...)
}

// database makes a database, and returns its address.
func database(ctx context.Context, address, name string) (string, error) {
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, `create database `+name); err != nil {
		return "", err
	}
	at, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	at.Path = "/" + name
	return at.String(), nil
}

// play lets the parts work while the database is empty, fills it, and meters what they do then.
func (s *spread) play(ctx context.Context, address string, sh shape) (done bool, err error) {
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	if _, err := migrations.Apply(ctx, conn); err != nil {
		return false, err
	}
	if _, err := conn.Exec(ctx, `create table effects (value text not null)`); err != nil {
		return false, err
	}
	if err := s.meter.learn(ctx, conn); err != nil {
		return false, err
	}
	pool, err := s.meter.pool(ctx, address)
	if err != nil {
		return false, err
	}
	defer pool.Close()
	log := slog.New(slog.DiscardHandler)
	if s.verbose {
		log = slog.New(slog.NewTextHandler(s.out, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	e := newEngines(pool, log)
	defer e.remote.Close()
	if done, err = e.round(ctx, conn, batch, patience); err == nil && !done {
		err = errors.New("the parts do not come to an end")
	}
	if err != nil {
		return false, fmt.Errorf("while the database is empty: %w", err)
	}
	if sh.old {
		old, err := pgx.Connect(ctx, address)
		if err != nil {
			return false, err
		}
		defer func() { _ = old.Close(context.WithoutCancel(ctx)) }()
		if _, err := old.Exec(ctx, `begin isolation level repeatable read; select`); err != nil {
			return false, err
		}
	}
	died, err := s.fill(ctx, conn, sh)
	if err != nil {
		return false, err
	}
	if sh.stats == unanalysed {
		pool.Reset()
	}
	s.meter.begin(sh.name, died)
	defer s.meter.end()
	return e.round(ctx, conn, batch, patience)
}

// fill writes the shape's rows. It returns how many of each table have died.
func (s *spread) fill(ctx context.Context, conn *pgx.Conn, sh shape) (died map[string]int, err error) {
	died = map[string]int{}
	run := func(sql string) int {
		if err != nil {
			return 0
		}
		tag, failed := conn.Exec(ctx, strings.ReplaceAll(sql, "ROWS", fmt.Sprint(s.rows)), pgx.QueryExecModeSimpleProtocol)
		if failed != nil {
			err = fmt.Errorf("filling: %w\n%s", failed, sql)
		}
		return int(tag.RowsAffected())
	}
	run("set session_replication_role = replica")
	for _, v := range sh.variants {
		for _, sql := range v.fill {
			run(sql)
		}
	}
	if sh.old {
		for _, d := range dead {
			died[d.table] += run(d.sql)
		}
		run(moved)
	}
	run("set session_replication_role = origin")
	if sh.stats == analysed {
		run("analyze")
	}
	return died, err
}

// named returns the name of a statement: the constant that it is, or the function that it is in.
func (s *spread) named(r *reading) string {
	if r.name != "" {
		return "onlyonce." + r.name + ": " + shortened(r.text)
	}
	if name, ok := s.names[r.text]; ok {
		return name
	}
	return shortened(r.text)
}

func shortened(text string) string {
	const most = 150
	if len(text) > most {
		return text[:most] + "..."
	}
	return text
}

// judge prints what was too much, and the result. It returns whether nothing was.
func (s *spread) judge() bool {
	all := make([]*reading, 0, len(s.meter.worst))
	for _, r := range s.meter.worst {
		r.name = s.named(r)
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *reading) int { return cmp.Compare(s.load(b), s.load(a)) })
	breaches := 0
	for i, r := range all {
		if s.plans != "" {
			_ = os.WriteFile(filepath.Join(s.plans, fmt.Sprintf("%03d.json", i)), []byte(r.name+"\n"+r.plan), 0o600)
		}
		load := s.load(r)
		if load > 1 {
			breaches++
		} else if !s.verbose {
			break
		}
		_, _ = fmt.Fprintf(
			s.out,
			"%.2f %s\n     %d pages for %d rows and %d dead ones, most: %s, %d pages; in %d runs; shape %s\n",
			load, r.name, r.work.pages, r.work.rows, r.work.dead, r.work.most, r.work.peak, r.runs,
			r.shape,
		)
	}
	verdict := "ok"
	if breaches > 0 || s.late > 0 {
		verdict = fmt.Sprintf("BREACH breaches=%d late=%d", breaches, s.late)
	}
	_, _ = fmt.Fprintf(s.out, "growth %s statements=%d shapes=%d worst=%.2f exceptions=%d\n",
		verdict, len(all), len(s.shapes), s.load(all[0]), len(exceptions))
	return breaches == 0 && s.late == 0
}

// load is how much of what is allowed a statement has read: an exception is allowed more.
func (s *spread) load(r *reading) float64 {
	for _, e := range exceptions {
		if strings.HasPrefix(r.name, e.name) {
			return float64(r.work.pages) / (e.times*float64(r.work.allowed()) + e.each*float64(s.rows))
		}
	}
	return r.work.load()
}
