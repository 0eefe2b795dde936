// Doubles counts the rows that consumers lose or write twice when their process is killed: three
// loops as most people write them, and the same handler with onlyonce.
//
//	go run ./examples/doubles
//
// Every loop reads a topic of its own with 400 messages, every tenth of them twice. Its process is
// killed with SIGKILL six times: before the handler writes, after it has written, and within three
// milliseconds. loops.go has the loops. The program finds or starts its servers; in a database of
// your own it leaves the schema onlyonce_doubles and the scope doubles-RUN-3.
package main

import (
	"context"
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"
	"golang.org/x/sync/errgroup"

	"github.com/onlyonce/onlyonce/test/demo/command"
	"github.com/onlyonce/onlyonce/test/demo/servers"
	"github.com/onlyonce/onlyonce/test/fleet"
)

const (
	idHeader = "message-id"
	messages = 400
	kills    = 6
	patience = 100 * time.Second

	// Every tenth message is written twice: those with the number 10n+4. Those with 10n are where
	// processes die.
	every, copied = 10, 4
)

// Where a process dies.
const (
	before = "before"
	after  = "after"
	soon   = "soon"
)

// worker is one process of a loop.
type worker struct {
	Run, Postgres string
	Brokers       []string
	Session       time.Duration
	Loop          int // of loops
	Dies          int // at this message; -1: at none
	Where         string
}

// envWorker holds a worker's fields as JSON, in a process that is one.
const envWorker = "ONLYONCE_DOUBLES_WORKER"

func main() {
	if text := os.Getenv(envWorker); text != "" {
		w := &worker{}
		err := json.Unmarshal([]byte(text), w)
		if err == nil {
			err = w.serve(context.Background())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "doubles: a worker has ended:", err)
			os.Exit(command.Failed)
		}
		return
	}
	command.Main(run)
}

func (w *worker) serve(ctx context.Context) error {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // it would warn that these servers do without fsync
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() { // the parent holds the other end: without it this process ends
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	pool, err := pgxpool.New(ctx, w.Postgres)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := loops[w.Loop].run(ctx, w, pool); ctx.Err() == nil {
		return err
	}
	return nil
}

// topic names the loop's topic, group and scope.
func (w *worker) topic() string { return fmt.Sprintf("doubles-%s-%d", w.Run, w.Loop) }

// killedAt ends the process with SIGKILL, if this is where it is to die.
func (w *worker) killedAt(o order, where string) {
	switch {
	case o.N != w.Dies:
	case w.Where == soon && where == before:
		time.AfterFunc(time.Duration(rand.Int64N(int64(3*time.Millisecond))), killSelf)
	case w.Where == where:
		killSelf()
		select {}
	}
}

func killSelf() {
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Kill()
	}
}

// run plays all loops side by side, and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	program := &command.Program{Name: "doubles", Stdout: stdout, Stderr: stderr}
	if len(args) > 0 {
		return program.Fail(command.Environment, fmt.Errorf("unexpected argument %q: it takes none", args[0]))
	}
	say := func(line string) { _, _ = fmt.Fprintln(stdout, line) }
	srv, err := servers.Start(ctx, servers.Flags{}, say, func(string) {})
	if err != nil {
		return program.Fail(command.Environment, err)
	}
	err = compare(ctx, srv, stdout)
	if err = errors.Join(err, srv.Stop()); err != nil {
		return program.Fail(command.Failed, err)
	}
	return command.Good
}

const tablesSQL = `
create schema if not exists onlyonce_doubles;
create table if not exists onlyonce_doubles.effects (run text not null, loop int not null, n int not null);
create table if not exists onlyonce_doubles.processed (run text not null, id text not null, primary key (run, id))`

// countSQL returns one row: messages that have several effects, of the copied ones ($4, $5) and of
// the others, and messages without an effect. $1 run, $2 loop, $3 messages.
const countSQL = `
select count(*) filter (where rows > 1 and n % $4 = $5),
       count(*) filter (where rows > 1 and n % $4 <> $5),
       count(*) filter (where rows = 0)
  from (
    select n, (select count(*) from onlyonce_doubles.effects e where e.run = $1 and e.loop = $2 and e.n = m.n) as rows
          from generate_series(0, $3::int - 1) as m (n)) each`

