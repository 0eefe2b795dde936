//go:build unix

package console_test

import (
	"context"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/ops/console"
	"github.com/onlyonce/onlyonce/test/consoledata"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// twins are a primary that holds the sample, and its hot standby.
type twins struct {
	primary, standby *pgxpool.Pool
	server           *devenv.Postgres // of the standby
}

func newTwins(t *testing.T) *twins {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience(2*time.Minute))
	defer cancel()
	primary, err := devenv.StartPostgres(ctx, devenv.Options{Own: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = primary.Stop() })
	tw := &twins{primary: pgtest.Pool(t, primary.URL)}
	err = tw.primary.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		_, err := migrations.Apply(ctx, c.Conn())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if tw.server, err = primary.Standby(ctx, "twin", devenv.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tw.server.Stop() })
	if err := consoledata.Fill(ctx, tw.primary); err != nil {
		t.Fatal(err)
	}
	// Estimates of rows come from here: a standby has no statistics of its own.
	if _, err := tw.primary.Exec(ctx, `analyze onlyonce_segments.standard_keys_0`); err != nil {
		t.Fatal(err)
	}
	tw.standby = pgtest.Pool(t, tw.server.URL)
	lsn := one[string](t, tw.primary, `select pg_current_wal_lsn()::text`)
	pgtest.Until(t, pgtest.Patience(time.Minute), "the standby replays the sample", func() bool {
		return one[bool](t, tw.standby, `select pg_last_wal_replay_lsn() >= $1::pg_lsn`, lsn)
	})
	return tw
}

// Over a hot standby each page answers as over its primary, and each act is refused with the
// reason. A server that hangs does not make a page hang, and after its promotion the same console
// decides.
func TestStandby(t *testing.T) {
	t.Parallel()
	tw := newTwins(t)
	operator := console.Config{Authorize: as("ann", console.Operate)}
	over := serve(t, tw.primary, operator)
	c := serve(t, tw.standby, operator)
	for _, page := range pages(t, tw.primary) {
		if page == "/doctor" {
			continue // it examines the server
		}
		// Some numbers are estimates. A primary counts rows as sessions report them, seconds later,
		// and a standby has what ANALYZE has found.
		pgtest.Until(t, pgtest.Patience(time.Minute), page+" shows the same values over both servers", func() bool {
			if values(c.get(page).want(http.StatusOK)) == values(over.get(page).want(http.StatusOK)) {
				return true
			}
			_, err := tw.primary.Exec(t.Context(), `analyze`)
			if err != nil {
				t.Fatal(err)
			}
			return false
		})
	}
	const notice = "This server is a standby"
	c.get("/").want(http.StatusOK, notice)
	over.get("/").want(http.StatusOK).without(notice)
	c.get("/doctor").want(http.StatusOK, "a standby; ")

	request := one[string](t, tw.primary, `select id::text from onlyonce.http_records where state = 'reconcile' order by id limit 1`)
	for _, act := range []string{
		"/act/redrive?id=1",
		"/act/discard?id=2",
		"/act/pause?scope=stock",
		"/act/resume?scope=billing&topic=payments&partition=2",
		"/act/adopt?scope=stock&topic=orders&partition=4&at=52300",
		"/act/replay?scope=stock&topic=orders&partition=1&from=49187&to=49187",
		"/act/pause-sink?sink=payments",
		"/act/resume-sink?sink=warehouse",
		"/act/resolve?id=" + request + "&step=charge&applied=1",
		"/act/close?id=" + request,
	} {
		to, query, _ := strings.Cut(act, "?")
		c.get(act).want(http.StatusConflict, notice, "Decide on the primary")
		c.post(to, query+"&shown={}&reason=INC-1").want(http.StatusConflict, notice, "Decide on the primary")
	}
	const bulk = "kind=message&scope=stock&parked-for=exhausted&state=waiting"
	c.get("/act/redrive?all=1&"+bulk).want(http.StatusConflict, notice, "Decide on the primary")
	started := c.post("/act/redrive", over.get("/act/redrive?all=1&"+bulk).want(http.StatusOK).confirms("INC-2"))
	c.ended(started).want(http.StatusOK, notice, "Decide on the primary")

	tw.hangs(t, c)

	pgtest.Until(t, pgtest.Patience(time.Minute), "the standby is promoted", func() bool { return tw.server.Promote(t.Context()) == nil })
	const redrive = "/act/redrive?id=1"
	pgtest.Until(t, pgtest.Patience(time.Minute), "the console knows of the promotion", func() bool {
		return c.get(redrive).status == http.StatusOK
	})
	c.post("/act/redrive", c.get(redrive).want(http.StatusOK).confirms("INC-3")).want(http.StatusSeeOther)
	c.get("/").want(http.StatusOK).without(notice)
}

// hangs checks what pages show while the server answers nothing: those that refresh themselves show
// the last answer and since when there is none, the others that there is none.
func (tw *twins) hangs(t *testing.T, c *client) {
	t.Helper()
	if err := tw.server.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, pgtest.Patience(time.Minute), "the overview says so, and dims what it shows", func() bool {
		return strings.Contains(
			c.get("/").want(http.StatusOK, `id="topics"`).body,
			`<div class="stale"><h1>The database does not answer: what follows is old.`,
		)
	})
	c.get("/").want(http.StatusOK, "The database does not answer, for ")
	c.get("/audit").want(http.StatusGatewayTimeout, "gave no answer in time")
	if err := tw.server.Continue(t.Context()); err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, pgtest.Patience(time.Minute), "the overview is fresh again", func() bool {
		return !strings.Contains(c.get("/").want(http.StatusOK).body, "does not answer")
	})
}

// values are the fields and values of the tables of a page.
func values(a answer) string { return strings.Join(tableValue.FindAllString(a.body, -1), "\n") }

var tableValue = regexp.MustCompile(`data-f="[^"]*" data-v="[^"]*"`)
