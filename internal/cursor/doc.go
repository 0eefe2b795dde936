// Package cursor has the SQL that changes cursors and pauses, for the consumer and for operators: each
// statement is here once. Arguments are numbered; a comment names them, and the rows that come back.
package cursor
