// Package move has a drill: a database with work of every engine moves to another cluster, by
// logical replication, by dumps, and by pg_upgrade. It finds what docs/operations/restore.md, Move
// a database, says of each way.
package move
