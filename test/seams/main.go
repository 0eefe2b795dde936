package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/rig/histories"
	"github.com/onlyonce/onlyonce/internal/rig/workerdb"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/results"
)

// options say what to play, and how.
type options struct {
	n        int
	seed     string
	only     string
	history  int
	verbose  bool
	workers  int
	patience time.Duration
	out      io.Writer
}

// Exit statuses.
const (
	statusBreach      = 1
	statusEnvironment = 2
)

func main() { os.Exit(run()) }

func run() int {
	o := &options{out: os.Stdout}
	flag.IntVar(&o.n, "n", 300, "how many histories")
	flag.StringVar(&o.seed, "seed", "", "draws them; empty: the commit")
	flag.StringVar(&o.only, "only", "", "comma-separated kinds of histories; empty: all")
	flag.IntVar(&o.history, "history", 0, "the number of the only history that is played, of those that -seed and -only draw; 0: all")
	flag.BoolVar(&o.verbose, "v", false, "print the timeline of each history")
	flag.IntVar(&o.workers, "workers", 4, "histories at once, each in a database of its own")
	flag.DurationVar(&o.patience, "patience", time.Minute, "after how long something stands still")
	flag.Parse()
	sensible := o.n >= 1 && o.workers >= 1 && o.history >= 0
	if flag.NArg() > 0 || !sensible {
		flag.Usage()
		return statusEnvironment
	}
	if o.seed == "" {
		o.seed = commit()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	breached, err := playOnServer(ctx, o)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "seams:", err)
		return statusEnvironment
	case breached > 0:
		return statusBreach
	}
	return 0
}

// commit is the default seed.
func commit() string {
	c, err := results.Commit(context.Background())
	if err != nil {
		return "1"
	}
	return c
}

// drawn are the histories that the options select.
func (o *options) drawn() ([]history, error) {
	kinds := slices.DeleteFunc(allKinds(), func(k *kind) bool {
		return o.only != "" && !slices.Contains(strings.Split(o.only, ","), k.name)
	})
	if len(kinds) == 0 {
		return nil, fmt.Errorf("there is no kind of histories %q", o.only)
	}
	var all []history
	for n := 1; n <= max(o.n, o.history); n++ {
		if o.history == 0 || n == o.history {
			all = append(all, pick(o.seed, n, kinds))
		}
	}
	return all, nil
}

// playOnServer is playAll on a server that it starts, unless the environment names one.
func playOnServer(ctx context.Context, o *options) (breached int, err error) {
	pg, err := devenv.StartPostgres(ctx, devenv.Options{PostgresSettings: serverSettings})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, pg.Stop()) }()
	return playAll(ctx, pg.URL, o)
}

// playAll plays the histories, and prints what breaches. It returns how many do.
func playAll(ctx context.Context, address string, o *options) (breached int, err error) {
	began := time.Now()
	picked, err := o.drawn()
	if err != nil {
		return 0, err
	}
	server, err := workerdb.NewServer(ctx, address, "seams")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	workers := make([]*worker, min(o.workers, len(picked)))
	for i := range workers {
		workers[i] = &worker{server: server}
		defer func() { err = errors.Join(err, workers[i].close(context.WithoutCancel(ctx))) }()
	}
	var mu sync.Mutex
	next, stop := iter.Pull(slices.Values(picked))
	defer stop()
	err = histories.Each(len(workers), next, func(worker int, h history) error {
		out, err := h.play(ctx, workers[worker], o.patience)
		if err == nil && len(out.breaches) > 0 {
			h, out, err = h.shorten(ctx, workers[worker], o.patience, out)
		}
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			return err
		}
		if len(out.breaches) > 0 {
			breached++
		}
		report(o, h, out)
		return nil
	})
	if err != nil {
		return breached, err
	}
	verdict := "ok"
	if breached > 0 {
		verdict = "failed"
	}
	o.say("seams %s histories=%d breaches=%d seconds=%d seed=%s\n",
		verdict, len(picked), breached, int(time.Since(began).Seconds()), o.seed)
	return breached, nil
}

func (o *options) say(format string, args ...any) { _, _ = fmt.Fprintf(o.out, format, args...) }

// report prints a history that breached, or each.
func report(o *options, h history, out outcome) {
	if len(out.breaches) == 0 && !o.verbose {
		return
	}
	head := "history"
	if len(out.breaches) > 0 {
		head = "BREACH in history"
	}
	o.say("\n%s %d (%s, %.1f s): %s\n", head, h.n, h.kind.name, out.took.Seconds(), strings.Join(out.acts, "; "))
	for _, b := range out.breaches {
		o.say("  %s\n", b)
	}
	if o.verbose {
		o.say("%s", timeline(out.lines))
	}
	if len(out.breaches) > 0 {
		again := ""
		if o.only != "" {
			again = " -only " + o.only
		}
		o.say("  again: go run ./test/seams -seed %s%s -history %d -v\n", o.seed, again, h.n)
	}
}

// serverSettings are those of a server that is started here: no process or server dies, and most of
// a history's work is planning.
var serverSettings = map[string]string{
	"fsync": "off", "full_page_writes": "off", "max_connections": "300", "shared_buffers": "128MB",
	"plan_cache_mode": "force_generic_plan", "jit": "off", "autovacuum": "off", "max_parallel_workers_per_gather": "0",
}

// worker plays one history at a time, in a database of its own.
type worker struct {
	server *workerdb.Server
	db     *workerdb.DB
	clock  clock
}

// ready brings the database into the state of a new one.
func (w *worker) ready(ctx context.Context) (err error) {
	if w.db == nil {
		w.db, err = w.server.Take(ctx, func(ctx context.Context, pool *pgxpool.Pool) error {
			_, err := pool.Exec(ctx, clockSQL+";"+effectsSQL)
			return err
		})
	} else {
		err = w.db.Restore(ctx)
	}
	if err != nil {
		return err
	}
	return w.clock.adapt(ctx, w.db)
}

func (w *worker) close(ctx context.Context) error {
	w.clock.close()
	if w.db == nil {
		return nil
	}
	return w.db.Drop(ctx)
}

// ignoreRefusal is for decisions that need not be possible.
func ignoreRefusal(err error) error {
	for _, of := range []error{ops.ErrRefused, ops.ErrNothing, ops.ErrNotFound} {
		if errors.Is(err, of) {
			return nil
		}
	}
	return err
}
