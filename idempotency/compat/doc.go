// Package compat compares package idempotency with other implementations, in a module of its own:
// what they need is no requirement of the library's.
package compat
