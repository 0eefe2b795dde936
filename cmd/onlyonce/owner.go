package main

import "github.com/onlyonce/onlyonce/ops"

// whole returns an error that lists which flags are missing to name one cursor, and the reason.
func (f *cursorFilter) whole(c *consent, more ...given) error {
	all := []given{{"-scope", f.scope != nil}, {"-topic", f.topic != nil}, {"-partition", f.partition != nil}}
	return missing(append(append(all, more...), given{"-reason", c.reason != nil})...)
}

// place returns the one cursor that the filter picks.
func (f *cursorFilter) place() ops.CursorName {
	return ops.CursorName{Scope: *f.scope, Topic: *f.topic, Partition: int32(*f.partition)}
}
