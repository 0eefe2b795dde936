// Package gormstore has what services of package gormdb call: repositories on a *gorm.DB, a global
// one, and one that a context may carry. It has no handler, so nothing is reported here.
package gormstore

import (
	"context"
	"database/sql"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
)

type Booking struct {
	ID    string
	Cents int
	Lines []Line
}

type Line struct{ SKU string }

// DB is the program's, as many programs have it.
var DB *gorm.DB

// Connect opens it.
func Connect(dsn string) (err error) {
	DB, err = gorm.Open(postgres.Open(dsn), &gorm.Config{})
	return err
}

// Bookings is a repository.
type Bookings struct{ db *gorm.DB }

func NewBookings(db *gorm.DB) *Bookings { return &Bookings{db} }

func (b *Bookings) WithTx(db *gorm.DB) *Bookings { return &Bookings{db: db} }

func (b *Bookings) Save(ctx context.Context, x *Booking) error {
	return b.db.WithContext(ctx).Save(x).Error
}

func (b *Bookings) Find(ctx context.Context, id string) (x Booking, err error) {
	err = b.db.WithContext(ctx).Where("id = ?", id).First(&x).Error
	return x, err
}

// Audit writes by the program's own *gorm.DB.
func Audit(ctx context.Context, id string) error {
	return DB.WithContext(ctx).Exec("insert into audit values (?)", id).Error
}

type key struct{}

// InTx carries a *gorm.DB.
func InTx(ctx context.Context, g *gorm.DB) context.Context { return context.WithValue(ctx, key{}, g) }

// Of returns the one that the context carries, or the program's.
func Of(ctx context.Context) *gorm.DB {
	if g, ok := ctx.Value(key{}).(*gorm.DB); ok {
		return g
	}
	return DB
}

// On returns GORM on a transaction.
func On(tx *sql.Tx) (*gorm.DB, error) {
	return gorm.Open(postgres.New(postgres.Config{Conn: tx}), &gorm.Config{})
}

// Program returns the program's own.
func Program() *gorm.DB { return DB }
