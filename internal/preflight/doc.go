// Package preflight checks a database before work begins on it. A setting that makes the guarantee
// impossible is an error. One that weakens it, or will cause trouble later, is a warning. Rule S1.
//
// It works through PgBouncer in transaction mode, changes nothing, and takes no lock.
package preflight
