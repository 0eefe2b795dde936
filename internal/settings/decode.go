// Package settings reads files of configuration: JSON that is decoded into structs by their tags,
// with every fault at once, and the secrets and logins that such files name.
package settings

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"
)

// File is one file that is read. It collects the file's faults, each with its field's path.
type File struct {
	// Env returns the value of an environment variable, which {"env": "NAME"} names.
	Env func(string) string

	faults []error
}

// Fault notes that a field breaks a rule. A path is of the form sinks[0].name.
func (f *File) Fault(path, format string, args ...any) {
	if path = strings.TrimSuffix(path, "."); path == "" {
		path = "the file"
	}
	f.faults = append(f.faults, fault{path, fmt.Sprintf(format, args...)})
}

// fault is a field that breaks a rule.
type fault struct{ path, rule string }

func (f fault) Error() string { return f.path + ": " + f.rule }

// Faults returns all faults, in the order in which they were found.
func (f *File) Faults() []error { return f.faults }

// Clone returns a File with the faults so far.
func (f *File) Clone() *File { return &File{Env: f.Env, faults: slices.Clone(f.faults)} }

// Err returns all faults joined, or nil.
func (f *File) Err() error { return errors.Join(f.faults...) }

// Faulty reports whether a field, or one within it, has a fault.
func (f *File) Faulty(path string) bool {
	return slices.ContainsFunc(f.faults, func(err error) bool {
		rest, found := strings.CutPrefix(err.Error(), path)
		return found && strings.ContainsAny(rest[:1], ":.[")
	})
}

// Checker is a struct of a file that checks itself once it is decoded. Path ends with a dot, or is
// empty at the top.
type Checker interface {
	Check(f *File, path string)
}

// Former is a type that describes itself in a fault: "must be ...".
type Former interface {
	Form() string
}

// Decode decodes an object into the struct that to points to, by the json tags of its fields. It
// notes a field that is unknown, that is there twice, or that has another type, and goes on with
// the others. Path ends with a dot, or is empty at the top.
//
// A field may have a type that decodes itself (json.Unmarshaler): its error is the rule that the
// field breaks.
func (f *File) Decode(data []byte, path string, to any) {
	f.object(data, path, reflect.ValueOf(to).Elem())
}

// object decodes an object into a struct or a map of strings.
func (f *File) object(data []byte, path string, to reflect.Value) {
	if !f.members(data, path, func(name string, raw json.RawMessage) { f.member(path, name, raw, to) }) {
		return
	}
	if c, is := to.Addr().Interface().(Checker); is {
		c.Check(f, path)
	}
}

// members calls a function for each member of an object. False: it is none.
func (f *File) members(data []byte, path string, each func(name string, raw json.RawMessage)) bool {
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		f.Fault(path, "must be a JSON object%s", reason(err))
		return false
	}
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		var raw json.RawMessage
		if err == nil {
			err = d.Decode(&raw)
		}
		if err != nil {
			f.Fault(path, "is not JSON%s", reason(err))
			return false
		}
		name, _ := token.(string)
		if seen[name] {
			f.Fault(path+name, "is there twice")
			continue
		}
		seen[name] = true
		each(name, raw)
	}
	if _, err := d.Token(); err != nil {
		f.Fault(path, "is not JSON%s", reason(err))
		return false
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		f.Fault(path, "holds more than one JSON object")
		return false
	}
	return true
}

func reason(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// member decodes a member of an object.
func (f *File) member(path, name string, raw json.RawMessage, to reflect.Value) {
	if to.Kind() == reflect.Map {
		v := reflect.New(to.Type().Elem()).Elem()
		f.value(raw, path+name, v)
		if to.IsNil() {
			to.Set(reflect.MakeMap(to.Type()))
		}
		to.SetMapIndex(reflect.ValueOf(name), v)
		return
	}
	for _, field := range reflect.VisibleFields(to.Type()) {
		if tag, _, _ := strings.Cut(field.Tag.Get("json"), ","); tag != "" && tag == name {
			f.value(raw, path+name, to.FieldByIndex(field.Index))
			return
		}
	}
	f.Fault(path+name, "is no field of this configuration")
}

// value decodes the value of a member.
func (f *File) value(raw json.RawMessage, path string, to reflect.Value) {
	if own, is := to.Addr().Interface().(json.Unmarshaler); is {
		if err := own.UnmarshalJSON(raw); err != nil {
			f.Fault(path, "%v", err)
		}
		return
	}
	kind := to.Kind()
	of := to.Type()
	if kind == reflect.Pointer {
		of = of.Elem()
	}
	begin := raw[0]
	switch {
	case of.Kind() == reflect.Struct && begin == '{':
		made := reflect.New(of)
		f.object(raw, path+".", made.Elem())
		if kind == reflect.Pointer {
			to.Set(made)
		} else {
			to.Set(made.Elem())
		}
	case kind == reflect.Map && begin == '{':
		f.object(raw, path+".", to)
	case kind == reflect.Slice && begin == '[' && of.Elem().Kind() != reflect.String:
		var all []json.RawMessage
		if err := json.Unmarshal(raw, &all); err != nil {
			f.Fault(path, "is not JSON%s", reason(err))
			return
		}
		to.Set(reflect.MakeSlice(of, len(all), len(all)))
		for i, one := range all {
			f.value(one, fmt.Sprintf("%s[%d]", path, i), to.Index(i))
		}
	case begin == 'n', of.Kind() == reflect.Struct, kind == reflect.Map,
		json.Unmarshal(raw, to.Addr().Interface()) != nil:
		f.Fault(path, "must be %s", form(of))
	}
}

// form says how a value of a type is written.
func form(of reflect.Type) string {
	if own, is := reflect.New(of).Interface().(Former); is {
		return own.Form()
	}
	switch of.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		if of.Elem().Kind() == reflect.String {
			return "a list of strings"
		}
		return "a list of objects"
	}
	return "a JSON object"
}

// Duration is a positive duration, for example "30s". 0: it was not given.
type Duration time.Duration

// UnmarshalJSON reads a duration. Its error is a rule.
func (d *Duration) UnmarshalJSON(raw []byte) error {
	text, err := textOf(raw)
	if err != nil {
		return err
	}
	read, err := time.ParseDuration(text)
	if err != nil {
		return errors.New(`must be a duration, as "500ms", "30s" or "24h"`)
	}
	if read <= 0 {
		return fmt.Errorf("%v must be positive; leave it out for the default", read)
	}
	*d = Duration(read)
	return nil
}

// Window is a duration, or "forever". 0: it was not given.
type Window struct {
	Forever bool
	Is      time.Duration
}

// UnmarshalJSON reads a window. Its error is a rule.
func (w *Window) UnmarshalJSON(raw []byte) error {
	text, err := textOf(raw)
	if err != nil {
		return err
	}
	if text == "forever" {
		w.Forever = true
		return nil
	}
	read, err := time.ParseDuration(text)
	if err != nil {
		return errors.New(`must be a duration, as "24h", or "forever"`)
	}
	if read <= 0 {
		return fmt.Errorf("%v must be positive", read)
	}
	w.Is = read
	return nil
}

func textOf(raw []byte) (text string, err error) {
	if raw[0] != '"' || json.Unmarshal(raw, &text) != nil {
		return "", errors.New("must be a string")
	}
	return text, nil
}
