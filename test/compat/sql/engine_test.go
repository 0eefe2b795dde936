package sql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"entgo.io/ent/dialect/sql/sqlgraph"
	"entgo.io/ent/schema/field"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/sqltx"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/sqlsuite"
)

// errRefused is what the handlers below undo by themselves.
var errRefused = errors.New("refused")

// library is one way to write a booking and its lines. Bookings of no cents violate a constraint.
type library struct {
	// book writes a booking with two lines, and reads them.
	book func(ctx context.Context, tx *sql.Tx, message string, cents int) (lines int, err error)
	// nested writes a booking in a nested transaction, which it rolls back; nil if the library has
	// none.
	nested func(ctx context.Context, tx *sql.Tx, message string) error
	// begin asks the library for a transaction in the transaction; nil if the compiler refuses.
	begin func(ctx context.Context, tx *sql.Tx) error
	// commit ends the transaction.
	commit func(ctx context.Context, tx *sql.Tx) error
}

// line is a model of GORM's that belongs to a booking.
type line struct {
	ID        uint
	BookingID uint
	Text      string
}

// entry is a booking with lines, as GORM writes it in one go.
type entry struct {
	ID      uint
	Message string
	Cents   int
	Lines   []line `gorm:"foreignKey:BookingID"`
}

func (entry) TableName() string { return "bookings" }

// openGORM is one way to a *gorm.DB for a transaction: a new one, or a session of the program's.
func openGORM(tx *sql.Tx, session bool) (*gorm.DB, error) {
	if !session {
		return gorm.Open(postgres.New(postgres.Config{Conn: tx}), &gorm.Config{TranslateError: true, Logger: logger.Discard})
	}
	db, err := sql.Open("pgx", "") // of the program; not used here
	if err != nil {
		return nil, err
	}
	g, err := gorm.Open(postgres.New(postgres.Config{Conn: db}), &gorm.Config{
		PrepareStmt:          true,
		DisableAutomaticPing: true,
		TranslateError:       true,
		Logger:               logger.Discard,
	})
	if err != nil {
		return nil, err
	}
	g = g.Session(&gorm.Session{NewDB: true})
	g.Statement.ConnPool = tx
	return g, nil
}

func withGORM(session bool) library {
	return library{
		book: func(ctx context.Context, tx *sql.Tx, message string, cents int) (int, error) {
			g, err := openGORM(tx, session)
			if err != nil {
				return 0, err
			}
			g = g.WithContext(ctx)
			e := entry{Message: message, Cents: cents, Lines: []line{{Text: "one"}, {Text: "two"}}}
			if err := g.Create(&e).Error; err != nil {
				return 0, err
			}
			var found entry
			err = g.Preload("Lines").First(&found, e.ID).Error
			return len(found.Lines), err
		},
		nested: func(ctx context.Context, tx *sql.Tx, message string) error {
			g, err := openGORM(tx, session)
			if err != nil {
				return err
			}
			return g.WithContext(ctx).Transaction(func(g *gorm.DB) error {
				if err := g.Create(&entry{Message: message, Cents: 1}).Error; err != nil {
					return err
				}
				// This one is kept by its own transaction, and undone with the outer one.
				if err := g.Transaction(func(g *gorm.DB) error { return g.Create(&entry{Message: message, Cents: 2}).Error }); err != nil {
					return err
				}
				if err := g.Create(&entry{Message: message}).Error; !errors.Is(err, gorm.ErrCheckConstraintViolated) {
					return fmt.Errorf("the constraint: %w", err)
				}
				return errRefused
			})
		},
		begin: func(_ context.Context, tx *sql.Tx) error {
			g, err := openGORM(tx, session)
			if err != nil {
				return err
			}
			return g.Begin().Error
		},
		commit: func(_ context.Context, tx *sql.Tx) error {
			g, err := openGORM(tx, session)
			if err != nil {
				return err
			}
			return g.Commit().Error
		},
	}
}

// DBTX, Queries, New and WithTx are what sqlc generates for database/sql.
type DBTX interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
	PrepareContext(context.Context, string) (*sql.Stmt, error)
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
	QueryRowContext(context.Context, string, ...any) *sql.Row
}

type Queries struct{ db DBTX }

func New(db DBTX) *Queries                    { return &Queries{db: db} }
func (q *Queries) WithTx(tx *sql.Tx) *Queries { return &Queries{db: tx} }

const (
	createBooking = `-- name: CreateBooking :one
insert into bookings (message, cents) values ($1, $2) returning id`
	createLine = `-- name: CreateLine :exec
insert into lines (booking_id, text) values ($1, $2)`
	listLines = `-- name: ListLines :many
select id, booking_id, text from lines where booking_id = $1 order by id`
)

// CreateBooking is a query of kind one.
func (q *Queries) CreateBooking(ctx context.Context, message string, cents int32) (int64, error) {
	var id int64
	err := q.db.QueryRowContext(ctx, createBooking, message, cents).Scan(&id)
	return id, err
}

// CreateLine is a query of kind exec.
func (q *Queries) CreateLine(ctx context.Context, booking int64, text string) error {
	_, err := q.db.ExecContext(ctx, createLine, booking, text)
	return err
}

// ListLines is a query of kind many.
func (q *Queries) ListLines(ctx context.Context, booking int64) ([]line, error) {
	rows, err := q.db.QueryContext(ctx, listLines, booking)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var items []line
	for rows.Next() {
		var i line
		if err := rows.Scan(&i.ID, &i.BookingID, &i.Text); err != nil {
			return nil, err
		}
		items = append(items, i)
	}
	if err := rows.Close(); err != nil {
		return nil, err
	}
	return items, rows.Err()
}

