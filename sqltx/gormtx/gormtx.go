// Package gormtx gives package sqltx the transaction that a *gorm.DB is in. It is a module of its
// own, so that only programs with GORM require GORM.
package gormtx

import (
	"fmt"

	"gorm.io/gorm"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/sqltx"
)

// Of returns the transaction of a *gorm.DB, for [sqltx.Claim] and [sqltx.Enqueue]:
//
//	err := db.Transaction(func(g *gorm.DB) error {
//		tx, err := gormtx.Of(g)
//		if err != nil {
//			return err
//		}
//		outcome, err := sqltx.Claim(ctx, tx, key)
//		...
//
// The transaction is GORM's: the caller of [sqltx.Claim] neither commits it nor rolls it back.
// Outside of Transaction and Begin, Of returns an error that wraps [dedupe.ErrNoTransaction]. Like
// a *gorm.DB in a transaction, the result belongs to one goroutine at a time.
func Of(g *gorm.DB) (sqltx.StdTx, error) {
	if g == nil || g.Config == nil || g.Statement == nil {
		return nil, fmt.Errorf("gormtx: %w: the *gorm.DB was not opened", dedupe.ErrNoTransaction)
	}
	tx, is := g.Statement.ConnPool.(sqltx.StdTx)
	if !is {
		return nil, fmt.Errorf("gormtx: %w: call it in db.Transaction, with the *gorm.DB that the function gets",
			dedupe.ErrNoTransaction)
	}
	return tx, nil
}
