// Package sql tests handlers and package sqltx with libraries over database/sql: GORM, ent and
// lib/pq.
package sql
