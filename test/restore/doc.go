// Package restore has a drill: a base backup with its WAL is restored to a point in the middle of a
// load on every engine. It finds what docs/operations/restore.md, After a restore, says of each
// part.
package restore
