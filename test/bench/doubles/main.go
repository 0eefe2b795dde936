// Doubles plays one stream of messages to many ways of consuming it, while it kills their
// processes, and counts what each has doubled, lost and applied out of order.
//
//	go run ./doubles                       # a small run of all: a minute
//	go run ./doubles -whole -page FILE     # the run of docs/results/doubles.md: a quarter of an hour
//	go run ./doubles -only river           # one line of the table
//	go run ./doubles -command './my-loop'  # a loop of yours, beside
//
// A way to consume is three functions to this program: start a worker, kill it, read the effects
// (rig.go). Each library is used as its own documentation recommends; what it does not promise is
// marked. It needs a real broker; in servers of your own it leaves nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/onlyonce/onlyonce/test/demo/command"
	"github.com/onlyonce/onlyonce/test/demo/servers"
	"github.com/onlyonce/onlyonce/test/devenv"
)

// settings are the command line.
type settings struct {
	messages, kills, resets int

	only    string
	command string
	page    string
	whole   bool
	atOnce  int
	seed    uint64
	limit   time.Duration // of one way
	servers servers.Flags
}

func main() {
	if name := os.Getenv(envTool); name != "" {
		os.Exit(serve(name))
	}
	command.Main(run)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	program := &command.Program{Name: "doubles", Stdout: stdout, Stderr: stderr}
	cfg, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return command.Good
	}
	if err != nil {
		return program.Fail(command.Environment, err)
	}
	picked, err := pick(cfg)
	if err != nil {
		return program.Fail(command.Environment, err)
	}
	say := func(line string) { _, _ = fmt.Fprintln(stderr, line) }
	srv, err := servers.Start(ctx, cfg.servers, say, func(string) {})
	if err != nil {
		return program.Fail(command.Environment, err)
	}
	err = compare(ctx, cfg, picked, srv, stdout, say)
	if err = errors.Join(err, srv.Stop()); err != nil {
		return program.Fail(command.Failed, err)
	}
	return command.Good
}

func parse(args []string, stderr io.Writer) (settings, error) {
	var cfg settings
	fs := flag.NewFlagSet("doubles", flag.ContinueOnError)
	fs.SetOutput(stderr)
	cfg.servers.Register(fs)
	fs.IntVar(&cfg.messages, "messages", 1000, "messages of the stream")
	fs.IntVar(&cfg.kills, "kills", 6, "how often a worker is killed with SIGKILL")
	fs.IntVar(&cfg.resets, "resets", 1, "how often the group's offsets are set back by a twentieth of the stream")
	fs.BoolVar(&cfg.whole, "whole", false, "20,000 messages, 30 kills and 3 resets, two ways at once")
	fs.StringVar(&cfg.only, "only", "", "the ways to play, by `names`: "+strings.Join(names(), ","))
	fs.StringVar(&cfg.command, "command", "", "a `program` of yours as one more way; docs/guide/doubles.md says what it does")
	fs.StringVar(&cfg.page, "page", "", "write the page of results to this `file` too")
	fs.IntVar(&cfg.atOnce, "at-once", 4, "how many ways are played at once")
	fs.Uint64Var(&cfg.seed, "seed", 1, "of keys, copies and the moments of kills")
	fs.DurationVar(&cfg.limit, "limit", 15*time.Minute, "the longest that one way may take")
	if err := fs.Parse(args); err != nil {
		return cfg, err
	}
	if cfg.whole {
		cfg.messages = 20_000
		cfg.kills = 30
		cfg.resets = 3
		cfg.atOnce = 2
	}
	faults := cfg.servers.Faults()
	if fs.NArg() > 0 {
		faults = append(faults, fmt.Errorf("unexpected argument %q", fs.Arg(0)))
	}
	if min(cfg.kills, cfg.resets) < 0 || cfg.messages < 100 || cfg.atOnce < 1 {
		faults = append(faults, errors.New("-messages is at least 100, -at-once 1, -kills and -resets 0"))
	}
	return cfg, errors.Join(faults...)
}

// pick returns the ways that are asked for, with the user's own.
func pick(cfg settings) ([]tool, error) {
	picked := slices.Clone(tools)
	if cfg.only != "" {
		picked = nil
		for name := range strings.SplitSeq(cfg.only, ",") {
			i := slices.IndexFunc(tools, func(t tool) bool { return t.name == name })
			if i < 0 {
				return nil, fmt.Errorf("-only: there is no %q: %s", name, strings.Join(names(), ", "))
			}
			picked = append(picked, tools[i])
		}
	}
	if cfg.command != "" {
		picked = append(picked, tool{name: "yours", label: "`" + cfg.command + "`", command: strings.Fields(cfg.command)})
	}
	return picked, nil
}

// row is a line of the table.
type row struct {
	tool    tool
	verdict verdict
	took    time.Duration
}

func compare(ctx context.Context, cfg settings, picked []tool, srv *servers.Servers, stdout io.Writer, say func(string)) error {
	began := time.Now()
	redis := ""
	if slices.ContainsFunc(picked, func(t tool) bool { return t.redis }) {
		r, err := devenv.StartRedis(ctx, devenv.Options{})
		if err != nil {
			return err
		}
		defer func() { _ = r.Stop() }() // ends with this process at the latest
		redis = r.Addr
	}
	stream := newStream(cfg)
	rows := make([]row, len(picked))
	var all errgroup.Group
	all.SetLimit(cfg.atOnce)
	for i, t := range picked {
		all.Go(func() error {
			p := &play{cfg: cfg, tool: t, stream: stream, srv: srv, redis: redis}
			start := time.Now()
			v, err := p.run(ctx)
			if err != nil {
				say(fmt.Sprintf("%-18s %v", t.name, err)) // the others go on
				return fmt.Errorf("%s: %w", t.name, err)
			}
			rows[i] = row{tool: t, verdict: v, took: time.Since(start)}
			say(fmt.Sprintf("%-18s %+v, %.0f s", t.name, v, rows[i].took.Seconds()))
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(stdout, "\n%s\n\n%s", cfg.describe(stream), table(rows))
	if cfg.page != "" {
		version, err := serverVersion(ctx, srv)
		if err != nil {
			return err
		}
		text := page(cfg, stream, rows, version, srv.Kafka.How)
		if err := os.WriteFile(cfg.page, []byte(text), 0o644); err != nil { //nolint:gosec // for all to read
			return err
		}
	}
	if err := judgeRows(rows); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(stdout, "\ndoubles ok in %.0f s\n", time.Since(began).Seconds())
	return nil
}

// judgeRows returns what is not as it should be: onlyonce has a fault, or the rig sees none where
// there must be some. A reset always doubles in a loop that only commits offsets.
func judgeRows(rows []row) error {
	var faults []error
	for _, r := range rows {
		switch {
		case r.tool.name == "onlyonce" && r.verdict != verdict{Kills: r.verdict.Kills, Resets: r.verdict.Resets}:
			faults = append(faults, fmt.Errorf("onlyonce: %+v", r.verdict))
		case r.tool.name == "commit-after" && r.verdict.Resets > 0 && r.verdict.ByReset == 0:
			faults = append(faults, errors.New("commit-after: a reset doubled nothing: the rig does not see what it should"))
		}
	}
	return errors.Join(faults...)
}
