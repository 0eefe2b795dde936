package guard

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// result reads the answers of one pipeline. It is also the pgx.Rows of its last statement; handlers
// get it behind a guarded.
type result struct {
	tx       *Tx
	batch    pgx.BatchResults // nil: the query went by itself
	steps    []engineStep
	step     string // whose statements are those that have no step of their own
	queries  []*pgx.QueuedQuery
	base     int // what Tx.stated was before the first of them
	next     int // statement whose answer is read next
	rows     pgx.Rows
	finished bool
	unsent   bool  // pgx refused the user's batch before it sent anything
	err      error // of the whole pipeline
}

// skip reads the answers of the next n statements and returns the last one's tag.
func (r *result) skip(n int) (tag pgconn.CommandTag) {
	for range n {
		if r.tx.failure != nil {
			return tag
		}
		var err error
		if into := r.scanTargets(); into != nil {
			err = r.batch.QueryRow().Scan(into...)
		} else {
			tag, err = r.batch.Exec()
		}
		if err != nil {
			r.keepFailure(err)
			return tag
		}
		r.refuseEndTag(tag)
		r.next++
	}
	return tag
}

// refuseEndTag refuses the tag of a statement that ended the transaction.
func (r *result) refuseEndTag(tag pgconn.CommandTag) {
	step, at, sql := r.locate(r.next)
	r.tx.refuseEndTag(step, at, sql, tag)
}

func (t *Tx) refuseEndTag(step string, at int, sql string, tag pgconn.CommandTag) {
	if step != stepUser && step != stepHook {
		return
	}
	switch tag.String() {
	case "BEGIN", "START TRANSACTION", "COMMIT", "ROLLBACK", "PREPARE TRANSACTION":
		t.failAt(step, at, sql, fmt.Errorf("%w: a statement was answered with %q", ErrEnded, tag))
	}
}

// scanTargets are the targets for the row of the statement whose answer is read next, nil for most.
func (r *result) scanTargets() []any {
	for _, s := range r.steps {
		if s.index == r.next {
			return s.dest
		}
	}
	return nil
}

// stepAt is whose statement it is, empty for one of the handler.
func (r *result) stepAt(at int) string {
	for _, s := range r.steps { // a handful
		if s.index == at {
			return s.name
		}
	}
	return r.step
}

// locate is whose statement it is, its place among those of handlers (-1: it is none of them), and
// its text.
func (r *result) locate(i int) (step string, at int, sql string) {
	if i < len(r.queries) {
		sql = r.queries[i].SQL
	}
	step = r.step
	at = r.base + i
	for _, s := range r.steps {
		switch {
		case s.index == i && !s.counted:
			return s.name, -1, sql
		case s.index == i:
			step = s.name
		case s.index < i && !s.counted:
			at--
		}
	}
	return step, at, sql
}

// keepFailure keeps an error under the step that it belongs to.
func (r *result) keepFailure(err error) {
	i := r.next
	var pre pgx.ErrPreprocessingBatch
	if errors.As(err, &pre) {
		// Preparing or encoding failed before anything was executed: pgx tells by the SQL whose
		// statement it was.
		for n, q := range r.queries {
			if q.SQL == pre.SQL() {
				i = n
				break
			}
		}
	}
	step, at, sql := r.locate(i)
	r.tx.failAt(step, at, sql, err)
}

// finish reads what is left and gives the connection back to the transaction.
func (r *result) finish() {
	if r.finished {
		return
	}
	r.finished = true
	if r.tx.openResult == r {
		r.tx.openResult = nil
	}
	if r.rows != nil {
		r.rows.Close()
	}
	if r.err = r.closePipeline(); r.err != nil && (r.unsent || r.tx.wasNotExecuted(r.err)) {
		r.keepFailure(r.err)
	}
	if len(r.queries) == 0 || r.stepAt(len(r.queries)-1) != stepCommit {
		r.tx.checkStatus()
	}
	r.tx.closeIfEnded()
}

// closePipeline returns the first error of the pipeline, or of the single query.
func (r *result) closePipeline() error {
	if r.batch == nil {
		return r.rows.Err()
	}
	return r.batch.Close()
}

// Next, Close and the rest are pgx.Rows.
func (r *result) Next() bool {
	if r.rows != nil && !r.finished && r.rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *result) Close() {
	if r.rows != nil && !r.finished {
		r.rows.Close()
		step, at, sql := r.locate(r.next)
		r.tx.refuseEndTag(step, at, sql, r.rows.CommandTag())
	}
	r.finish()
}

func (r *result) Err() error {
	if r.rows != nil && r.tx.failure == nil {
		if err := r.rows.Err(); err != nil {
			return err
		}
	}
	return r.tx.failureErr()
}

func (r *result) CommandTag() pgconn.CommandTag {
	if r.rows == nil {
		return pgconn.CommandTag{}
	}
	return r.rows.CommandTag()
}

func (r *result) FieldDescriptions() []pgconn.FieldDescription {
	if r.rows == nil {
		return nil
	}
	return r.rows.FieldDescriptions()
}

func (r *result) Scan(dest ...any) error {
	if r.rows == nil {
		return r.Err()
	}
	return r.rows.Scan(dest...)
}

func (r *result) Values() ([]any, error) {
	if r.rows == nil {
		return nil, r.Err()
	}
	return r.rows.Values()
}

func (r *result) RawValues() [][]byte {
	if r.rows == nil {
		return nil
	}
	return r.rows.RawValues()
}

func (r *result) TypeMap() *pgtype.Map { return r.tx.conn.TypeMap() }
func (r *result) Conn() *pgx.Conn      { return nil }
