// Package fields checks the fields of a configuration and fills in their defaults. It collects
// every fault, so that a constructor returns all of them at once, each with the name of its field.
package fields

import (
	"errors"
	"fmt"
	"reflect"
	"time"
)

// List collects the faults of one configuration.
type List struct {
	// Sentinel is the error that each fault wraps. It is nil for a part of a configuration, whose
	// faults are given to [List.Part] of the whole.
	Sentinel error
	// Struct is the name of the configuration's type; each fault then names "Struct.Field".
	// Defaults to the field's name alone.
	Struct string

	faults []error
}

// Add notes that a field breaks a rule.
func (l *List) Add(field, format string, args ...any) {
	if l.Struct != "" {
		field = l.Struct + "." + field
	}
	fault := fmt.Errorf("%s: %w", field, fmt.Errorf(format, args...))
	if l.Sentinel != nil {
		fault = fmt.Errorf("%w: %w", l.Sentinel, fault)
	}
	l.Join(fault)
}

// Join notes an error as it is, for example one of another package; nil is no fault.
func (l *List) Join(err error) {
	if err != nil {
		l.faults = append(l.faults, err)
	}
}

// Part notes a required part that is nil, and the faults that its method Validate returns, if it
// has one.
func (l *List) Part(field string, part any) {
	if part == nil {
		l.Add(field, "must not be nil")
		return
	}
	v, ok := part.(interface{ Validate() error })
	if !ok {
		return
	}
	if err := v.Validate(); err != nil {
		l.Add(field, "%w", err)
	}
}

// Err returns all faults joined, or nil.
func (l *List) Err() error { return errors.Join(l.faults...) }

// Split returns the single faults of a List's error.
func Split(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // the outermost is errors.Join's
		return joined.Unwrap()
	}
	return []error{err}
}

// Named returns an error that is err, under a name of its own: the sentinel of a package that has
// none.
func Named(name string, err error) error { return named{name, err} }

type named struct {
	name string
	of   error
}

func (n named) Error() string { return n.name }
func (n named) Unwrap() error { return n.of }

// Signs notes each number and duration of a configuration that is negative, and each duration of
// less than a millisecond; 0 is the default. It finds the fields itself, those of structs in it
// too.
func (l *List) Signs(config any) { l.signs("", reflect.ValueOf(config)) }

func (l *List) signs(prefix string, config reflect.Value) {
	for f, v := range config.Fields() {
		if !f.IsExported() {
			continue
		}
		switch n := v.Interface().(type) {
		case int:
			if n < 0 {
				l.Add(prefix+f.Name, "is %d: must be positive, or 0 for the default", n)
			}
		case time.Duration:
			switch {
			case n < 0:
				l.Add(prefix+f.Name, "is %v: must be positive, or 0 for the default", n)
			case n > 0 && n < time.Millisecond:
				l.Add(prefix+f.Name, "is %v: the unit is a millisecond", n)
			}
		default:
			if v.Kind() == reflect.Struct {
				l.signs(prefix+f.Name+".", v)
			}
		}
	}
}

// Span sets a duration that is zero to its default, and notes one that is out of range.
func (l *List) Span(field string, d *time.Duration, initial, shortest, longest time.Duration) {
	if *d == 0 {
		*d = initial
	} else if *d < shortest || *d > longest {
		l.Add(field, "is %v: must be from %v to %v", *d, shortest, longest)
	}
}

// Backoff is Span for the waits between attempts, which double from least to most and are at least
// 1 ms.
func (l *List) Backoff(least, most *time.Duration, initialLeast, initialMost, longest time.Duration) {
	l.Span("Backoff.Min", least, initialLeast, time.Millisecond, longest)
	l.Span("Backoff.Max", most, initialMost, time.Millisecond, longest)
	if *most < *least {
		l.Add("Backoff.Max", "is %v: must be at least Backoff.Min, %v", *most, *least)
	}
}

// Number sets a number that is zero to its default, and notes one that is out of range.
func (l *List) Number(field string, n *int, initial, least, most int) {
	if *n == 0 {
		*n = initial
	} else if *n < least || *n > most {
		l.Add(field, "is %d: must be from %d to %d", *n, least, most)
	}
}
