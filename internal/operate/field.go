package operate

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Field is a field of a decision's input, or of the filter of a list: a flag of the program, and a
// field of the console's form.
type Field struct {
	Name   string
	Arg    string // the word for its value; empty: it is a switch
	Doc    string
	Label  string // in the console's form; empty: the console does not ask for it
	Hint   string
	Needed bool

	choices   []string
	blank     bool // its text may be empty, which is another value than none
	low, high int64
	at        any // where its value is: a pointer to a field of the input
}

// At is the field of an input whose value is at a pointer: a text, a number, a duration, a pointer
// to one of these, bytes, or a type with a method Set.
func At(at any, name, arg, doc string) Field {
	f := Field{Name: name, Arg: arg, Doc: doc, at: at, high: math.MaxInt64 - 1}
	switch at.(type) {
	case *int32, **int32:
		f.high = math.MaxInt32
	}
	return f
}

// Option is a field without a value.
func Option(at *bool, name, doc string) Field { return At(at, name, "", doc) }

// Between bounds a number.
func (f Field) Between(low, high int64) Field {
	f.low = low
	f.high = min(high, f.high)
	return f
}

// From bounds a number from below.
func (f Field) From(low int64) Field { return f.Between(low, f.high) }

// OneOf bounds a text.
func (f Field) OneOf(choices ...string) Field {
	f.choices = choices
	return f
}

// asked has the console ask for the field.
func (f Field) asked(label, hint string) Field {
	f.Label = label
	f.Hint = hint
	return f
}

// needed says that there is no decision without the field.
func (f Field) needed() Field {
	f.Needed = true
	return f
}

// Usage is what package flag shows of the field.
func (f *Field) Usage() string {
	if f.Arg == "" {
		return f.Doc
	}
	words := strings.Split(f.Doc, " ")
	for i, w := range words {
		if bare := strings.TrimRight(w, ",:;."); bare == f.Arg {
			words[i] = "`" + bare + "`" + w[len(bare):]
			return strings.Join(words, " ")
		}
	}
	return "`" + f.Arg + "`: " + f.Doc
}

// Switch reports whether the field has no value besides being set.
func (f *Field) Switch() bool { return f.Arg == "" }

// Choices are the valid values; nil: others are valid too.
func (f *Field) Choices() []string { return f.choices }

// Form is the fields of one input.
type Form []Field

// Set reads the text of a field. The error says what it must be.
func (f Form) Set(name, text string) error {
	i := slices.IndexFunc(f, func(of Field) bool { return of.Name == name })
	if i < 0 {
		return errors.New("there is no such field")
	}
	return f[i].set(text)
}

// set reads text into the input.
func (f *Field) set(text string) error {
	if own, is := f.at.(interface{ Set(text string) error }); is {
		return own.Set(text)
	}
	v := reflect.ValueOf(f.at).Elem()
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	switch {
	case v.Kind() == reflect.Bool:
		v.SetBool(text == "1" || text == "true")
		return nil
	case v.Type() == reflect.TypeFor[time.Duration]():
		d, err := ParseDays(text)
		v.SetInt(int64(d))
		return err
	case v.CanInt():
		n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		if err != nil || n < f.low || n > f.high {
			return fmt.Errorf("must be a whole number from %d to %d", f.low, f.high)
		}
		v.SetInt(n)
		return nil
	case v.CanFloat():
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || !(n > float64(f.low) && n <= float64(f.high)) {
			return fmt.Errorf("must be a number above %d, at most %d", f.low, f.high)
		}
		v.SetFloat(n)
		return nil
	}
	if err := f.checkText(text); err != nil {
		return err
	}
	if v.Kind() == reflect.Slice {
		v.SetBytes([]byte(text))
		return nil
	}
	v.SetString(text)
	return nil
}

func (f *Field) checkText(text string) error {
	switch {
	case strings.TrimSpace(text) == "" && !f.blank:
		return errors.New("must not be empty")
	case !utf8.ValidString(text):
		return errors.New("must be valid UTF-8")
	case f.choices != nil && !slices.Contains(f.choices, text):
		return fmt.Errorf("must be one of %s", strings.Join(f.choices, ", "))
	}
	return nil
}

// ParseDays parses a duration that may be in days, for example "9d".
func ParseDays(s string) (time.Duration, error) {
	if n, found := strings.CutSuffix(s, "d"); found {
		days, err := strconv.ParseFloat(n, 64)
		if err == nil && days > 0 && days < 36500 {
			return time.Duration(days * float64(24*time.Hour)), nil
		}
	} else if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return d, nil
	}
	return 0, errors.New("must be a duration above 0, such as 7d or 36h")
}
