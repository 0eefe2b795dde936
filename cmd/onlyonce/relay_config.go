package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// section is an object of the configuration file. Each field is taken once, and a field that was
// never taken is unknown. It gathers every fault, each with the field's path.
type section struct {
	path   string // "" at the top, else "sinks[0]."
	fields map[string]json.RawMessage
	faults *[]error
	env    func(string) string
}

// parseSection reads an object.
func parseSection(path string, data []byte, faults *[]error, env func(string) string) *section {
	s := &section{path: path, faults: faults, env: env}
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		s.whole("must be a JSON object%s", reason(err))
		return s
	}
	s.fields = map[string]json.RawMessage{}
	for d.More() {
		name, err := d.Token()
		var value json.RawMessage
		if err == nil {
			err = d.Decode(&value)
		}
		if err != nil {
			s.whole("is not JSON%s", reason(err))
			return s
		}
		if _, twice := s.fields[name.(string)]; twice {
			s.fault(name.(string), "is there twice")
		}
		s.fields[name.(string)] = value
	}
	if _, err := d.Token(); err != nil {
		s.whole("is not JSON%s", reason(err))
		return s
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		s.whole("holds more than one JSON object")
	}
	return s
}

func reason(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

func (s *section) fault(field, format string, args ...any) {
	*s.faults = append(*s.faults, fmt.Errorf("%s%s: %s", s.path, field, fmt.Sprintf(format, args...)))
}

// whole adds a fault of the object itself.
func (s *section) whole(format string, args ...any) {
	name := strings.TrimSuffix(s.path, ".")
	if name == "" {
		name = "the file"
	}
	*s.faults = append(*s.faults, fmt.Errorf("%s: %s", name, fmt.Sprintf(format, args...)))
}

// unknown reports the fields that were never taken.
func (s *section) unknown() {
	for _, name := range slices.Sorted(maps.Keys(s.fields)) {
		s.fault(name, "is no field of this configuration")
	}
}

// take returns a field's bytes and takes it.
func (s *section) take(field string) (json.RawMessage, bool) {
	v, ok := s.fields[field]
	delete(s.fields, field)
	return v, ok
}

// value decodes a field, and returns the zero value if it is missing.
func value[T any](s *section, field, form string) (v T) {
	raw, ok := s.take(field)
	if ok && (string(raw) == "null" || json.Unmarshal(raw, &v) != nil) {
		s.fault(field, "must be %s", form)
	}
	return v
}

func (s *section) text(field string) string    { return value[string](s, field, "a string") }
func (s *section) texts(field string) []string { return value[[]string](s, field, "a list of strings") }
func (s *section) flag(field string) bool      { return value[bool](s, field, "true or false") }
func (s *section) number(field string) int     { return value[int](s, field, "a whole number") }

// duration parses a duration, for example "30s". It returns the value of forever for "forever", if
// the field allows that.
func (s *section) duration(field string, forever time.Duration) time.Duration {
	_, given := s.fields[field]
	before := len(*s.faults)
	text := s.text(field)
	d, err := time.ParseDuration(text)
	switch {
	case !given, len(*s.faults) > before:
		return 0
	case text == "forever" && forever != 0:
		return forever
	case err != nil && forever != 0:
		s.fault(field, `must be a duration, as "24h", or "forever"`)
	case err != nil:
		s.fault(field, `must be a duration, as "500ms", "30s" or "24h"`)
	case d <= 0:
		s.fault(field, "%v must be positive; leave it out for the default", d)
	}
	return d
}

// objects returns the objects of a list.
func (s *section) objects(field string) (all []*section) {
	for i, raw := range value[[]json.RawMessage](s, field, "a list of objects") {
		all = append(all, parseSection(fmt.Sprintf("%s%s[%d].", s.path, field, i), raw, s.faults, s.env))
	}
	return all
}

// object returns an object, or nil if there is none.
func (s *section) object(field string) *section {
	raw, ok := s.take(field)
	if !ok {
		return nil
	}
	return parseSection(s.path+field+".", raw, s.faults, s.env)
}
