package shard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/poolcheck"
	"github.com/onlyonce/onlyonce/internal/primary"
)

// Errors.
var (
	// ErrConfig is wrapped by every error about a configuration.
	ErrConfig = errors.New("shard: bad configuration")

	// ErrElsewhere means that the place does not live in the database that the program's function
	// chose: it lives in another one, it is moving, or another process is asking for it at the same
	// time. Nothing was done. Try again, for a place may be between two databases for a while.
	ErrElsewhere = errors.New("shard: the place does not live in this database")
)

// Set is several databases, and the function that chooses one for each place. It is safe for
// concurrent use.
type Set struct {
	databases map[string]Database
	of        func(place string) string

	mu    sync.Mutex
	known map[string]struct{} // places that live where the function says
}

// Database is a database of a Set.
type Database struct {
	Name string
	Pool *pgxpool.Pool
}

// primary is the pool for the statements of this package.
func (db Database) primary() *primary.Pool { return primary.Of(db.Pool, nil) }

// Databases is where an engine of this module keeps its tables beside the effects of its work: one
// pool, or a Set of several databases.
type Databases interface {
	*pgxpool.Pool | *Set
}

// maxKnown bounds how many places a Set remembers. Others cost a query each time.
const maxKnown = 100_000

// New makes a Set. It does not connect. pools are the databases, each under a name that you choose
// and keep, for example "eu-1": at least one, each another database, each with the schema onlyonce.
//
// of returns the name of a place's database. It must give the same answer in each process, and for
// as long as the process lives. So compute it from the program's configuration, and make no
// requests. To change the answer for a place, move the place: docs/scaling.md has the procedure.
//
// The error lists every fault and wraps [ErrConfig].
func New(pools map[string]*pgxpool.Pool, of func(place string) string) (*Set, error) {
	l := fields.List{Sentinel: ErrConfig}
	if len(pools) == 0 {
		l.Add("pools", "must not be empty: name each database that places live in")
	}
	if of == nil {
		l.Add("of", "must not be nil: it names the database of a place")
	}
	poolcheck.All(&l, "pools", pools)
	if err := l.Err(); err != nil {
		return nil, err
	}
	s := &Set{databases: make(map[string]Database, len(pools)), of: of, known: map[string]struct{}{}}
	for name, pool := range pools {
		s.databases[name] = Database{Name: name, Pool: pool}
	}
	return s, nil
}

// Databases returns the databases in the order of their names.
func (s *Set) Databases() []Database {
	all := make([]Database, 0, len(s.databases))
	for _, name := range slices.Sorted(maps.Keys(s.databases)) {
		all = append(all, s.databases[name])
	}
	return all
}

// Of returns the database that the program's function chooses for a place. It makes no query. The
// error is for a function that panics, or names no database of the Set.
func (s *Set) Of(place string) (db Database, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("shard: the function that chooses a database panicked for %q: %v", place, p)
		}
	}()
	name := s.of(place)
	db, ok := s.databases[name]
	if !ok {
		return Database{}, fmt.Errorf("shard: the function that chooses a database names %q for %q, which is none of the databases", name, place)
	}
	return db, nil
}

// Find returns the database in which a place lives. If no process has met the place before, Find
// records that it lives in the database that the function chooses; that asks all databases. The
// error wraps [ErrElsewhere] if the place lives in another database.
//
// The answer alone is no promise for later, because the place may leave at any time: call [Enter]
// in each transaction.
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
