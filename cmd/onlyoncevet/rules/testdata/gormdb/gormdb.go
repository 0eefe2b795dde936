// Package gormdb has handlers that write by GORM, past their transaction and in it.
package gormdb

import (
	"context"
	"database/sql"
	"net/http"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"example.com/faulty/gormstore"
	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/sqltx"
	"github.com/onlyonce/onlyonce/sqltx/gormtx"
)

type booking = gormstore.Booking

// A service with the program's *gorm.DB.
type service struct {
	db       *gorm.DB
	bookings *gormstore.Bookings
	own      *repository
	program  *gorm.DB
}

func newService(db *gorm.DB) *service {
	return &service{db: db, bookings: gormstore.NewBookings(db), own: &repository{db}, program: db}
}

type repository struct{ db *gorm.DB }

func (r *repository) save(ctx context.Context, b *booking) error {
	return r.db.WithContext(ctx).Create(b).Error
}

func (r *repository) on(g *gorm.DB) *repository { return &repository{g} }

// FAULTY.

func (s *service) field(ctx context.Context, _ consumer.Tx, m *consumer.Message) error {
	if err := s.db.WithContext(ctx).Create(&booking{ID: m.ID()}).Error; err != nil { // want `gorm.DB.Create commits outside of the handler's transaction: if the message is handled again, the write is made again. Use a \*gorm.DB on the \*sql.Tx of sqltx.Within instead.`
		return err
	}
	if err := s.db.Model(&booking{}).Where("id = ?", m.ID()).Update("cents", 3).Error; err != nil { // want `gorm.DB.Update commits outside`
		return err
	}
	if err := s.db.Model(&booking{ID: m.ID()}).Association("Lines").Append(&gormstore.Line{}); err != nil { // want `gorm.Association.Append commits outside`
		return err
	}
	if err := s.db.Raw("update bookings set cents = 1 returning id").Scan(new(string)).Error; err != nil { // want `gorm.DB.Raw commits outside`
		return err
	}
	return s.db.Exec("delete from bookings where id = ?", m.ID()).Error // want `gorm.DB.Exec commits outside`
}

func (s *service) ownTransaction(ctx context.Context, _ consumer.Tx, m *consumer.Message) error {
	return s.db.Transaction(func(g *gorm.DB) error { // want `gorm.DB.Transaction commits outside`
		return g.Create(&booking{ID: m.ID()}).Error
	})
}

func (s *service) repositories(ctx context.Context, _ consumer.Tx, m *consumer.Message) error {
	if err := s.own.save(ctx, &booking{ID: m.ID()}); err != nil { // want `this reaches gorm.DB.Create \(gormdb.go:\d+\): it commits outside`
		return err
	}
	return s.bookings.Save(ctx, &booking{ID: m.ID()}) // want `gormstore.Bookings.Save writes by GORM \(gormstore.go:\d+\): it commits outside`
}

func globals(ctx context.Context, _ consumer.Tx, m *consumer.Message) error {
	if err := gormstore.DB.Save(&booking{ID: m.ID()}).Error; err != nil { // want `gorm.DB.Save commits outside`
		return err
	}
	if err := gormstore.Program().Save(&booking{ID: m.ID()}).Error; err != nil { // want `gorm.DB.Save commits outside`
		return err
	}
	return gormstore.Audit(ctx, m.ID()) // want `gormstore.Audit calls gorm.DB.Exec \(gormstore.go:\d+\): it commits outside`
}

// The handler forgets which of the two it has to take.
func made(dsn string) (consumer.HandlerFunc, error) {
	program, err := gorm.Open(postgres.Open(dsn), &gorm.Config{})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		return sqltx.Within(ctx, tx, func(ctx context.Context, sqlTx *sql.Tx) error {
			g, err := gormstore.On(sqlTx)
			if err != nil {
				return err
			}
			if err := g.First(&booking{}, "id = ?", m.ID()).Error; err != nil {
				return err
			}
			return program.Create(&booking{ID: m.ID()}).Error // want `gorm.DB.Create commits outside`
		})
	}, nil
}

// The claim is in the transaction, and the effect is not.
func book(ctx context.Context, db *gorm.DB, id string) error {
	return db.WithContext(ctx).Transaction(func(g *gorm.DB) error {
		tx, err := gormtx.Of(g)
		if err != nil {
			return err
		}
		if outcome, err := sqltx.Claim(ctx, tx, dedupe.Key{Scope: "stock", ID: id}); err != nil || outcome == dedupe.Duplicate {
			return err
		}
		if err := g.Create(&booking{ID: id}).Error; err != nil {
			return err
		}
		return db.Create(&booking{ID: id + "-audit"}).Error // want `gorm.DB.Create commits outside`
	})
}

