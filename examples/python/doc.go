// Package python is an example in Python: a consumer's loop that claims and enqueues through the
// SQL functions of the schema onlyonce, in transactions of its own (psycopg 3). See worker.py,
// onlyonce.py and docs/sql.md; the tests run it.
package python
