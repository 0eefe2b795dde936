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

	"github.com/onlyonce/onlyonce/internal/parked"
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

	choices     []string
	empty       bool // its text may be empty, which is another value than none
	least, most int64
	index       []int
	field       string // its name in the struct
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

// Form is the fields of a question.
type Form struct {
	Fields []Field
	of     reflect.Value
}

// FormOf makes a form of the tags of a struct, to which in points.
func FormOf(in any) *Form {
	of := reflect.ValueOf(in).Elem()
	return &Form{fieldsOf(of.Type(), nil), of}
}

// Set reads the text of a field. The error says what it must be.
func (f *Form) Set(name, text string) error {
	i := slices.IndexFunc(f.Fields, func(of Field) bool { return of.Name == name })
	if i < 0 {
		return errors.New("there is no such field")
	}
	return f.Fields[i].set(f.of, text)
}

// fieldsWithout reads the tags of a struct, but those of some fields, separated by spaces.
func fieldsWithout(of reflect.Type, without string) []Field {
	return slices.DeleteFunc(fieldsOf(of, nil), func(f Field) bool { return slices.Contains(strings.Fields(without), f.Name) })
}

// fieldsOf reads the tags of a struct.
func fieldsOf(of reflect.Type, index []int) []Field {
	var all []Field
	for i := range of.NumField() {
		sf := of.Field(i)
		at := append(slices.Clone(index), i)
		name, tagged := sf.Tag.Lookup("flag")
		switch {
		case sf.Anonymous && sf.Type.Kind() == reflect.Struct:
			all = append(all, fieldsOf(sf.Type, at)...)
		case tagged:
			f := Field{Name: name, Arg: sf.Tag.Get("arg"), Doc: sf.Tag.Get("doc"), Label: sf.Tag.Get("label"), Hint: sf.Tag.Get("hint"),
				least: number(sf.Tag.Get("least"), 0), most: number(sf.Tag.Get("most"), math.MaxInt64-1), index: at, field: sf.Name, empty: sf.Tag.Get("empty") != ""}
			switch choices := sf.Tag.Get("choices"); choices {
			case "":
			case "reasons":
				f.choices = parked.Reasons
				f.Doc += ": " + strings.Join(f.choices, ", ")
			default:
				f.choices = strings.Split(choices, ",")
			}
			if kind := sf.Type; kind == reflect.TypeFor[int32]() || kind == reflect.TypeFor[*int32]() {
				f.most = min(f.most, math.MaxInt32)
			}
			all = append(all, f)
		}
	}
	return all
}

func number(text string, otherwise int64) int64 {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n
	}
	return otherwise
}

// set reads text into the field of the struct.
func (f *Field) set(of reflect.Value, text string) error {
	v := of.FieldByIndex(f.index)
	if own, is := v.Addr().Interface().(interface{ Set(text string) error }); is {
		return own.Set(text)
	}
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
		if err != nil || n < f.least || n > f.most {
			return fmt.Errorf("must be a whole number from %d to %d", f.least, f.most)
		}
		v.SetInt(n)
		return nil
	case v.CanFloat():
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || !(n > float64(f.least) && n <= float64(f.most)) {
			return fmt.Errorf("must be a number above %d, at most %d", f.least, f.most)
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
	case strings.TrimSpace(text) == "" && !f.empty:
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
