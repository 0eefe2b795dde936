package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/program"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// session runs the program as a shell would do.
type session struct {
	t     *testing.T
	url   string    // of the environment; empty: not set
	stdin io.Reader // with terminal: what is typed
	// terminal makes stdin a terminal.
	terminal bool
	columns  int           // the width of the terminal; 0: a pipe
	timeout  time.Duration // for connecting, if not the real one
	count    time.Duration // for counting, if not the real one
	ctx      context.Context
}

type result struct {
	status   int
	out, err string
}

func (s session) run(args ...string) result {
	s.t.Helper()
	if s.stdin == nil {
		s.stdin = strings.NewReader("")
	}
	if s.ctx == nil {
		s.ctx = s.t.Context()
	}
	env := func(name string) string {
		switch {
		case name == program.EnvPostgres:
			return s.url
		case name == "COLUMNS" && s.columns > 0:
			return strconv.Itoa(s.columns)
		}
		return ""
	}
	var out, errs bytes.Buffer
	a := newApp(s.stdin, &out, &errs, env)
	if s.terminal {
		a.isTerminal = func(io.Reader) bool { return true }
	}
	if s.timeout > 0 {
		a.connectTimeout = s.timeout
	}
	if s.count > 0 {
		a.countLimit = s.count
	}
	status := a.run(s.ctx, args)
	return result{status, out.String(), errs.String()}
}

// want fails the test unless the program ended with the status. Each text must be in the output for
// that status: standard output for 0, standard error for others.
func (r result) want(t *testing.T, status int, texts ...string) result {
	t.Helper()
	if r.status != status {
		t.Fatalf("status %d, want %d\nstdout: %s\nstderr: %s", r.status, status, r.out, r.err)
	}
	where := r.out
	if status != statusGood {
		where = r.err
	}
	for _, text := range texts {
		if !strings.Contains(where, text) {
			t.Errorf("%q is not in\n%s", text, where)
		}
	}
	return r
}

// lines fails the test unless standard error has n lines. The line that a command is still at work,
// which a slow machine adds, does not count, nor do further lines of a usage.
func (r result) lines(t *testing.T, n int) result {
	t.Helper()
	if got := strings.Count(r.err, "\n") - strings.Count("\n"+r.err, "\nstill at work: ") - strings.Count(r.err, "\n         "); got != n {
		t.Errorf("%d lines on standard error, want %d:\n%s", got, n, r.err)
	}
	return r
}

// fits fails the test if a line is wider than so many characters.
func (r result) fits(t *testing.T, width int) result {
	t.Helper()
	for line := range strings.Lines(r.out + r.err) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
			t.Errorf("%d characters wide: %s", n, line)
		}
	}
	return r
}

// fixture is a database with the schema and a session on it.
type fixture struct {
	session
	pool *pgxpool.Pool
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	pool := pgtest.DB(t)
	return &fixture{session{t: t, url: pool.Config().ConnString()}, pool}
}

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	if _, err := f.pool.Exec(f.t.Context(), sql, args...); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
}

