package gormtx_test

import (
	"context"
	"errors"
	"testing"

	"gorm.io/gorm"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/sqltx"
	"github.com/onlyonce/onlyonce/sqltx/gormtx"
)

// T1: a *gorm.DB that is in no transaction has none to claim in. In one, test/compat/sql claims by
// each driver.
func TestT1GORMWithoutATransaction(t *testing.T) {
	t.Parallel()
	for name, none := range map[string]*gorm.DB{
		"nil":        nil,
		"not opened": {},
		"no pool":    {Config: &gorm.Config{}, Statement: &gorm.Statement{}},
	} {
		if tx, err := gormtx.Of(none); tx != nil || !errors.Is(err, dedupe.ErrNoTransaction) {
			t.Errorf("%s: %v, %v", name, tx, err)
		}
	}
}

func Example() {
	type booking struct {
		ID    string
		Cents int
	}
	book := func(ctx context.Context, db *gorm.DB, id string, cents int) error {
		return db.WithContext(ctx).Transaction(func(g *gorm.DB) error {
			tx, err := gormtx.Of(g)
			if err != nil {
				return err
			}
			outcome, err := sqltx.Claim(ctx, tx, dedupe.Key{Scope: "stock", ID: id})
			if err != nil || outcome == dedupe.Duplicate {
				return err
			}
			if err := g.Create(&booking{ID: id, Cents: cents}).Error; err != nil {
				return err
			}
			return sqltx.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "charge", Scope: "stock", ID: id})
		})
	}
	_ = book
}
