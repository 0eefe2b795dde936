package rig

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/test/devenv"
)

// Database is a storm's Postgres: the primary, a standby if the machine can make one, and the
// address that leads to one of them. A storm embeds it.
type Database struct {
	Primary *devenv.Postgres
	Standby *devenv.Postgres // nil: the machine cannot make one
	Forward *Forwarder
	Pool    *pgxpool.Pool // the storm's own, by the address
	Address string        // of Forward
}

// OpenDatabase starts the primary, applies the migrations, and makes the storm's tables.
func (d *Database) OpenDatabase(
	ctx context.Context,
	o devenv.Options,
	connections int32,
	tables func(context.Context, *pgxpool.Conn) error,
) (err error) {
	if d.Primary, err = devenv.StartPostgres(ctx, o); err != nil {
		return err
	}
	if d.Primary.PID() == 0 {
		return fmt.Errorf("a storm kills its server, and can do that only to processes of this machine: do "+
			"without %s=%s, and have PostgreSQL installed",
			devenv.EnvForce, devenv.KindDocker)
	}
	if d.Forward, err = NewForwarder(HostPort(d.Primary)); err != nil {
		return err
	}
	d.Address = d.Forward.Address(d.Primary)
	// What the pool reads is true of the primary alone.
	d.Pool, err = Pool(ctx, d.Address, connections, func(cfg *pgxpool.Config) { cfg.PrepareConn = dedupe.PrepareConn })
	if err != nil {
		return err
	}
	return d.Pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		if _, err := migrations.Apply(ctx, c.Conn()); err != nil {
			return err
		}
		return tables(ctx, c)
	})
}

// AddStandby gives the primary a standby, if the machine can make one. o must not be that of a
// primary whose clock steps.
func (d *Database) AddStandby(ctx context.Context, o devenv.Options) (err error) {
	if d.Primary.Kind != devenv.KindLocal {
		return nil
	}
	o.PostgresEnv = nil
	d.Standby, err = d.Primary.Standby(ctx, Twin, o)
	return err
}

// CloseDatabase stops whatever was started.
func (d *Database) CloseDatabase() error {
	var errs []error
	if d.Pool != nil {
		d.Pool.Close()
	}
	if d.Forward != nil {
		errs = append(errs, d.Forward.Close())
	}
	for _, p := range []*devenv.Postgres{d.Standby, d.Primary} {
		if p != nil {
			errs = append(errs, p.Stop())
		}
	}
	return errors.Join(errs...)
}