func one[T any](f *fixture, sql string, args ...any) (v T) {
	f.t.Helper()
	if err := f.pool.QueryRow(f.t.Context(), sql, args...).Scan(&v); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func TestHelp(t *testing.T) {
	t.Parallel()
	s := session{t: t}
	for _, args := range [][]string{{"help"}, {"-h"}, {"--help"}, {"-help"}} {
		r := s.run(args...).want(t, statusGood, "migrate",
			"doctor",
			"status",
			"explain",
			"cursor show",
			"cursor adopt",
			"cursor retire",
			"cursor pause",
			"replay",
			"parked list",
			"parked redrive",
			"outbox status",
			"outbox rebase",
			program.EnvPostgres,
			"Exit status")
		r.lines(t, 0).fits(t, usualWidth)
	}
	for _, args := range [][]string{{"help", "cursor"}, {"cursor", "-h"}, {"cursor", "help"}} {
		r := s.run(args...).want(t, statusGood, "cursor show", "cursor adopt")
		if strings.Contains(r.out, "migrate") {
			t.Errorf("%v shows more than its own commands:\n%s", args, r.out)
		}
	}
	for _, c := range commands() {
		words := strings.Fields(c.name)
		asked := s.run(append([]string{"help"}, words...)...).want(t, statusGood, "Usage: onlyonce "+c.name)
		asked.fits(t, usualWidth)
		wrong := c.name != "inbox plan" &&
			c.name != "plan storage" &&
			c.name != "version" &&
			!strings.Contains(asked.out, "-postgres URL")
		if wrong {
			t.Errorf("%s takes no database", c.name)
		}
		flagged := s.run(append(words, "-h")...).want(t, statusGood)
		if asked.out != flagged.out {
			t.Errorf("%s: help and -h differ", c.name)
		}
		// The synopsis names every flag.
		_, flags, _ := strings.Cut(asked.out, "\nFlags:\n")
		for line := range strings.Lines(flags) {
			if name, ok := strings.CutPrefix(line, "  -"); ok {
				if name = strings.Fields(name)[0]; !strings.Contains(c.args, "-"+name) {
					t.Errorf("%s: -%s is not in %q", c.name, name, c.args)
				}
			}
		}
	}
}

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	adopt := func(more ...string) []string {
		return append([]string{"cursor", "adopt", "-scope", "s", "-topic", "t", "-partition", "0", "-reason", "why", "-yes"}, more...)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "which command"},
		{[]string{"frobnicate"}, `unknown command "frobnicate"`},
		{[]string{"parked", "lst"}, "did you mean `parked list`?"},
		{[]string{"parked-list"}, "did you mean `parked list`?"},
		{[]string{"list", "-json"}, "did you mean `parked list`, or `outbox list`, or `events list`?"},
		{[]string{"stauts"}, "did you mean `status`?"},
		{[]string{"help", "stats"}, "did you mean `status`?"},
		{[]string{"dlq"}, "did you mean `parked list`?"},
		{[]string{"cursor"}, "which of its commands"},
		{[]string{"cursor", "frobnicate"}, `unknown command "cursor frobnicate"`},
		{[]string{"parked", "-json"}, `unknown command "parked -json"`},
		{[]string{"help", "frobnicate"}, `unknown command "frobnicate"`},
		{[]string{"help", "status", "more"}, `unknown command "status more"`},
		{[]string{"status", "-frobnicate"}, "-frobnicate"},
		{[]string{"status", "more"}, `unexpected argument "more"`},
		{[]string{"status", "-json=perhaps"}, "-json"},
		{[]string{"migrate", "-print", "-version"}, "-print and -version"},
		{[]string{"cursor", "show", "-partition", "-1"}, "-partition: must be a whole number from 0 to 2147483647"},
		{[]string{"cursor", "show", "-partition", "2147483648"}, "-partition"},
		{[]string{"cursor", "show", "-scope", ""}, "-scope: must not be empty"},
		{[]string{"cursor", "show", "-topic", "\xff"}, "-topic: must be valid UTF-8"},
		{[]string{"parked", "list", "-kind", "letter"}, "-kind: must be one of message, call, event"},
		{[]string{"parked", "list", "-state", "lost"}, "-state: must be one of waiting"},
		{[]string{"parked", "list", "-limit", "0"}, "-limit: must be a whole number from 1 to 10000"},
		{[]string{"cursor", "adopt", "-yes"}, "missing: -scope, -topic, -partition or -halted or -group, -reason"},
		{adopt("-at", "-1"), "-at"},
		{adopt("-at", "latest"), "-at must be an offset"},
		{adopt("-at", "9223372036854775807"), "-at"},
		{adopt("-group", ""), "-group: must not be empty"},
		{adopt("-reason", " "), "-reason: must not be empty"},
		{[]string{"cursor", "retire"}, "missing: -scope, -reason"},
		{[]string{"cursor", "pause"}, "missing: -scope, -reason"},
		{[]string{"cursor", "pause", "-scope", "s", "-partition", "1", "-reason", "why"}, "-partition needs -topic"},
		{[]string{"cursor", "resume", "-scope", "s"}, "missing: -reason"},
		{[]string{"replay"}, "missing: -scope, -from or -since, -reason"},
		{
			[]string{"replay", "-scope", "s", "-topic", "t", "-partition", "0", "-from", "5", "-to", "5", "-reason", "why"},
			"-to: must be above -from, 5",
		},
		{[]string{"replay", "-from", "-1"}, "-from: must be a whole number"},
		{[]string{"parked", "show"}, "missing: N, the id of a row"},
		{[]string{"parked", "show", "12", "-id", "12"}, "give one of the two"},
		{[]string{"parked", "show", "orders"}, `"orders" is no id of a row`},
		{
			[]string{"cursor", "adopt", "-scope", "s", "-topic", "t", "-group", "g", "-at", "0", "-reason", "why"},
			"missing: -partition or -halted: a position is set for one",
		},
		{[]string{"cursor", "adopt", "-group", "g"}, "missing: -scope, -topic, -reason"},
		{[]string{"parked", "redrive"}, "missing: -id or -scope, -reason"},
		{[]string{"parked", "discard", "-id", "1"}, "missing: -reason"},
		{[]string{"parked", "redrive", "-id", "1", "-scope", "s", "-reason", "why"}, "-id picks one row"},
		{[]string{"parked", "redrive", "-scope", "s", "-partition", "1", "-reason", "why"}, "-partition needs -topic"},
		{[]string{"outbox", "pause"}, "missing: -sink, -reason"},
		{[]string{"outbox", "resume", "payments"}, `unexpected argument "payments": values follow their flags`},
		{[]string{"outbox", "rebase"}, "missing: -reason"},
		{[]string{"inbox", "plan"}, "missing: -rate, -horizon"},
		{[]string{"inbox", "plan", "-rate", "0/s", "-horizon", "7d"}, "must be a number of keys in a second"},
		{[]string{"inbox", "plan", "-rate", "1/s", "-horizon", "-7d"}, "must be a duration above 0"},
		{[]string{"inbox", "horizon", "-ring", "outbox"}, "-ring: must be one of"},
		{[]string{"inbox", "horizon"}, "missing: -ring, -horizon, -reason"},
		{[]string{"explain"}, "missing: KEY, or -topic, -partition and -offset"},
		{[]string{"explain", "", "-scope", "s"}, "the key must not be empty"},
		{[]string{"explain", "order-7", "-replay", "1"}, "missing: -scope"},
		{[]string{"explain", "-replay", "0", "order-7"}, "-replay: must be a whole number from 1"},
		{[]string{"explain", "order-7", "order-8", "-scope", "s"}, `unexpected argument "order-8"`},
		{[]string{"explain", "-topic", "t", "-offset", "1"}, "missing: -topic, -partition and -offset"},
		{[]string{"explain", "-topic", "t", "-partition", "0", "-offset", "-1"}, "-offset: must be a whole number from 0"},
		{[]string{"explain", "order-7", "-topic", "t", "-partition", "0", "-offset", "1"}, "give one of the two"},
		{
			[]string{"explain", "-tenant", "t", "-topic", "t", "-partition", "0", "-offset", "1"},
			"-tenant, -replay and -provider go with a key",
		},
		{[]string{"doctor", "-copies-within", "0"}, "must be a duration above 0"},
		{[]string{"doctor", "everything"}, `unexpected argument "everything"`},
		{[]string{"outbox", "erase"}, "missing: -key, -reason"},
		{[]string{"outbox", "erase", "-key", "k", "-reason", "why"}, `-key: "k" is no UUID`},
		{[]string{"parked", "discard", "-scope", "s", "-parked-for", "boredom"}, "-parked-for: must be one of"},
	} {
		r := session{t: t}.run(c.args...).want(t, statusEnvironment, c.want, "sage: onlyonce")
		if first, _, _ := strings.Cut(r.err, "\n"); !strings.HasPrefix(first, "onlyonce") || !strings.Contains(first, c.want) {
			t.Errorf("%q: the first line is %q", c.args, first)
		}
		if r.out != "" {
			t.Errorf("%q wrote to standard output: %s", c.args, r.out)
		}
	}
}

