// Package preflight looks at a database before work begins on it: what makes the guarantee impossible is an error, what weakens
// it or will hurt later is a warning. Rule S1.
//
// It works through PgBouncer in transaction mode, changes nothing, and takes no lock.
package preflight
