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
	steps    []step
	who      string // whose statements are those that have no step of their own
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
		if into := r.into(); into != nil {
			err = r.batch.QueryRow().Scan(into...)
		} else {
			tag, err = r.batch.Exec()
		}
		if err != nil {
			r.failed(err)
			return tag
		}
		r.judge(tag)
		r.next++
	}
	return tag
}

// judge refuses the tag of a statement that ended the transaction.
func (r *result) judge(tag pgconn.CommandTag) {
	step, at, sql := r.place(r.next)
	r.tx.judge(step, at, sql, tag)
}

func (t *Tx) judge(step string, at int, sql string, tag pgconn.CommandTag) {
	if step != stepUser && step != stepHook {
		return
	}
	switch tag.String() {
	case "BEGIN", "START TRANSACTION", "COMMIT", "ROLLBACK", "PREPARE TRANSACTION":
		t.failAt(step, at, sql, fmt.Errorf("%w: a statement was answered with %q", ErrEnded, tag))
	}
}

// into is what the row of the statement is scanned into whose answer is read next, nil for most.
func (r *result) into() []any {
	for _, s := range r.steps {
		if s.at == r.next {
			return s.into
		}
	}
	return nil
}

// stepOf is whose statement it is, empty for one of the handler.
func (r *result) stepOf(at int) string {
	for _, s := range r.steps { // a handful
		if s.at == at {
			return s.name
		}
	}
	return r.who
}

// place is whose statement it is, its place among those of handlers (-1: it is none of them), and
// its text.
func (r *result) place(i int) (step string, at int, sql string) {
	if i < len(r.queries) {
		sql = r.queries[i].SQL
	}
	step, at = r.who, r.base+i
	for _, s := range r.steps {
		switch {
		case s.at == i && !s.counted:
			return s.name, -1, sql
		case s.at == i:
			step = s.name
		case s.at < i && !s.counted:
			at--
		}
	}
	return step, at, sql
}

// failed keeps an error under the step that it belongs to.
func (r *result) failed(err error) {
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
	step, at, sql := r.place(i)
	r.tx.failAt(step, at, sql, err)
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
	if len(r.queries) == 0 || r.stepOf(len(r.queries)-1) != stepCommit {
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
		step, at, sql := r.place(r.next)
		r.tx.judge(step, at, sql, r.rows.CommandTag())
	}
	r.finish()
}

func (r *result) Err() error {
	if r.rows != nil && r.tx.failure == nil {
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
func (r *result) Conn() *pgx.Conn      { return nil }

// guarded are rows as a handler gets them: each method is a call of its handle's, and there is no
// connection.
type guarded struct {
	rows pgx.Rows
	h    *Handle
}

func (g guarded) Next() bool {
	if g.h.enter() != nil {
		return false
	}
	defer g.h.leave(nil)
	return g.rows.Next()
}

func (g guarded) Close() {
	if g.h.enter() == nil {
		defer g.h.leave(nil)
		g.rows.Close()
	}
}

func (g guarded) Err() (err error) {
	if err := g.h.enter(); err != nil {
		return err
	}
	defer g.h.leave(&err)
	return g.rows.Err()
}

func (g guarded) CommandTag() (tag pgconn.CommandTag) {
	if g.h.enter() == nil {
		defer g.h.leave(nil)
		tag = g.rows.CommandTag()
	}
	return tag
}

func (g guarded) FieldDescriptions() (fields []pgconn.FieldDescription) {
	if g.h.enter() == nil {
		defer g.h.leave(nil)
		fields = g.rows.FieldDescriptions()
	}
	return fields
}

func (g guarded) Scan(dest ...any) (err error) {
	if err := g.h.enter(); err != nil {
		return err
	}
	defer g.h.leave(&err)
	return g.rows.Scan(dest...)
}

func (g guarded) Values() (values []any, err error) {
	if err := g.h.enter(); err != nil {
		return nil, err
	}
	defer g.h.leave(&err)
	return g.rows.Values()
}

func (g guarded) RawValues() (values [][]byte) {
	if g.h.enter() == nil {
		defer g.h.leave(nil)
		values = g.rows.RawValues()
	}
	return values
}

func (g guarded) TypeMap() *pgtype.Map { return g.rows.TypeMap() }
func (guarded) Conn() *pgx.Conn        { return nil }

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
type userBatch struct {
	r *result
	h *Handle
}

func (b userBatch) Exec() (tag pgconn.CommandTag, err error) {
	if err := b.h.enter(); err != nil {
		return tag, err
	}
	defer b.h.leave(&err)
	if tag, err = b.r.batch.Exec(); err == nil {
		b.r.judge(tag)
		b.r.next++
	}
	return tag, err
}

func (b userBatch) Query() (rows pgx.Rows, err error) {
	if err := b.h.enter(); err != nil {
		return failedRows{err}, err
	}
	defer b.h.leave(&err)
	if rows, err = b.r.batch.Query(); err == nil { //nolint:sqlclosecheck // the caller's to close
		b.r.next++
	}
	return guarded{rows, b.h}, err
}

func (b userBatch) QueryRow() pgx.Row {
	rows, err := b.Query()
	if err != nil {
		return row{failedRows{err}}
	}
	return row{rows}
}

func (b userBatch) Tx() pgx.Tx { return nil }

func (b userBatch) Close() (err error) {
	if err := b.h.enter(); err != nil {
		return err
	}
	defer b.h.leave(&err)
	b.r.finish()
	if err := b.r.tx.err(); err != nil {
		return err
	}
	return b.r.err // of the caller's own code: a callback, or a Scan
}

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