// everyDatabaseCommand is each command that needs a database, with valid flags.
var everyDatabaseCommand = [][]string{
	{"migrate"}, {"migrate", "-version"}, {"status"}, {"status", "-json"}, {"cursor", "show"}, {"parked", "list"},
	{"cursor", "adopt", "-scope", "s", "-topic", "t", "-partition", "0", "-at", "1", "-reason", "why", "-yes"},
	{"inbox", "status"}, {"inbox", "horizon", "-ring", "consumer_keys", "-horizon", "8d", "-reason", "why", "-yes"},
	{"doctor"}, {"explain", "-scope", "s", "-json", "--", "-k"}, {"explain", "-topic", "t", "-partition", "0", "-offset", "1"},
	{"outbox", "status"}, {"outbox", "rebase", "-reason", "why", "-yes"},
	{"cursor", "pause", "-scope", "s", "-reason", "why", "-yes"}, {"cursor", "resume", "-scope", "s", "-reason", "why", "-yes"},
}

func TestNoDatabaseGiven(t *testing.T) {
	t.Parallel()
	for _, args := range everyDatabaseCommand {
		session{t: t}.run(args...).want(t, statusEnvironment, "-postgres", "postgres://user@host:5432/name", program.EnvPostgres).lines(
			t,
			1,
		)
	}
}

