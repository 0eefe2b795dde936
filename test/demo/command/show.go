package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/test/demo/servers"
	"github.com/onlyonce/onlyonce/test/screen"
)

// Demo is one run of a demonstration on its servers: what Show performs, judges, reports and clears
// away.
type Demo interface {
	// Perform plays the run. Whatever it returns, the processes that it has started are gone.
	Perform(ctx context.Context) error
	// Opened is true once everything is there that the run needs.
	Opened() bool
	// Judge reads what is there, and compares it with what must hold.
	Judge(ctx context.Context, took time.Duration) (Report, error)
	// Unfinished is what -json prints of a run that did not come to its end.
	Unfinished(why error) any
	// Clean ends what still runs, and removes what the run has left in the user's own servers, or
	// says that it is kept.
	Clean(keep bool) error
}

// Keeper is a Demo that can leave what it has made, and its servers, until it is interrupted.
type Keeper interface {
	// Keep returns when ctx ends, or at once if nothing is to be kept.
	Keep(ctx context.Context)
}

// Report is the outcome of a run, and what -json prints.
type Report interface {
	Good() bool
	Write(t *Table)
}

// Start finds or starts servers: servers.Start, or servers.StartPostgres.
type Start func(ctx context.Context, f servers.Flags, log, verbose func(line string)) (*servers.Servers, error)

// Show finds or starts the servers, runs the demo that newDemo makes for them, and returns the exit
// status. stopped names the demo's processes that an interrupt has stopped.
func (p *Program) Show(
	ctx context.Context,
	start Start,
	f servers.Flags,
	looking, stopped string,
	newDemo func(*servers.Servers, *screen.Screen) Demo,
) int {
	to := screen.New(p.Human(), p.Verbose)
	to.Say("%s", looking)
	to.Live(func() string { return "not there yet" })
	srv, err := start(
		ctx,
		f,
		func(line string) { to.Say("%s", screen.Wrap(line, screen.Width, "  ")) },
		func(line string) { to.Verbose("%s", line) },
	)
	to.End()
	if err != nil {
		if ctx.Err() != nil {
			return p.Fail(Interrupted, errors.New("interrupted"))
		}
		return p.Fail(Environment, err)
	}
	d := newDemo(srv, to)
	status, err := p.show(ctx, d, to, stopped)
	to.End()
	if err != nil {
		_ = p.Fail(status, err)
	}
	if k, is := d.(Keeper); is && d.Opened() && ctx.Err() == nil {
		k.Keep(ctx)
	}
	if err := d.Clean(status == Failed); err != nil { // after a failed check the data stays, for inspection
		_ = p.Fail(status, fmt.Errorf("cleaning up: %w", err))
	}
	if err := srv.Stop(); err != nil {
		_ = p.Fail(status, fmt.Errorf("stopping the servers: %w", err))
	}
	return status
}

// show performs, judges and reports.
func (p *Program) show(ctx context.Context, d Demo, to *screen.Screen, stopped string) (int, error) {
	started := time.Now()
	err := d.Perform(ctx)
	took := time.Since(started)
	if err != nil {
		status := Environment
		if d.Opened() {
			status = Failed
		}
		if ctx.Err() != nil {
			status = Interrupted
			err = fmt.Errorf("interrupted: the %s are stopped", stopped)
		}
		return status, errors.Join(err, p.object(d.Unfinished(err)))
	}
	r, err := d.Judge(ctx, took)
	if err != nil {
		return Failed, err
	}
	to.End()
	r.Write(&Table{Out: p.Human(), Paint: to.Paint})
	if err := p.object(r); err != nil {
		return Environment, err
	}
	if !r.Good() {
		return Failed, nil
	}
	return Good, nil
}