func (s *service) do(ctx context.Context, db *sql.DB, id string) error {
	_, err := sqltx.Do(ctx, db, dedupe.Key{Scope: "stock", ID: id}, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "insert into bookings values ($1)", id); err != nil {
			return err
		}
		_, err := db.ExecContext(ctx, "insert into audit values ($1)", id) // want `sql.DB.ExecContext commits outside`
		return err
	})
	return err
}

// SOUND.

// Reads past the transaction.
func (s *service) reads(ctx context.Context, _ consumer.Tx, m *consumer.Message) error {
	var n int64
	if _, err := s.bookings.Find(ctx, m.ID()); err != nil {
		return err
	}
	if err := s.db.Raw("select count(*) from bookings where status = 'delete'").Scan(&n).Error; err != nil {
		return err
	}
	return s.db.Model(&booking{}).Where("id = ?", m.ID()).Count(&n).Error
}

// GORM on the handler's transaction: opened on it, by a function of the program, and a session of
// the program's own.
func (s *service) within(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	return sqltx.Within(ctx, tx, func(ctx context.Context, sqlTx *sql.Tx) error {
		g, err := gorm.Open(postgres.New(postgres.Config{Conn: sqlTx}), &gorm.Config{})
		if err != nil {
			return err
		}
		if err := g.WithContext(ctx).Create(&booking{ID: m.ID()}).Error; err != nil {
			return err
		}
		if err := s.own.on(g).save(ctx, &booking{ID: m.ID()}); err != nil {
			return err
		}
		other, err := gormstore.On(sqlTx)
		if err != nil {
			return err
		}
		if err := s.bookings.WithTx(other).Save(ctx, &booking{ID: m.ID()}); err != nil {
			return err
		}
		if err := gormstore.NewBookings(other).Save(ctx, &booking{ID: m.ID()}); err != nil {
			return err
		}
		return other.Transaction(func(g *gorm.DB) error { return g.Delete(&booking{ID: m.ID()}).Error })
	})
}

func (s *service) session(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	return sqltx.Within(ctx, tx, func(ctx context.Context, sqlTx *sql.Tx) error {
		g := s.program.Session(&gorm.Session{NewDB: true, Context: ctx})
		g.Statement.ConnPool = sqlTx
		return g.Create(&booking{ID: m.ID()}).Error
	})
}

// A context may carry the transaction's.
func (s *service) carried(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	return sqltx.Within(ctx, tx, func(ctx context.Context, sqlTx *sql.Tx) error {
		g, err := gormstore.On(sqlTx)
		if err != nil {
			return err
		}
		return s.saved(gormstore.InTx(ctx, g), m.ID())
	})
}

func (s *service) saved(ctx context.Context, id string) error {
	if err := gormstore.Of(ctx).Create(&booking{ID: id}).Error; err != nil {
		return err
	}
	return s.conn(ctx).Create(&booking{ID: id}).Error
}

type connKey struct{}

func (s *service) conn(ctx context.Context) *gorm.DB {
	if g, ok := ctx.Value(connKey{}).(*gorm.DB); ok {
		return g
	}
	return s.db
}

// place takes the transaction too, for a call. Its repository may be on it: what makes it is in
// another package.
type place struct{ db *gorm.DB }

func NewPlace(db *gorm.DB) *place { return &place{db} }

func (p *place) Place(ctx context.Context, _ consumer.Tx, id string) error {
	return p.db.Create(&booking{ID: id}).Error
}

// An own loop with Begin: what comes before and after the transaction is the program's.
func loop(ctx context.Context, db *gorm.DB, id string) error {
	g := db.WithContext(ctx).Begin()
	defer g.Rollback()
	tx, err := gormtx.Of(g)
	if err != nil {
		return err
	}
	if _, err := sqltx.Claim(ctx, tx, dedupe.Key{Scope: "stock", ID: id}); err != nil {
		return err
	}
	if err := g.Create(&booking{ID: id}).Error; err != nil {
		return err
	}
	return g.Commit().Error
}

// A handler of HTTP.
type routes struct{ db *gorm.DB }

func (h *routes) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	tx, err := idempotency.TxOf(r)
	if err != nil {
		return
	}
	_ = sqltx.Within(r.Context(), tx, func(_ context.Context, sqlTx *sql.Tx) error {
		g, err := gormstore.On(sqlTx)
		if err != nil {
			return err
		}
		return gormstore.NewBookings(g).Save(r.Context(), &booking{})
	})
}