func TestFlagBeforeEnvironment(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	session{t: t, url: "postgres://127.0.0.1:1/nowhere"}.run("migrate", "-version", "-postgres", f.url).want(
		t,
		statusGood,
		fmt.Sprintln(migrations.Latest),
	)
}

func TestUnreachableServer(t *testing.T) {
	t.Parallel()
	if program.ConnectTimeout > 10*time.Second {
		t.Error("a server that does not answer is reported after more than 10 s")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // it accepts and never answers
	silent := l.Addr().String()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refusing := closed.Addr().String()
	_ = closed.Close()
	for _, args := range everyDatabaseCommand {
		for address, reason := range map[string]string{refusing: "connection refused", silent: "no answer within 50ms"} {
			r := session{t: t, url: "postgres://me:s3cret@" + address + "/shop", timeout: 50 * time.Millisecond}.run(args...)
			if address == refusing {
				r = session{t: t, url: "postgres://me:s3cret@" + address + "/shop"}.run(args...)
			}
			r.want(t, statusEnvironment, address, `database "shop"`, reason, "is the server up", program.EnvPostgres).lines(t, 1)
			if strings.Contains(r.err, "s3cret") {
				t.Errorf("the password is shown: %s", r.err)
			}
		}
	}
	session{t: t}.run("status", "-postgres", "postgres://"+refusing+","+refusing+"/shop").want(t, statusEnvironment, "is -postgres right")
	session{t: t}.run("status", "-postgres", "postgres://no-such-host.invalid/shop").want(t, statusEnvironment, "no-such-host.invalid:5432")
}

func TestRefusedConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	cfg := f.pool.Config().ConnConfig
	at := fmt.Sprintf("%s:%d", cfg.Host, cfg.Port)
	f.url = fmt.Sprintf("postgres://%s:s3cret@%s/no_such_database", cfg.User, at)
	r := f.run("status").want(t, statusEnvironment, at, "no_such_database", "does not exist", "create it").lines(t, 1)
	f.url = fmt.Sprintf("postgres://no_such_role:s3cret@%s/%s", at, cfg.Database)
	r2 := f.run("status").want(t, statusEnvironment, at, "no_such_role", "correct user and password").lines(t, 1)
	if strings.Contains(r.err+r2.err, "s3cret") {
		t.Error("the password is shown")
	}
}

func TestBadAddress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ url, want string }{
		{"nonsense s3cret", "form postgres://"},
		{"postgres://me:s3cret@host:port/x", "form postgres://"},
		{"postgres://me:s3cret@host/x?sslmode=perhaps", "sslmode is invalid"},
		{"postgres://me@host/x?password=s3cret&connect_timeout=s3cret", "form postgres://"},
		{"host=h password=s3cret sslmode=perhaps", "form postgres://"},
		{"postgres://me:s3cret%zz@host/x", "form postgres://"},
	} {
		r := session{t: t}.run("status", "-postgres", c.url).want(t, statusEnvironment, "-postgres: not an address", c.want).lines(t, 1)
		if strings.Contains(r.err, "s3cret") {
			t.Errorf("the password is shown: %s", r.err)
		}
	}
}