func compare(ctx context.Context, srv *servers.Servers, stdout io.Writer) error {
	began := time.Now()
	pool := srv.Postgres.Pool
	if err := servers.CreateTables(ctx, pool, tablesSQL); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	id := strings.ToLower(crand.Text()[:8])
	all, playing := errgroup.WithContext(bounded)
	for i, l := range loops {
		w := worker{Run: id, Loop: i, Postgres: srv.Postgres.URL, Brokers: srv.Kafka.Address.Brokers, Session: srv.Kafka.SessionTimeout}
		all.Go(func() error {
			if err := play(playing, w, srv); err != nil {
				return fmt.Errorf("%s: %w", l.name, err)
			}
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(stdout, "\n  %d messages, %d of them twice, %d kills\n\n  %-41s %15s %17s %5s\n",
		messages, messages/every, kills, "", "copies applied", "doubled by kills", "lost")
	var faults []error
	for i, l := range loops {
		var copies, doubled, lost int
		if err := pool.QueryRow(ctx, countSQL, id, i, messages, every, copied).Scan(&copies, &doubled, &lost); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(stdout, "  %-41s %15d %17d %5d\n", l.name, copies, doubled, lost)
		clean, ours := copies+doubled+lost == 0, l.name == "onlyonce"
		if clean != ours {
			faults = append(
				faults,
				fmt.Errorf("%s: %d copies applied, %d doubled, %d lost: not as it should be", l.name, copies, doubled, lost),
			)
		}
	}
	if len(faults) == 0 {
		_, _ = fmt.Fprintf(stdout, "\ndoubles ok in %.0f s\n", time.Since(began).Seconds())
	}
	return errors.Join(faults...)
}

// play writes a loop's topic, and runs one process after the other until the last message has its
// effect. All but the last process are killed.
func play(ctx context.Context, w worker, srv *servers.Servers) (err error) {
	if err := srv.Kafka.CreateTopic(ctx, w.topic(), 1); err != nil {
		return err
	}
	if err := produce(ctx, w.topic(), srv.Kafka); err != nil {
		return err
	}
	if srv.Kafka.Given {
		defer func() { err = errors.Join(err, srv.Kafka.Remove(context.WithoutCancel(ctx), w.topic(), w.topic())) }()
	}
	places := []string{before, after, soon}
	for k := range kills {
		w.Dies = (k + 1) * messages / (kills + 2) / every * every
		w.Where = places[k%3]
		var killed *exec.ExitError
		if err := w.process(ctx, nil); !errors.As(err, &killed) || killed.Exited() {
			return fmt.Errorf("a process that was to be killed ended with: %w", err)
		}
	}
	w.Dies = -1
	return w.process(ctx, func(ctx context.Context) error {
		const lastSQL = `select exists (select from onlyonce_doubles.effects where run = $1 and loop = $2 and n = $3)`
		for done := false; !done; fleet.Pause(ctx, fleet.PollEvery) {
			if err := srv.Postgres.Pool.QueryRow(ctx, lastSQL, w.Run, w.Loop, messages-1).Scan(&done); err != nil {
				return err
			}
		}
		return nil
	})
}

// process runs a worker until it dies or, unless meanwhile is nil, until that returns.
func (w *worker) process(ctx context.Context, meanwhile func(context.Context) error) error {
	text, err := json.Marshal(w)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), envWorker+"="+string(text))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if meanwhile != nil {
		err = meanwhile(ctx)
		_ = stdin.Close()
	}
	return errors.Join(err, cmd.Wait())
}

// produce writes the messages, and later a second copy of every tenth.
func produce(ctx context.Context, topic string, k *servers.Kafka) error {
	var all []kafka.Message
	add := func(n int) {
		all = append(all, kafka.Message{
			Headers: []kafka.Header{{Key: idHeader, Value: fmt.Appendf(nil, "order-%d", n)}},
			Value:   fmt.Appendf(nil, `{"n": %d}`, n),
		})
	}
	for n := range messages {
		if n%every == every-1 {
			add(n - every + 1 + copied)
		}
		add(n)
	}
	writer := k.Writer(topic)
	return errors.Join(writer.WriteMessages(ctx, all...), writer.Close())
}
