package command

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"time"
)

// Parse parses the arguments and returns the names of the flags that were given. Help is printed
// between head and tail, and returned as flag.ErrHelp.
func (p *Program) Parse(fs *flag.FlagSet, args []string, head, tail string) (given map[string]bool, err error) {
	fs.SetOutput(io.Discard)
	err = fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fs.SetOutput(p.Stdout)
		_, _ = fmt.Fprint(p.Stdout, head)
		fs.PrintDefaults()
		_, _ = fmt.Fprint(p.Stdout, tail)
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%w; -h lists the flags", err)
	}
	given = map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	return given, nil
}

// Faults are all that is wrong with the flags.
type Faults []error

// Add adds a fault.
func (f *Faults) Add(format string, args ...any) { *f = append(*f, fmt.Errorf(format, args...)) }

// Rest wants no argument behind the flags.
func (f *Faults) Rest(args []string) {
	if len(args) > 0 {
		f.Add("unexpected argument %q: values follow their flags", args[0])
	}
}

// Between wants a number from least to most.
func (f *Faults) Between(name string, n, least, most int) {
	if n < least || n > most {
		f.Add("-%s: %d is not from %d to %d", name, n, least, most)
	}
}

// Fraction wants a number from 0 to 1.
func (f *Faults) Fraction(name string, x float64) {
	if !(x >= 0 && x <= 1) { // NaN too
		f.Add("-%s: %v is not from 0 to 1: it is a fraction", name, x)
	}
}

// Patience wants a second at the least.
func (f *Faults) Patience(d time.Duration) {
	if d < time.Second {
		f.Add("-patience: %v is less than 1s", d)
	}
}

// Err joins them; it is nil where there is none.
func (f *Faults) Err() error { return errors.Join(*f...) }
