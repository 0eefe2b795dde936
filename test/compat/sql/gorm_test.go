package sql

import (
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/sqltx"
	"github.com/onlyonce/onlyonce/sqltx/gormtx"
	"github.com/onlyonce/onlyonce/test/sqlsuite"
)

// booking is a model of GORM's.
type booking struct {
	ID      uint
	Message string
	Cents   int
}

// book is the example in the comment of package sqltx: claim, effect and call commit together.
func book(db *gorm.DB, id string, cents int) error {
	return db.Transaction(func(g *gorm.DB) error {
		tx, err := gormtx.Of(g)
		if err != nil {
			return err
		}
		outcome, err := sqltx.Claim(g.Statement.Context, tx, sqlsuite.Key(id, "1"))
		if err != nil || outcome == dedupe.Duplicate {
			return err
		}
		if err := g.Create(&booking{Message: id, Cents: cents}).Error; err != nil {
			return err
		}
		return sqltx.Enqueue(g.Statement.Context, tx, outbox.Call{Sink: "payments", Name: id, Scope: "stock", ID: id})
	})
}

// T1: effects that GORM writes commit with the claim and the call, once, with and without its cache
// of prepared statements.
func TestGORM(t *testing.T) {
	t.Parallel()
	sqlsuite.Each(t, all, func(t *testing.T, db *sql.DB, pool *pgxpool.Pool) {
		for _, prepared := range []bool{false, true} {
			id := fmt.Sprint("m-", prepared)
			g, err := gorm.Open(postgres.New(postgres.Config{Conn: db}), &gorm.Config{PrepareStmt: prepared, Logger: logger.Discard})
			if err != nil {
				t.Fatal(err)
			}
			g = g.WithContext(t.Context())
			for _, none := range []*gorm.DB{g, {}, nil} {
				if tx, err := gormtx.Of(none); tx != nil || !errors.Is(err, dedupe.ErrNoTransaction) {
					t.Errorf("%v outside of Transaction: %v, %v", none, tx, err)
				}
			}
			if err := g.AutoMigrate(&booking{}); err != nil {
				t.Fatal(err)
			}
			if err := g.Exec("truncate bookings").Error; err != nil {
				t.Fatal(err)
			}
			const positive = "alter table bookings drop constraint if exists positive, add constraint positive check (cents > 0)"
			if err := g.Exec(positive).Error; err != nil {
				t.Fatal(err)
			}
			if err := book(g, id, -1); err == nil {
				t.Error("the effect was refused, and nobody was told")
			}
			for range 3 {
				if err := book(g, id, 100); err != nil {
					t.Fatal(err)
				}
			}
			var effects, calls int64
			g.Model(&booking{}).Count(&effects)
			g.Table("onlyonce.outbox_log").Where("name = ?", id).Count(&calls)
			if effects != 1 || calls != 1 {
				t.Errorf("prepared %v: %d effects and %d calls", prepared, effects, calls)
			}
		}
	})
}
