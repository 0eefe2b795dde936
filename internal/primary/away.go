package primary

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Away is an error that says of a whole database what it says: that it does not answer, or takes no
// writes. A dozen places of a process meet it at once. So a logger of package fields says it in one
// line for each database, with its name, and what each place has to say at DEBUG.
type Away struct {
	Err      error
	Address  string
	Database string
	What     string
}

// What is wrong with a database.
const (
	noAnswer = "the database does not answer"
	noWrites = "the database takes no writes"
)

func (a *Away) Error() string { return a.Err.Error() }
func (a *Away) Unwrap() error { return a.Err }

// Outage is what a logger says once: see internal/fields.
func (a *Away) Outage() (what string, name slog.Attr) {
	return a.What, slog.String("database", a.Address+"/"+a.Database)
}

// outage is what this process knows of a database that does not answer.
type outage struct {
	since atomic.Int64 // Unix nanoseconds of the first silence since an answer; 0: it answers
}

// outages are the databases of this process, by address and name.
var outages sync.Map

func outageOf(c *pgx.ConnConfig) *outage {
	known, _ := outages.LoadOrStore(addressOf(c)+"/"+Name(c), new(outage))
	return known.(*outage)
}

func addressOf(c *pgx.ConnConfig) string {
	return net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
}

// Mark returns err as an [Away] if it says that the database does not answer, or takes no writes.
func Mark(c *pgx.ConnConfig, err error) error {
	marked, is := errors.AsType[*Away](err)
	switch {
	case err == nil, is && marked != nil:
		return err
	case Refused(err):
		return &Away{Err: err, Address: addressOf(c), Database: Name(c), What: noWrites}
	case !silent(err):
		return err
	}
	outageOf(c).since.CompareAndSwap(0, time.Now().UnixNano())
	return unanswered(c, err)
}

func unanswered(c *pgx.ConnConfig, err error) error {
	return &Away{Err: err, Address: addressOf(c), Database: Name(c), What: noAnswer}
}

// silent reports whether an error says that no answer came, and not that there was a bad one.
func silent(err error) bool {
	if _, answered := errors.AsType[*pgconn.PgError](err); answered {
		return false
	}
	_, unreached := errors.AsType[*pgconn.ConnectError](err)
	_, network := errors.AsType[*net.OpError](err)
	return unreached || network || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.ErrUnexpectedEOF)
}

// watchAcquire is Watch for the wait for a connection. If the pool has none to give, the database
// may answer: it counts only if others have just found it silent.
func (p *Pool) watchAcquire(err error) error {
	if Refused(err) {
		return p.Watch(err)
	}
	_, unreached := errors.AsType[*pgconn.ConnectError](err)
	c := p.pool.Config().ConnConfig
	if !unreached && fullyUsed(p.pool) && outageOf(c).since.Load() == 0 {
		return err
	}
	return Mark(c, err)
}

func fullyUsed(pool *pgxpool.Pool) bool {
	s := pool.Stat()
	return s.AcquiredConns() >= s.MaxConns()
}

// WhileAway returns an error that follows from the database's silence as an [Away], if it does not
// answer now: for example that a lease was not renewed.
func (p *Pool) WhileAway(err error) error {
	if p == nil || p.outage == nil || p.outage.since.Load() == 0 {
		return err
	}
	return unanswered(p.pool.Config().ConnConfig, err)
}

// answered notes that the database has answered, and logs it if it had not for a while.
func (p *Pool) answered() {
	if p.outage == nil || p.outage.since.Load() == 0 {
		return
	}
	since := p.outage.since.Swap(0)
	if since == 0 || p.log == nil {
		return
	}
	c := p.pool.Config().ConnConfig
	p.log.Info("onlyonce: the database answers again",
		"database", addressOf(c)+"/"+Name(c), "after", time.Since(time.Unix(0, since)).Round(time.Second))
}
