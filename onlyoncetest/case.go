package onlyoncetest

import (
	"context"
	"errors"
	"flag"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/fields"
)

// Case is the input of [Run]: a program's own wiring, and messages or requests for it.
type Case struct {
	// Migrate makes the program's tables and first rows. It is called once for each database.
	// Defaults to none.
	Migrate func(context.Context, *pgxpool.Pool) error
	// Start makes a process's Runner, for example a consumer with [Process.Source] and
	// [Process.Tune] in place of the Kafka source and the configuration. It is called once for each
	// process. [Consume] is one for a handler alone, and [All] joins several parts. Required unless
	// Serve is set.
	Start func(*Process) (Runner, error)
	// Serve makes a process's HTTP handler, and a Runner beside it, or nil: for example a
	// webhook.Endpoint, or an idempotency.Layer with its routes. Defaults to none.
	Serve func(*Process) (http.Handler, Runner, error)
	// Messages are the records in the topics at the start, or at brokers ([Process.Broker]).
	// Defaults to none.
	Messages []Message
	// Requests are sent one after the other, and again in the end if they have a Key. Required with
	// Serve.
	Requests []Request
	// Repeat also sends requests without a Key again, for example webhooks. Defaults to false.
	Repeat bool
	// Volatile names columns that may differ between runs, as "table.column", or "table.*". Run
	// finds identity columns in the catalog, and those whose default is a sequence's number, a time
	// or a random value, and takes all times of the run for one. A column that is named is not
	// compared at all, so do not name one whose value other rows, calls or messages depend on.
	// Defaults to none.
	Volatile []string
	// Parks are reasons for which messages of the case are set aside before a handler has them, for
	// example "conflict" or "no-key". For any other one Run fails, because a message whose id is
	// that of another one is lost. Defaults to none.
	Parks []string
	// Mask is a regular expression, in the common syntax of Go and PostgreSQL. Its matches in rows,
	// calls and requests are not compared, for example an HTTP handler's random ids:
	// "ch_[a-z0-9]{26}". Defaults to none.
	Mask string
	// Budget is how long Run plays histories, unless the flag -onlyonce.budget is set. Defaults to
	// 10 s, or 3 s with -short.
	Budget time.Duration
	// Check adds checks of your own after each run. Defaults to none.
	Check func(context.Context, *pgxpool.Pool) error

	// If draws is above 0, so many pairs of faults are drawn with the seed, and nothing else is
	// played. For tests of this package.
	draws int
	seed  uint64
	// If oneOf is above 1, one of so many crashes is played; all other faults are. For tests of
	// this package.
	oneOf int

	sent  time.Time // of the first record of each partition
	clean *state
	parts *parts // of the program; set by Run
}

func (c *Case) check() error {
	l := fields.List{Sentinel: errors.New("onlyoncetest"), Struct: "Case"}
	if c.Start == nil && c.Serve == nil {
		l.Add("Start", "must be set, or Case.Serve")
	}
	if c.Budget < 0 {
		l.Add("Budget", "is %v: must not be negative", c.Budget)
	}
	if c.Serve != nil && len(c.Requests) == 0 {
		l.Add("Requests", "must not be empty with Serve")
	}
	if c.Serve == nil && len(c.Messages) == 0 {
		l.Add("Messages", "must not be empty: there is nothing to do")
	}
	if _, err := regexp.Compile(c.Mask); err != nil {
		l.Add("Mask", "must be a regular expression: %v", err)
	}
	return l.Err()
}

// The flags of go test.
var (
	budgetFlag = flag.Duration("onlyonce.budget",
		-1,
		"how long `duration` a case of onlyoncetest.Run plays histories: 0 plays all single faults; default "+
			"10s, or 3s with -short")
	seedFlag    = flag.Uint64("onlyonce.seed", 1, "the `seed` of the pairs of faults that onlyoncetest.Run draws")
	historyFlag = flag.String("onlyonce.history",
		"", "the one `history` that onlyoncetest.Run plays, as a failed test has printed it")
)

func (c *Case) budget() time.Duration {
	switch {
	case *budgetFlag >= 0:
		return *budgetFlag
	case c.Budget > 0:
		return c.Budget
	case testing.Short():
		return 3 * time.Second
	}
	return 10 * time.Second
}
