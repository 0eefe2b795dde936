package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/program"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/ops/console"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/test/devenv/self"
)

// drill is a database in which faults are made. It has two faces: the text of `onlyonce status`,
// and the first page of the console.
type drill struct {
	*fixture
	console http.Handler
}

func newDrill(t *testing.T) *drill {
	t.Helper()
	return drillOf(t, newFixture(t))
}

func drillOf(t *testing.T, f *fixture) *drill {
	t.Helper()
	h, err := console.New(f.pool, console.Config{Authorize: func(*http.Request) (console.Actor, console.Access, error) {
		return "ann", console.View, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return &drill{f, h}
}

// status is the part of the status with what needs a person.
func (d *drill) status() string {
	d.t.Helper()
	needs, _, _ := strings.Cut(d.run("status").want(d.t, statusGood).out, "\nCursors: ")
	return needs
}

// page is what needs a person on the first page of the console, as text.
func (d *drill) page() string {
	d.t.Helper()
	w := httptest.NewRecorder()
	d.console.ServeHTTP(w, httptest.NewRequestWithContext(d.t.Context(), http.MethodGet, "/", nil))
	needs, _, _ := strings.Cut(w.Body.String(), `<dl class="ledger">`)
	return html.UnescapeString(needs)
}

// says waits until both faces show a need that begins with cause, with all texts, and returns its
// commands.
func (d *drill) says(cause string, texts ...string) (commands []string) {
	d.t.Helper()
	began := time.Now()
	last := ""
	defer func() {
		if d.t.Failed() {
			d.t.Logf("%s: status said:\n%s", cause, last)
		}
	}()
	on := func(where string) bool {
		return !slices.ContainsFunc(append(texts, strings.TrimPrefix(cause, "- ")), func(text string) bool {
			return !strings.Contains(where, text)
		})
	}
	eventually(d.t, "status says "+cause, func() bool {
		last = d.status()
		commands = nil
		_, need, found := strings.Cut(last, cause)
		for line := range strings.Lines(need) {
			if strings.HasPrefix(line, "- ") {
				break
			}
			if strings.HasPrefix(line, "  onlyonce ") {
				commands = append(commands, strings.TrimSpace(line))
			}
		}
		return found && on(last)
	})
	d.t.Logf("%s: status after %v", cause, time.Since(began).Round(100*time.Millisecond))
	page := ""
	eventually(d.t, "the console says "+cause, func() bool {
		page = d.page()
		return on(page) && !slices.ContainsFunc(commands, func(c string) bool { return !strings.Contains(page, `data-copy="`+c+`"`) })
	})
	d.t.Logf("%s: console after %v", cause, time.Since(began).Round(100*time.Millisecond))
	return commands
}

// quiet waits until neither face shows the need.
func (d *drill) quiet(cause string) {
	d.t.Helper()
	status := ""
	page := ""
	defer func() {
		if d.t.Failed() {
			_, page, _ = strings.Cut(page, strings.TrimPrefix(cause, "- "))
			d.t.Logf("%s: status said:\n%s\nthe console: %.300s", cause, status, page)
		}
	}()
	eventually(d.t, "nothing says "+cause, func() bool {
		status, page = d.status(), d.page()
		return !strings.Contains(status, cause) && !strings.Contains(page, strings.TrimPrefix(cause, "- "))
	})
}

// mends waits for a need, runs the command that begins so and that both faces show, and waits until
// the need is gone.
func (d *drill) mends(cause, command string, texts ...string) {
	d.t.Helper()
	commands := d.says(cause, texts...)
	at := slices.IndexFunc(commands, func(c string) bool { return strings.HasPrefix(c, command) })
	if at < 0 {
		d.t.Fatalf("%s: no command %s in %q", cause, command, commands)
	}
	args := shellWords(strings.ReplaceAll(commands[at], "WHY", "drill"))[1:]
	d.run(append(args, "-yes")...).want(d.t, statusGood)
	d.quiet(cause)
}

// A database that takes no writes: the cause is outside of onlyonce.
func TestDrillReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	d := drillOf(t, s.fixture)
	s.keyed("", "m1")
	s.start(effect, nil)
	s.reaches(1)
	name := pgx.Identifier{s.pool.Config().ConnConfig.Database}.Sanitize()
	s.exec(`alter database ` + name + ` set default_transaction_read_only = on`)
	s.exec(`select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`)
	d.says("- the database is read-only", "let the database take writes, or connect to the primary")
	s.keyed("", "m2")
	err := pgx.BeginTxFunc(t.Context(), s.pool, pgx.TxOptions{AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `alter database `+name+` reset default_transaction_read_only`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	s.pool.Reset()
	d.quiet("- the database is read-only")
	s.reaches(2)
}

// Offsets that another program resets in Kafka move nothing, and that is said with what does.
func TestDrillResetOffsets(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	d := drillOf(t, s.fixture)
	s.keyed("", "m1", "m2", "m3")
	stop := s.start(effect, nil)
	s.reaches(3)
	stop()
	s.log.SetCommitted("g1", 0, 1, "")
	stop = s.start(effect, nil)
	d.mends("- offset ignored: scope stock, orders/0",
		"onlyonce replay -scope stock -topic orders -partition 0 -from 1",
		"another program set it to 1 in Kafka",
		"the position in the database counts, and was 3")
	s.reaches(3)
	if got := s.effects(); got != "m1 m2 m3 m2 m3" {
		t.Errorf("effects %s", got)
	}
	stop()
	s.log.SetCommitted("g1", 0, 5, "") // to skip what comes
	s.keyed("", "m4", "m5", "m6")
	s.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if string(m.Value) != "m6" {
			return errors.New("they are to be skipped")
		}
		return effect(ctx, tx, m)
	}, func(c *consumer.Config) {
		c.MaxAttempts = 1 << 20
		c.Backoff.Max = time.Second
	})
	d.mends("- offset ignored: scope stock, orders/0", "onlyonce cursor adopt -scope stock -topic orders -partition 0 -at 5")
	s.reaches(6)
}

// A remote that rejects: its calls wait, and go out again once it accepts.
func TestDrillRemoteRejects(t *testing.T) {
	t.Parallel()
	d := newDrill(t)
	var accepts atomic.Bool
	remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !accepts.Load() {
			http.Error(w, "no such account", http.StatusUnprocessableEntity)
		}
	}))
	t.Cleanup(remote.Close)
	sink, err := httpsink.New(httpsink.Config{Name: "payments", BaseURL: remote.URL + "/v1", KeyWindow: outbox.Forever, AllowPrivate: true})
	if err != nil {
		t.Fatal(err)
	}
	relay, err := outbox.NewRelay(d.pool, outbox.RelayConfig{PollInterval: 20 * time.Millisecond, Sinks: []outbox.Sink{sink}})
	if err != nil {
		t.Fatal(err)
	}
	d.runs(relay.Run)
	err = pgx.BeginFunc(t.Context(), d.pool, func(tx pgx.Tx) error {
		return outbox.Enqueue(t.Context(), tx, outbox.Call{
			Sink:   "payments",
			Target: "/charges",
			Name:   "charge",
			ID:     "1",
			Scope:  "checkout",
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	const cause = "- parked: sink payments, 1 call waiting for a decision (1 rejected)"
	if commands := d.says(cause, "see why, and retry once the cause is repaired"); len(commands) > 0 {
		d.run(shellWords(commands[0])[1:]...).want(t, statusGood, "422")
	}
	accepts.Store(true)
	d.mends(cause, "onlyonce parked redrive -kind call -sink payments")
	eventually(t, "it is delivered", func() bool {
		return one[int](d.fixture, `select count(*) from onlyonce.parked where state = 'resolved'`) == 1
	})
}

// deadlyChild makes this test binary handle the log of [deadlyLog]: its message "deadly" ends the
// process, unless deadlyEnv is "mended".
const (
	deadlyChild    = "deadly"
	deadlyEnv      = "ONLYONCE_CLI_TEST_DEADLY"
	deadlyAttempts = "ONLYONCE_CLI_TEST_ATTEMPTS"
)

func deadlyLog() *memlog.Log {
	log := memlog.NewLog("orders", 1)
	for _, v := range []string{"m1", "deadly", "m2"} {
		log.AppendMessage(0, &consumer.Message{Value: []byte(v), Headers: []consumer.Header{id(v)}})
	}
	return log
}

func handleDeadly() {
	ctx, stop := context.WithTimeout(context.Background(), testPatience)
	defer stop()
	die := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	pool, err := pgxpool.New(ctx, os.Getenv(program.EnvPostgres))
	if err != nil {
		die(err)
	}
	attempts, err := strconv.Atoi(os.Getenv(deadlyAttempts))
	if err != nil {
		die(err)
	}
	c, err := consumer.New(
		pool,
		&memlog.Source{Log: deadlyLog(), GroupID: "g1"},
		consumer.HandlerFunc(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			for there := false; string(m.Value) == "deadly" && os.Getenv(deadlyEnv) == ""; {
				if err := pool.QueryRow(ctx, `select exists (select from onlyonce.owners where pid = $1)`,
					os.Getpid()).Scan(&there); err != nil {
					return err
				}
				if there { // as after any work of a second
					os.Exit(3)
				}
			}
			return effect(ctx, tx, m)
		}),
		consumer.Config{Scope: "stock", Key: consumer.HeaderKey("message-id"), MaxAttempts: attempts},
	)
	if err == nil {
		err = c.Run(ctx)
	}
	die(err)
}

// A message that ends its process again and again: the crash loop is shown with the message, and
// the message is tried again once the program is mended.
func TestDrillDeadlyMessage(t *testing.T) {
	t.Parallel()
	f := newShop(t).fixture
	d := drillOf(t, f)
	start := func(attempts int, env ...string) *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(
			append(os.Environ(), self.Env+"="+deadlyChild, program.EnvPostgres+"="+f.url, fmt.Sprint(deadlyAttempts, "=", attempts)),
			env...,
		)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	const cause = "- crashing: scope stock, "
	var shown atomic.Bool
	ended := make(chan error, 1)
	go func() { // a supervisor, which waits before it starts the program again
		restart := time.NewTicker(time.Second)
		defer restart.Stop()
		for !shown.Load() {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), self.Env+"="+deadlyChild, program.EnvPostgres+"="+f.url, deadlyAttempts+"=1000")
			_ = cmd.Run()
			if code := cmd.ProcessState.ExitCode(); code != 3 {
				ended <- fmt.Errorf("it ended with status %d", code)
				return
			}
			<-restart.C
		}
		ended <- nil
	}()
	commands := d.says(cause, "processes ended without a stop within 2m of their start",
		" at orders/0, offset 1", "os.Exit, out of memory, or a kill")
	shown.Store(true)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	for _, c := range commands {
		d.run(shellWords(c)[1:]...).want(t, statusGood, "it is tried alone, and was tried ")
	}
	const parked = "- parked: scope stock, 1 message waiting for a decision (1 crashed)"
	old := start(one[int](f, `select attempts from onlyonce.attempts`))
	d.says(parked, "see why, and retry once the cause is repaired")
	d.quiet(cause) // the process outlives those that ended
	if err := old.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = old.Wait()
	start(5, deadlyEnv+"=mended")
	d.mends(parked, "onlyonce parked redrive -kind message -scope stock")
	d.until(`select count(*) = 3 from effects`)
}
