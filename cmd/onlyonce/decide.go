package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"

	"github.com/onlyonce/onlyonce/ops"
)

// consent is the flags of every command that changes something: the reason, and whether to ask.
type consent struct {
	reason *string
	yes    bool
}

// flags declares -reason and -yes.
func (c *consent) flags(fs *flag.FlagSet) {
	textVar(fs, &c.reason, "reason", "`WHY`, for the audit row")
	fs.BoolVar(&c.yes, "yes", false, "do not ask")
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

// nothing ends a command that had nothing to do: status 0, and no audit row.
type nothing struct{ text string }

func (e *nothing) Error() string { return e.text }

// decision is a command that changes something by a function of package ops.
type decision[R any] struct {
	// act calls the function. shown is what the operator agreed to, nil if nothing was shown.
	act func(ctx context.Context, db *database, by ops.By, shown *R) (*R, error)
	// write shows what would be done, or what was done.
	write func(a *app, r *R)
	// after runs once the decision is committed.
	after func(ctx context.Context, db *database, done *R) error
}

// decide asks, unless -yes is given, and acts. waiting describes what a command that takes long may
// wait for.
func decide[R any](ctx context.Context, a *app, address string, say consent, waiting string, d decision[R]) error {
	if !say.yes && !a.isTerminal(a.stdin) {
		return usagef("-yes: standard input is no terminal, so nobody can be asked: add -yes to go ahead without")
	}
	err := a.withDatabase(ctx, address, func(db *database) error {
		var shown, done *R
		var err error
		if !say.yes {
			if shown, err = d.act(ctx, db, ops.By{DryRun: true}, nil); err != nil {
				return decided(err)
			}
			d.write(a, shown)
			if err = a.agree(ctx); err != nil {
				return err
			}
		}
		err = a.watch(waiting, func() (err error) {
			done, err = d.act(ctx, db, ops.By{Reason: *say.reason}, shown)
			return err
		})
		if err != nil {
			return decided(err)
		}
		if say.yes {
			d.write(a, done)
		}
		return d.after(ctx, db, done)
	})
	var already *nothing
	if errors.As(err, &already) {
		_, _ = fmt.Fprintln(a.out, oneLine(already.text))
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

// decided turns an error of package ops into one that chooses the exit status.
func decided(err error) error {
	var e *ops.Error
	if !errors.As(err, &e) {
		return err
	}
	switch {
	case errors.Is(e.Kind, ops.ErrInvalid), errors.Is(e.Kind, ops.ErrNotFound):
		return &usageError{e.Error()}
	case errors.Is(e.Kind, ops.ErrRefused), errors.Is(e.Kind, ops.ErrChanged):
		return &refusal{e.Error()}
	case errors.Is(e.Kind, ops.ErrNothing):
		return &nothing{e.Error()}
	}
	return err
}
