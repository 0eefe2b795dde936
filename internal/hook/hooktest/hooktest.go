// Package hooktest checks functions that join or guard a struct of hooks: that they cover each of
// its fields, also one that is added later.
package hooktest

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Join checks that every hook of join(a, b) calls that of a and then that of b, once each. A hook
// whose name ends in End calls that of a last, so that a's Start and End enclose b's.
func Join[H any](t *testing.T, join func(a, b H) H) {
	t.Helper()
	var calls []string
	a := fill[H](func(name string) { calls = append(calls, "a."+name) })
	b := fill[H](func(name string) { calls = append(calls, "b."+name) })
	each(t, join(a, b), func(name string, call func()) {
		calls = nil
		call()
		want := []string{"a." + name, "b." + name}
		if strings.HasSuffix(name, "End") {
			slices.Reverse(want)
		}
		if !slices.Equal(calls, want) {
			t.Errorf("the joined %s calls %v, want %v", name, calls, want)
		}
	})
	var none H
	if !reflect.ValueOf(join(none, none)).IsZero() {
		t.Error("the join of no hooks has some")
	}
}

// Guard checks that a panic in a hook ends nothing, and that the guard of no hooks is none.
func Guard[H any](t *testing.T, guard func(H) H) {
	t.Helper()
	called := map[string]bool{}
	each(t, guard(fill[H](func(name string) { called[name] = true; panic(name) })), func(name string, call func()) {
		defer func() {
			if v := recover(); v != nil {
				t.Errorf("%s: the panic %q was not recovered", name, v)
			}
		}()
		call()
		if !called[name] {
			t.Errorf("%s was not called", name)
		}
	})
	var none H
	if !reflect.ValueOf(guard(none)).IsZero() {
		t.Error("the guard of no hooks has some")
	}
}

// fill returns hooks that all call note with their field's name. A Start returns its context.
func fill[H any](note func(name string)) (hooks H) {
	v := reflect.ValueOf(&hooks).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		v.Field(i).Set(reflect.MakeFunc(v.Field(i).Type(), func(args []reflect.Value) []reflect.Value {
			note(name)
			if v.Field(i).Type().NumOut() == 0 {
				return nil
			}
			return args[:1]
		}))
	}
	return hooks
}

// each passes a function that calls a hook with zero arguments, for each field of hooks.
func each[H any](t *testing.T, hooks H, check func(name string, call func())) {
	t.Helper()
	v := reflect.ValueOf(hooks)
	for i := range v.NumField() {
		hook := v.Field(i)
		name := v.Type().Field(i).Name
		if hook.IsNil() {
			t.Errorf("%s is nil", name)
			continue
		}
		args := make([]reflect.Value, hook.Type().NumIn())
		for j := range args {
			args[j] = reflect.Zero(hook.Type().In(j))
			if hook.Type().In(j) == reflect.TypeFor[context.Context]() {
				args[j] = reflect.ValueOf(context.Background())
			}
		}
		check(name, func() { hook.Call(args) })
	}
}
