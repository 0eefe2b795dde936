// Package cursor has the SQL that changes cursors and pauses, for the consumer and for operators.
// Each statement is here once. Its comment names the numbered arguments and the rows that it
// returns.
package cursor
