// Package rolling tests a rolling deploy: workers of this version and of a made-up next one side by side, on one schema
// that is migrated under them.
//
// The next version is this code with one more migration (testdata/1_made_up.sql), put over it by go build's -overlay. So
// the drill goes through all that a real migration will: the order of versions, the lock, the one transaction, and the
// check that code accepts its own version and the next.
package rolling
