package onlyoncetest

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/rig/pgserver"
	"github.com/onlyonce/onlyonce/internal/rig/workerdb"
)

// startTimeout bounds the start of a server and the making of a database.
const startTimeout = 3 * time.Minute

// server finds or starts the server, once for the process. No test stops it: its supervisor does
// when the process ends.
var server = sync.OnceValues(func() (*workerdb.Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	address, _, err := pgserver.Given(ctx)
	if err != nil {
		return nil, err
	}
	if address == "" {
		bin, err := pgserver.Programs()
		if err != nil {
			return nil, fmt.Errorf("%w; install PostgreSQL, or set %s to the address of a server on which "+
				"tests may create databases", err, pgserver.EnvURL)
		}
		c, err := pgserver.Start(ctx, pgserver.Config{Bin: bin, Settings: pgserver.Throwaway()})
		if err != nil {
			return nil, err
		}
		address = c.URL()
	}
	s, err := workerdb.NewServer(ctx, address, prefix(address))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", pgserver.Redacted(address), err)
	}
	return s, nil
})

// prefix begins the names of databases. A role can neither copy nor drop another one's, so each has
// its own.
func prefix(address string) string {
	const ours, most = "onlyoncetest", 20
	u, err := url.Parse(address)
	if err != nil || u.User == nil {
		return ours
	}
	role := u.User.Username()
	return ours + "_" + role[:min(most, len(role))]
}

// idle are the databases of Pool that no test uses at the moment.
var idle struct {
	sync.Mutex
	dbs []*workerdb.DB
}

// Pool returns a pool of a database with the schema onlyonce and without other tables, on the
// server at ONLYONCE_POSTGRES_URL. If the variable is not set, Pool starts a server of its own with
// the newest programs in PATH or /usr/lib/postgresql, and it ends with the test process.
//
// Concurrent tests have separate databases. After the test Pool closes the pool, and a later test
// gets the same database, emptied. If there is no server, or if its role may not create databases,
// the test fails.
func Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	db, err := takeIdle(ctx)
	if err != nil {
		t.Fatalf("onlyoncetest: no database: %v", err)
	}
	pool, err := pgxpool.New(ctx, db.Address())
	if err != nil {
		t.Fatalf("onlyoncetest: %v", err)
	}
	t.Cleanup(func() {
		pool.Close()
		forget(pool)
		idle.Lock()
		defer idle.Unlock()
		idle.dbs = append(idle.dbs, db)
	})
	return pool
}

func takeIdle(ctx context.Context) (*workerdb.DB, error) {
	s, err := server()
	if err != nil {
		return nil, err
	}
	idle.Lock()
	var db *workerdb.DB
	if n := len(idle.dbs); n > 0 {
		db = idle.dbs[n-1]
		idle.dbs = idle.dbs[:n-1]
	}
	idle.Unlock()
	if db != nil {
		return db, db.Clear(ctx)
	}
	return s.Take(ctx, nil)
}
