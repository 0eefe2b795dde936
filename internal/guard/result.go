package guard

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// result reads the answers of one pipeline. It is also the pgx.Rows of its last statement.
type result struct {
	tx       *Tx
	batch    pgx.BatchResults // nil: the query went by itself
	steps    []step
	who      string // whose statements are those that have no step of their own
	queries  []*pgx.QueuedQuery
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
		if into := r.into(); into != nil {
			err = r.batch.QueryRow().Scan(into...)
		} else {
			tag, err = r.batch.Exec()
		}
		if err != nil {
			r.failed(err)
			return tag
		}
		r.tx.judge(r.step(), tag)
		r.next++
	}
	return tag
}

// judge refuses the tag of a statement that ended the transaction.
func (t *Tx) judge(step string, tag pgconn.CommandTag) {
	if step != stepUser && step != stepHook {
		return
	}
	switch tag.String() {
	case "BEGIN", "START TRANSACTION", "COMMIT", "ROLLBACK", "PREPARE TRANSACTION":
		t.fail(step, fmt.Errorf("%w: a statement was answered with %q", ErrEnded, tag))
	}
}

// step is whose statement's answer is read next.
func (r *result) step() string { return r.stepOf(r.next) }

// into is what the row of the statement is scanned into whose answer is read next, nil for most.
func (r *result) into() []any {
	for _, s := range r.steps {
		if s.at == r.next {
			return s.into
		}
	}
	return nil
}

// stepOf is empty for a statement of the handler.
func (r *result) stepOf(at int) string {
	for _, s := range r.steps { // a handful
		if s.at == at {
			return s.name
		}
	}
	return r.who
}

// failed keeps an error under the step that it belongs to.
func (r *result) failed(err error) {
	step := r.step()
	var pre pgx.ErrPreprocessingBatch
	if errors.As(err, &pre) {
		// Preparing or encoding failed before anything was executed: pgx tells by the SQL whose statement it was.
		step = r.who
		for i, q := range r.queries {
			if q.SQL == pre.SQL() {
				step = r.stepOf(i)
				break
			}
		}
	}
	r.tx.fail(step, err)
}

// finish reads what is left and gives the connection back to the transaction.
func (r *result) finish() {
	if r.finished {
		return
	}
	r.finished = true
	if r.tx.open == r {
		r.tx.open = nil
	}
	if r.rows != nil {
		r.rows.Close()
	}
	if r.err = r.end(); r.err != nil && (r.unsent || r.tx.undone(r.err)) {
		r.failed(r.err)
	}
	if r.stepOf(len(r.queries)-1) != stepCommit {
		r.tx.check()
	}
	r.tx.drop()
}

// end returns the first error of the pipeline, or of the single query.
func (r *result) end() error {
	if r.batch == nil {
		return r.rows.Err()
	}
	return r.batch.Close()
}

func (r *result) row() pgx.Row { return row{r} }

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
		r.tx.judge(r.step(), r.rows.CommandTag())
	}
	r.finish()
}

func (r *result) Err() error {
	if r.rows != nil {
		if err := r.rows.Err(); err != nil {
			return err
		}
	}
	return r.tx.err()
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

// Conn is nil: a handler does not get at the connection.
func (r *result) Conn() *pgx.Conn { return nil }

// row makes a pgx.Row of rows, as pgx's own QueryRow does.
type row struct{ pgx.Rows }

func (r row) Scan(dest ...any) error {
	defer r.Close()
	if err := r.Err(); err != nil {
		return err
	}
	if !r.Next() {
		if err := r.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.Rows.Scan(dest...); err != nil {
		return err
	}
	r.Close()
	return r.Err()
}

// userBatch is the user's own batch inside the transaction.
type userBatch struct{ r *result }

func (b userBatch) Exec() (pgconn.CommandTag, error) {
	tag, err := b.r.batch.Exec()
	if err == nil {
		b.r.tx.judge(b.r.who, tag)
	}
	return tag, err
}
func (b userBatch) Query() (pgx.Rows, error) {
	rows, err := b.r.batch.Query()
	return noConn{rows}, err
}
func (b userBatch) QueryRow() pgx.Row { return b.r.batch.QueryRow() }
func (b userBatch) Tx() pgx.Tx        { return nil }
func (b userBatch) Close() error {
	b.r.finish()
	if err := b.r.tx.err(); err != nil {
		return err
	}
	return b.r.err // of the caller's own code: a callback, or a Scan
}

// noConn hides the connection of rows.
type noConn struct{ pgx.Rows }

func (noConn) Conn() *pgx.Conn { return nil }

// failedBatch and failedRows answer a statement that was never sent.
type failedBatch struct{ err error }

func (b failedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, b.err }
func (b failedBatch) Query() (pgx.Rows, error)         { return failedRows(b), b.err }
func (b failedBatch) QueryRow() pgx.Row                { return row{failedRows(b)} }
func (b failedBatch) Tx() pgx.Tx                       { return nil }
func (b failedBatch) Close() error                     { return b.err }

type failedRows struct{ err error }

func (failedRows) Close()                                       {}
func (r failedRows) Err() error                                 { return r.err }
func (failedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (failedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (failedRows) Next() bool                                   { return false }
func (r failedRows) Scan(...any) error                          { return r.err }
func (r failedRows) Values() ([]any, error)                     { return nil, r.err }
func (failedRows) RawValues() [][]byte                          { return nil }
func (failedRows) Conn() *pgx.Conn                              { return nil }
func (failedRows) TypeMap() *pgtype.Map                         { return nil }