var sqlc = library{
	book: func(ctx context.Context, tx *sql.Tx, message string, cents int) (int, error) {
		q := New(nil).WithTx(tx)
		id, err := q.CreateBooking(ctx, message, int32(cents))
		if err != nil {
			return 0, err
		}
		if err := errors.Join(q.CreateLine(ctx, id, "one"), q.CreateLine(ctx, id, "two")); err != nil {
			return 0, err
		}
		lines, err := q.ListLines(ctx, id)
		return len(lines), err
	},
	commit: func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
}

// entTx is a driver for ent's client in a transaction that the client does not end.
type entTx struct{ dialect.Driver }

// Tx is called by ent for a node with edges, and by Client.Tx.
func (d entTx) Tx(context.Context) (dialect.Tx, error) { return dialect.NopTx(d), nil }

func entDriver(tx *sql.Tx) dialect.Driver {
	return entTx{entsql.NewDriver(dialect.Postgres, entsql.Conn{ExecQuerier: tx})}
}

// ent is what its generated code does, by the package that it calls.
var ent = library{
	book: func(ctx context.Context, tx *sql.Tx, message string, cents int) (int, error) {
		drv := entDriver(tx)
		id := func() *sqlgraph.FieldSpec { return sqlgraph.NewFieldSpec("id", field.TypeInt) }
		var ids []any
		for _, text := range []string{"one", "two"} {
			spec := sqlgraph.NewCreateSpec("lines", id())
			spec.SetField("text", field.TypeString, text)
			if err := sqlgraph.CreateNode(ctx, drv, spec); err != nil {
				return 0, err
			}
			ids = append(ids, spec.ID.Value)
		}
		spec := sqlgraph.NewCreateSpec("bookings", id())
		spec.SetField("message", field.TypeString, message)
		spec.SetField("cents", field.TypeInt, cents)
		edge := &sqlgraph.EdgeSpec{
			Rel:     sqlgraph.O2M,
			Table:   "lines",
			Columns: []string{"booking_id"},
			Target:  &sqlgraph.EdgeTarget{IDSpec: id()},
		}
		for _, id := range ids {
			edge.Target.Nodes = append(edge.Target.Nodes, id)
		}
		spec.Edges = append(spec.Edges, edge)
		if err := sqlgraph.CreateNode(ctx, drv, spec); err != nil {
			return 0, err
		}
		query := sqlgraph.NewQuerySpec("lines", []string{"id", "text"}, id())
		query.Predicate = func(s *entsql.Selector) { s.Where(entsql.EQ("booking_id", spec.ID.Value)) }
		n := 0
		query.ScanValues = func(columns []string) ([]any, error) { return []any{new(sql.NullInt64), new(sql.NullString)}, nil }
		query.Assign = func([]string, []any) error { n++; return nil }
		err := sqlgraph.QueryNodes(ctx, drv, query)
		return n, err
	},
	commit: func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
}

// T1, T6: each library applies a message once in a consumer's handler, with its call. What the
// handler must not do fails its message and no other.
func TestT1LibrariesInAHandler(t *testing.T) {
	for name, lib := range map[string]library{"GORM": withGORM(false), "GORM, session": withGORM(true), "sqlc": sqlc, "ent": ent} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.DB(t)
			if _, err := pool.Exec(t.Context(), `
create table bookings (id bigint generated by default as identity primary key, message text, cents int check (cents > 0));
create table lines (id bigint generated by default as identity primary key,
booking_id bigint references bookings deferrable initially deferred, text text)`); err != nil {
				t.Fatal(err)
			}
			handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				verb, message, _ := strings.Cut(string(m.Value), " ")
				return sqltx.Within(ctx, tx, func(ctx context.Context, sqlTx *sql.Tx) error {
					cents := 1
					if verb == "refused" {
						cents = 0
					}
					n, err := lib.book(ctx, sqlTx, message, cents)
					switch {
					case verb == "refused":
						return nil // swallowed
					case err != nil || n != 2:
						return fmt.Errorf("%d lines, %w", n, err)
					case verb == "nested" && lib.nested != nil:
						if err := lib.nested(ctx, sqlTx, "nested "+message); !errors.Is(err, errRefused) {
							return err
						}
					case verb == "begin" && lib.begin != nil:
						if err := lib.begin(ctx, sqlTx); err == nil {
							t.Error("a transaction in the transaction was begun")
						}
					case verb == "commit":
						_ = lib.commit(ctx, sqlTx)
						return nil
					}
					return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "charge", Target: "/charges"})
				})
			}
			reasons, errs := sqlsuite.Consume(t, pool, handle, "book 1", "nested 2", "refused 3", "begin 4", "commit 5", "book 6", "book 1")
			if got := fmt.Sprint(reasons); got != "map[commit 5:permanent refused 3:exhausted]" {
				t.Errorf("parked: %s, %v", got, errs)
			}
			var bookings, calls, lines string
			if err := pool.QueryRow(t.Context(), `select string_agg(message, ' ' order by id) from bookings`).Scan(&bookings); err != nil {
				t.Fatal(err)
			}
			if err := pool.QueryRow(t.Context(), `select count(*)::text, (select count(*)::text from lines) from onlyonce.outbox_log`).Scan(
				&calls,
				&lines,
			); err != nil {
				t.Fatal(err)
			}
			if bookings != "1 2 4 6" || calls != "4" || lines != "8" {
				t.Errorf("bookings %s; %s calls, %s lines", bookings, calls, lines)
			}
		})
	}
}
