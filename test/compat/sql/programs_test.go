package sql

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/rig/kittable"
	"github.com/onlyonce/onlyonce/onlyoncetest"
	"github.com/onlyonce/onlyonce/sqltx"
)

// gormOf returns GORM on a connection or a transaction.
func gormOf(conn gorm.ConnPool) (*gorm.DB, error) {
	return gorm.Open(postgres.New(postgres.Config{Conn: conn}), &gorm.Config{Logger: logger.Discard, DisableAutomaticPing: true})
}

// booked is a case of a handler that writes bookings with GORM. If past is set, it takes the
// program's *gorm.DB and not the transaction's, which is a fault.
func booked(past bool) onlyoncetest.Case {
	return onlyoncetest.Case{
		Migrate: func(ctx context.Context, pool *pgxpool.Pool) error {
			_, err := pool.Exec(ctx, `create table bookings (id bigserial primary key, message text not null, cents bigint not null)`)
			return err
		},
		Messages: []onlyoncetest.Message{{ID: "m-0", Value: "5"}, {ID: "m-1", Value: "7"}},
		Start: func(p *onlyoncetest.Process) (onlyoncetest.Runner, error) {
			program, err := gormOf(stdlib.OpenDBFromPool(p.Pool))
			if err != nil {
				return nil, err
			}
			handler := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				return sqltx.Within(ctx, tx, func(ctx context.Context, sqlTx *sql.Tx) error {
					g, err := gormOf(sqlTx)
					if err != nil {
						return err
					}
					if past {
						g = program
					}
					return g.WithContext(ctx).Create(&booking{Message: m.ID(), Cents: len(m.Value)}).Error
				})
			}
			return consumer.New(p.Pool, p.Source(), consumer.HandlerFunc(handler), p.Tune(consumer.Config{}))
		},
	}
}

// accused keeps what Run says of a faulty program.
type accused struct {
	testing.TB
	text string
}

func (a *accused) Errorf(format string, args ...any) { a.text += fmt.Sprintf(format, args...) }

// pastTx is a verdict.
const pastTx = "written outside of the transaction"

// onlyoncetest catches GORM on the pool, and does not accuse GORM on the transaction. The rows are
// in the table of `make kit`.
func TestGORMPrograms(t *testing.T) {
	t.Parallel()
	for _, row := range []kittable.Row{
		{Name: "GORM on the pool", Faulty: true, First: pastTx, Want: []string{pastTx}},
		{Name: "GORM on the transaction"},
	} {
		t.Run(row.Name, func(t *testing.T) {
			t.Parallel()
			c := booked(row.Faulty)
			c.Budget = 3 * time.Second
			if row.Faulty {
				c.Budget = 2 * time.Minute // the first verdict ends it
			}
			x := &accused{TB: t}
			rep := onlyoncetest.Run(x, c)
			row.Seconds = rep.Took.Seconds()
			row.Points = rep.Points
			row.Singles = rep.Singles
			row.Played = rep.Singles - rep.Left
			if rep.Verdict != nil {
				row.Got = rep.Verdict.Kind
			}
			if err := kittable.Keep(row); err != nil {
				t.Error(err)
			}
			t.Logf("%s %s", rep, x.text)
			if !row.Right() {
				t.Errorf("verdict %q, want %q", row.Got, row.Want)
			}
		})
	}
}