// S1: the schema must fit; the next version does.
func TestS1Schema(t *testing.T) {
	t.Parallel()
	empty := session{t: t, url: pgtest.EmptyURL(t)}
	f := newFixture(t)
	next := newFixture(t)
	tooNew := newFixture(t)
	next.exec(`insert into onlyonce.schema_version (version) values ($1)`, migrations.Latest+1)
	tooNew.exec(`insert into onlyonce.schema_version (version) values ($1)`, migrations.Latest+2)
	for _, args := range everyDatabaseCommand {
		f.run(args...).want(t, statusGood)
		next.run(args...).want(t, statusGood)
		if args[0] == "migrate" {
			continue
		}
		empty.run(args...).want(t, statusEnvironment, "no schema onlyonce", "run `onlyonce migrate`").lines(t, 1)
		tooNew.run(args...).want(
			t,
			statusEnvironment,
			fmt.Sprintf("version %d is too new", migrations.Latest+2),
			"deploy a newer version",
		).lines(
			t,
			1,
		)
	}
	if n := one[int](tooNew, `select count(*) from onlyonce.leases`) + one[int](tooNew, `select count(*) from onlyonce.audit`); n != 0 {
		t.Error("a schema that is too new was written to")
	}
}

// A server that takes no writes is reported as such; reading from it works.
func TestReadOnlyServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`alter database ` + pgx.Identifier{f.pool.Config().ConnConfig.Database}.Sanitize() + ` set default_transaction_read_only = on`)
	f.run("status").want(t, statusGood, "- the database is read-only: default_transaction_read_only is on")
	f.run("parked", "list").want(t, statusGood)
	f.run("cursor", "adopt", "-scope", "s", "-topic", "t", "-partition", "0", "-at", "1", "-reason", "why", "-yes").
		want(t, statusEnvironment, "connect to the primary").lines(t, 1)
}

// If output could not be written, the command has not succeeded.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	_ = r.CloseWithError(io.ErrShortWrite)
	var errs bytes.Buffer
	status := run(t.Context(), []string{"migrate", "-print"}, strings.NewReader(""), w, &errs, func(string) string { return "" })
	if status != statusEnvironment || !strings.Contains(errs.String(), "short write") {
		t.Errorf("status %d: %s", status, errs.String())
	}
}

func TestWatchSaysThatItIsAtWork(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `lock table onlyonce.parked in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	said := make(chan struct{})
	errs := &notice{text: "still at work", seen: said}
	status := make(chan int)
	go func() {
		status <- run(
			ctx,
			[]string{"status", "-postgres", f.url},
			strings.NewReader(""),
			io.Discard,
			errs,
			func(string) string { return "" },
		)
	}()
	<-said
	cancel()
	if got := <-status; got != statusEnvironment {
		t.Errorf("status %d after it was interrupted", got)
	}
	if !strings.Contains(errs.String(), "interrupted") {
		t.Errorf("standard error: %s", errs.String())
	}
}

// notice closes seen after text was written.
type notice struct {
	bytes.Buffer
	text string
	seen chan struct{}
	once bool
}

func (n *notice) Write(p []byte) (int, error) {
	written, err := n.Buffer.Write(p)
	if !n.once && strings.Contains(n.Buffer.String(), n.text) {
		n.once = true
		close(n.seen)
	}
	return written, err
}

// /dev/null is a device, but not a terminal.
func TestNoTerminal(t *testing.T) {
	t.Parallel()
	null := openFile(t, "/dev/null")
	file := openFile(t, filepath.Join("main.go"))
	for _, in := range []io.Reader{null, file, strings.NewReader("y\n")} {
		if isTerminal(in) {
			t.Errorf("%v is taken for a terminal", in)
		}
	}
}
