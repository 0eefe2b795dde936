package rig

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/onlyonce/onlyonce/test/fleet"
)

// Options are the flags of every storm.
type Options struct {
	Kills    int
	Seed     uint64
	Workers  int
	JSON     bool
	Verbose  bool
	Patience time.Duration
}

// Flags parses a storm's flags, and collects what is wrong with them.
type Flags struct {
	*flag.FlagSet
	faults []error
}

// NewFlags makes the flags of every storm; the storm adds its own. A fleet is made of workers, for
// example of "relay" processes, and the flag of their number is -relays.
func NewFlags(name, worker string, o *Options, stderr io.Writer) *Flags {
	f := &Flags{FlagSet: flag.NewFlagSet(name, flag.ContinueOnError)}
	f.SetOutput(stderr)
	f.IntVar(&o.Kills, "kills",
		100,
		"events: most are kills of a "+worker+", the others stop and continue one, let one join or leave, and kill the servers")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of the stream and the events (default: a random one)")
	f.IntVar(&o.Workers, worker+"s", 3, worker+" processes, 2 to 16")
	f.BoolVar(&o.JSON, "json", false, "print one JSON object to standard output, and the rest to standard error")
	f.BoolVar(&o.Verbose, "v", false, "print every event of the "+worker+"s")
	f.DurationVar(&o.Patience, "patience", 90*time.Second, "give up when nothing has moved for so long")
	return f
}

// ParseFor parses the flags of a storm with so many items, for example -messages, which is what
// its size flag is called. It draws a seed if none was given.
func (f *Flags) ParseFor(args []string, o *Options, worker, size string, items *int) error {
	if err := f.Parse(args); err != nil {
		return err
	}
	for o.Seed == 0 {
		o.Seed = uint64(rand.Uint32()) // short enough to be typed
	}
	if f.NArg() > 0 {
		f.Fault("unexpected argument %q: values follow their flags", f.Arg(0))
	}
	f.Between(size, *items, 100, 5_000_000)
	f.Between("kills", o.Kills, 0, 10_000)
	f.Between(worker+"s", o.Workers, 2, 16)
	if *items < 100*o.Kills {
		f.Fault("-kills: %d %s are too few for %d events, each of which needs some to hit: at least %d", *items, size, o.Kills, 100*o.Kills)
	}
	if o.Patience < 10*time.Second {
		f.Fault("-patience: %v is less than 10s, which a restart of a server may take", o.Patience)
	}
	return nil
}

// Traps are in a few functions for each of so many items. They hang for longer than what keeps
// others away from a worker's work, its session or lease.
func (o *Options) Traps(items int, hold time.Duration) fleet.Traps {
	return fleet.Traps{Seed: o.Seed, Every: uint32(max(items/2, 1)), Hang: hold + hold/4} //nolint:gosec // at most 5,000,000
}

// Fault notes what is wrong.
func (f *Flags) Fault(format string, args ...any) {
	f.faults = append(f.faults, fmt.Errorf(format, args...))
}

// Between notes a fault unless least <= n <= most.
func (f *Flags) Between(name string, n, least, most int) {
	if n < least || n > most {
		f.Fault("-%s: %d is not from %d to %d", name, n, least, most)
	}
}

// Fraction notes a fault unless 0 <= x <= most.
func (f *Flags) Fraction(name string, x, most float64) {
	if !(x >= 0 && x <= most) { // NaN too
		f.Fault("-%s: %v is not from 0 to %v: it is a fraction", name, x, most)
	}
}

// Err returns every fault that was noted.
func (f *Flags) Err() error { return errors.Join(f.faults...) }
