package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/program"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// consent is the flags of every command that changes something: the reason, and whether to ask.
type consent struct {
	reason *string
	yes    bool
	dry    bool
}

// flags declares -reason, -yes and -dry-run.
func (c *consent) flags(fs *flag.FlagSet) {
	textVar(fs, &c.reason, "reason", "`WHY`, for the audit row")
	fs.BoolVar(&c.yes, "yes", false, "do not ask")
	fs.BoolVar(&c.dry, "dry-run", false, "show what it would do, and change nothing")
}

// given is a flag that a command requires.
type given struct {
	name string
	is   bool
}

// missing names the flags that are not there.
func missing(flags ...given) error {
	var names []string
	for _, f := range flags {
		if !f.is {
			names = append(names, f.name)
		}
	}
	if len(names) > 0 {
		return usagef("missing: %s", strings.Join(names, ", "))
	}
	return nil
}

// asksFirst is a part of the help of each decision.
const asksFirst = "It shows what it would do and asks first, unless -yes is given; with -dry-run it only " +
	"shows. It writes an audit row."

// decisionCommand makes the command of a decision.
func decisionCommand(d *operate.Decision) command {
	help, examples, _ := strings.Cut(d.Help, "\n\nExample")
	return command{
		name:    d.Name,
		args:    d.Synopsis(),
		summary: d.Summary,
		help:    help + "\n\n" + asksFirst + "\n\nExample" + examples,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			try := d.Begin()
			flagsVar(fs, d.Fields, try.Set)
			var say consent
			say.flags(fs)
			return func(ctx context.Context, a *app) error { return a.decide(ctx, *address, say, try) }
		},
	}
}

// fieldsVar declares the flags of the fields of an input.
func fieldsVar(fs *flag.FlagSet, form operate.Form) { flagsVar(fs, form, form.Set) }

// flagsVar declares flags of fields, which set reads.
func flagsVar(fs *flag.FlagSet, fields []operate.Field, set func(name, text string) error) {
	for _, f := range fields {
		declare := fs.Func
		if f.Switch() {
			declare = fs.BoolFunc
		}
		declare(f.Name, f.Usage(), func(text string) error { return set(f.Name, text) })
	}
}

func (a *app) decide(ctx context.Context, address string, say consent, try *operate.Try) error {
	names := try.Missing()
	if len(names) == 0 {
		if err := decided(try.Check()); err != nil {
			name, is := strings.CutPrefix(err.Error(), "missing: ")
			if !is {
				return err
			}
			names = append(names, name)
		}
	}
	if say.reason == nil && !say.dry {
		names = append(names, "-reason")
	}
	if len(names) > 0 {
		return usagef("missing: %s", strings.Join(names, ", "))
	}
	if r, is := try.Input.(*operate.Resolve); is && r.SealKeys != "" {
		var err error
		if r.Sealer, err = readSealKeys(r.SealKeys, a.env); err != nil {
			return err
		}
	}
	if r, is := try.Input.(*operate.Replaying); is && r.ByTime() {
		var err error
		if r.Kafka, err = a.offsetsAt(cmp.Or(r.Brokers, a.env(envBrokers)), r.Login); err != nil {
			return err
		}
	}
	from, is := try.Input.(interface{ Elsewhere() *operate.From })
	if !is || from.Elsewhere().URL == "" {
		return a.act(ctx, address, say, try, nil)
	}
	return a.withSchema(ctx, from.Elsewhere().URL, func(db *program.Database) error {
		from.Elsewhere().DB, from.Elsewhere().Name = db, db.Name
		return a.act(ctx, address, say, try, db)
	})
}

// writeSaid shows what a decision would do.
func (a *app) writeSaid(s operate.Said) {
	if s.Head != "" {
		a.say("%s", oneLine(s.Head))
	}
	if s.Columns != nil {
		a.table(s.Columns, s.Rows)
	}
	for _, line := range s.Sentences {
		a.say("%s", oneLine(line))
	}
}

// nothing ends a command that had nothing to do: status 0, and no audit row.
type nothing struct{ text string }

func (e *nothing) Error() string { return e.text }

// act asks, unless -yes is given, and carries the decision out. from is the database that something
// moves from, if any.
func (a *app) act(ctx context.Context, address string, say consent, try *operate.Try, from *program.Database) error {
	if !say.yes && !say.dry && !a.isTerminal(a.stdin) {
		return usagef("-yes: standard input is no terminal, so there is no answer: add -yes to go ahead " +
			"without, or -dry-run to see what it would do")
	}
	err := a.withDatabase(ctx, address, func(db *program.Database) error {
		run := func(by ops.By, shown *operate.Result) (*operate.Result, error) {
			r, err := try.Run(ctx, db, by, shown)
			return r, decided(explainedOrigin(from, err))
		}
		var shown, done *operate.Result
		var err error
		if !say.yes || say.dry {
			if shown, err = run(ops.By{DryRun: true}, nil); err != nil {
				return err
			}
			a.writeSaid(shown.Said)
			if say.dry {
				return nil
			}
			if err = a.agree(ctx); err != nil {
				return err
			}
		}
		err = a.watch(try.Waits, func() (err error) {
			done, err = run(ops.By{Reason: show.Text(say.reason)}, shown)
			return err
		})
		if err != nil {
			return err
		}
		if say.yes {
			a.writeSaid(done.Said)
		}
		for _, line := range done.Done {
			a.say("%s", oneLine(line))
		}
		if r, is := try.Input.(*operate.Replaying); is && r.Follow {
			return a.follow(ctx, db, done.Replayed())
		}
		return nil
	})
	if already, is := errors.AsType[*nothing](err); is {
		a.say("%s", oneLine(already.text))
		return nil
	}
	return err
}

// agree asks whether to go on.
func (a *app) agree(ctx context.Context) error {
	if err := a.out.Flush(); err != nil {
		return err
	}
	_, _ = fmt.Fprint(a.stderr, "Do this? [y/N] ")
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(a.stdin).ReadString('\n') // the end of input is a no
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case got := <-answer:
		if got != "y" && got != "yes" {
			return &refusal{"the answer was no: nothing was changed"}
		}
	case <-ctx.Done():
		_, _ = fmt.Fprintln(a.stderr)
		return &refusal{"interrupted: nothing was changed"}
	}
	return nil
}

// decided turns an error of package ops into one that chooses the exit status, and names flags in
// place of fields.
func decided(err error) error {
	var e *ops.Error
	if !errors.As(err, &e) {
		return err
	}
	text := operate.Flags(e.Error(), "-", "-")
	switch {
	case errors.Is(e.Kind, ops.ErrInvalid), errors.Is(e.Kind, ops.ErrNotFound):
		return &usageError{text}
	case errors.Is(e.Kind, ops.ErrRefused), errors.Is(e.Kind, ops.ErrChanged):
		return &refusal{text}
	case errors.Is(e.Kind, ops.ErrNothing):
		return &nothing{text}
	}
	return err
}
