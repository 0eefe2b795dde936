package idempotency

import (
	"fmt"
	"net/http"
	"slices"
	"time"
)

// faultList collects every fault of a configuration.
type faultList struct {
	of     string // the struct's name, where there are several; or empty
	faults []error
}

func (l *faultList) add(field, format string, args ...any) {
	if l.of != "" {
		field = l.of + "." + field
	}
	l.faults = append(l.faults, fmt.Errorf("%w: %s: %s", ErrConfig, field, fmt.Sprintf(format, args...)))
}

func (l *faultList) span(field string, d *time.Duration, initial, shortest, longest time.Duration) {
	if *d == 0 {
		*d = initial
	} else if *d < shortest || *d > longest {
		l.add(field, "%v is not from %v to %v", *d, shortest, longest)
	}
}

func (l *faultList) number(field string, n *int, initial, least, most int) {
	if *n == 0 {
		*n = initial
	} else if *n < least || *n > most {
		l.add(field, "%d is not from %d to %d", *n, least, most)
	}
}

func (l *faultList) header(field string, name *string, initial string) {
	if *name == "" {
		*name = initial
	}
	if *name != "" && !validName(*name) {
		l.add(field, "%q is not a header name", *name)
	}
	*name = http.CanonicalHeaderKey(*name)
}

// requestHeader is header for one that is looked for in requests.
func (l *faultList) requestHeader(field string, name *string, initial string) {
	l.header(field, name, initial)
	if *name == "Transfer-Encoding" || *name == "Trailer" {
		l.add(field, "%q never counts: net/http takes it out of the request's header, and what carries it ends at the next hop", *name)
	}
}

// methods fills in the default methods, and judges those that are given.
func (l *faultList) methods(methods *[]string) {
	if *methods == nil {
		*methods = []string{http.MethodPost, http.MethodPatch}
	}
	*methods = slices.Clone(*methods)
	if len(*methods) == 0 {
		l.add("Methods", "must not be empty: without a method there is nothing to do; nil means POST and PATCH")
	}
	for i, m := range *methods {
		if !slices.Contains([]string{http.MethodPost, http.MethodPatch, http.MethodPut, http.MethodDelete}, m) {
			l.add(fmt.Sprintf("Methods[%d]", i), "%q is none of POST, PATCH, PUT and DELETE", m)
		}
	}
}
