package shard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/primary"
)

// Errors.
var (
	// ErrConfig is wrapped by every error about a configuration.
	ErrConfig = errors.New("shard: invalid configuration")

	// ErrElsewhere means that the place does not live in the database that the program's function
	// chose: it lives in another one, it is moving, or another process is asking for it at the same
	// time. No work was done. Try again, because a place may be between two databases for a while.
	ErrElsewhere = errors.New("shard: the place does not live in this database")
)

// Config has the databases, and the functions that choose one for a place or a partition. The
// functions must give the same answer in every process, for as long as the process lives. Compute
// it from the program's configuration, without requests. To change an answer, move the place or the
// partition: docs/scaling.md has the procedure.
type Config struct {
	// Pools are the databases, each under a name that you choose and keep, because halts, statuses
	// and operators use it. For example "eu-1". Each must be another database, with the schema
	// onlyonce. At least one. Required.
	Pools map[string]*pgxpool.Pool

	// OfPlace returns the name of a place's database: one of Pools. Required for packages
	// idempotency and webhook, and for [Set.Find].
	OfPlace func(place string) string

	// OfPartition returns the name of a partition's database: one of Pools. All copies of a message
	// must be in partitions of one database, because a key is looked up in one only. If producers
	// choose the partition by a record key, that holds while the topic keeps its number of
	// partitions. Required for package consumer.
	OfPartition func(topic string, partition int32) string
}

// Set is several databases, and the functions that choose one of them. It is safe for concurrent
// use.
type Set struct {
	cfg Config

	mu    sync.Mutex
	known map[string]struct{} // places that live where OfPlace says
}

// Database is a database of a Set.
type Database struct {
	Name string
	Pool *pgxpool.Pool
}

// primary is the pool for the statements of this package.
func (db Database) primary() *primary.Pool { return primary.Of(db.Pool, nil) }

// maxKnown bounds how many places a Set remembers. Others cost a query each time.
const maxKnown = 100_000

// New makes a Set. It does not connect. The error lists every fault and wraps [ErrConfig].
func New(cfg Config) (*Set, error) {
	l := fields.List{Sentinel: ErrConfig, Struct: "Config"}
	if len(cfg.Pools) == 0 {
		l.Add("Pools", "must not be empty: name each database")
	}
	if cfg.OfPlace == nil && cfg.OfPartition == nil {
		l.Add("OfPlace", "must not be nil, unless OfPartition is set: it names the database of a place")
	}
	primary.CheckPools(&l, "Pools", cfg.Pools)
	if err := l.Err(); err != nil {
		return nil, err
	}
	cfg.Pools = maps.Clone(cfg.Pools)
	return &Set{cfg: cfg, known: map[string]struct{}{}}, nil
}

// Databases returns the databases in the order of their names.
func (s *Set) Databases() []Database {
	all := make([]Database, 0, len(s.cfg.Pools))
	for _, name := range slices.Sorted(maps.Keys(s.cfg.Pools)) {
		all = append(all, Database{name, s.cfg.Pools[name]})
	}
	return all
}

// Routes reports which of the functions the Set has: OfPlace and OfPartition.
func (s *Set) Routes() (places, partitions bool) {
	return s.cfg.OfPlace != nil, s.cfg.OfPartition != nil
}

// Of returns the database that Config.OfPlace chooses for a place. It makes no query, and returns
// an error if the function is not set, panics, or names no database of the Set.
func (s *Set) Of(place string) (Database, error) {
	return s.choose("OfPlace", strconv.Quote(place), s.cfg.OfPlace != nil, func() string {
		return s.cfg.OfPlace(place)
	})
}

// OfPartition returns the database that Config.OfPartition chooses for a partition. Its errors are
// those of [Set.Of].
func (s *Set) OfPartition(topic string, partition int32) (Database, error) {
	return s.choose(
		"OfPartition",
		fmt.Sprintf("%s/%d", topic, partition),
		s.cfg.OfPartition != nil,
		func() string { return s.cfg.OfPartition(topic, partition) },
	)
}

func (s *Set) choose(field, what string, is bool, name func() string) (db Database, err error) {
	if !is {
		return Database{}, fmt.Errorf("%w: Config.%s: must not be nil", ErrConfig, field)
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("shard: Config.%s panicked for %s: %v", field, what, p)
		}
	}()
	db.Name = name()
	if db.Pool = s.cfg.Pools[db.Name]; db.Pool == nil {
		return Database{}, fmt.Errorf("shard: Config.%s names %q for %s, which is none of Config.Pools",
			field, db.Name, what)
	}
	return db, nil
}

// Find returns the database in which a place lives. If no process has met the place before, Find
// asks all databases, and records that it lives in the one that OfPlace chooses. The error wraps
// [ErrElsewhere] if the place lives in another database.
//
// The place may leave at any time, so call [Enter] in each transaction too.
func (s *Set) Find(ctx context.Context, place string) (Database, error) {
	db, err := s.Of(place)
	if err != nil {
		return Database{}, err
	}
	s.mu.Lock()
	_, known := s.known[place]
	s.mu.Unlock()
	if known {
		return db, nil
	}
	if err := s.register(ctx, db, place); err != nil {
		return Database{}, fmt.Errorf("shard: database %q: %w", db.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) < maxKnown {
		s.known[place] = struct{}{}
	}
	return db, nil
}

// Forget makes the next [Set.Find] of a place ask the databases again. Call it if [Enter] returned
// [ErrUnknown], because an operator may have deleted the record of the place.
func (s *Set) Forget(place string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, place)
}
