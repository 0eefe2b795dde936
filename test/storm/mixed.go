package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/test/fleet"
	"github.com/onlyonce/onlyonce/test/rolling"
)

const (
	// blowMigrate migrates to the next version while Postgres is killed, and mixes workers.
	blowMigrate = "migrate"
	migrateAt   = 1.0 / 3 // part of the stream

	migrator = "storm-migration" // how the server shows the migration's session

	// envMigrate makes this program migrate the database that it names, and end.
	envMigrate = "ONLYONCE_STORM_MIGRATE"
)

func migrate(ctx context.Context, address string) error {
	cfg, err := pgx.ParseConfig(address)
	if err != nil {
		return err
	}
	cfg.RuntimeParams["application_name"] = migrator
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	_, err = migrations.Apply(ctx, conn)
	return errors.Join(err, conn.Close(ctx))
}

// withMigration adds the migration to a plan.
func withMigration(plan []fleet.Blow) []fleet.Blow {
	i := slices.IndexFunc(plan, func(b fleet.Blow) bool { return b.At > migrateAt })
	return slices.Insert(plan, i, fleet.Blow{Kind: blowMigrate, At: migrateAt, Wait: time.Second})
}

// buildNext builds this program as the next version has it.
func (s *storm) buildNext(ctx context.Context) (err error) {
	if s.nextDir, err = os.MkdirTemp("", "onlyonce-storm-next-"); err != nil {
		return err
	}
	s.next, err = rolling.Build(ctx, "github.com/onlyonce/onlyonce/test/storm", s.nextDir, true)
	return err
}

// migratesSQL returns one row: whether the migration is in the middle of its transaction.
const migratesSQL = `select exists (select from pg_stat_activity where application_name = $1 and backend_xid is not null)`

// migrateUnderKills runs the migration twice: Postgres is killed when the first has begun to write,
// and a worker during the second, which must end well.
func (s *storm) migrateUnderKills(ctx context.Context, down time.Duration) error {
	migrate := func() error {
		cmd := exec.CommandContext(ctx, s.next)
		cmd.Env = append(os.Environ(), envMigrate+"="+s.forward.Address(s.postgres))
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("migrating: %w: %s", err, out)
		}
		return nil
	}
	ended := make(chan error, 1)
	go func() { ended <- migrate() }()
	err := s.Until(ctx, "the migration to begin", func(ctx context.Context) (begun bool, err error) {
		if len(ended) > 0 {
			return true, nil
		}
		err = s.pool.QueryRow(ctx, migratesSQL, migrator).Scan(&begun)
		return begun, err
	})
	if err = errors.Join(err, s.killPostgres(ctx, down)); err != nil {
		return err
	}
	if cut := <-ended; cut != nil {
		s.Screen.Verbose("cut: %v", cut)
	} else {
		s.Screen.Verbose("the migration had committed before Postgres was killed")
	}
	go func() { ended <- migrate() }()
	if err := errors.Join(s.kill(ctx), <-ended); err != nil {
		return err
	}
	if v, err := migrations.Version(ctx, s.pool); err != nil || v != migrations.Latest+1 {
		return fmt.Errorf("the schema has version %d after the migration, %w", v, err)
	}
	if err := s.pool.QueryRow(ctx, lastEffectSQL).Scan(&s.migratedAt); err != nil {
		return err
	}
	s.Fleet.Mix(s.next)
	return nil
}

// bySideSQL returns one row: how many effects workers of the next version made, and how many the
// others made after the migration. $1 numbers of the former, $2 the last effect before it.
const bySideSQL = `
select count(*) filter (where worker = any ($1)), count(*) filter (where worker <> all ($1) and n > $2)
  from storm.effects`

// judgeMixed adds a breach if only one version has worked after the migration: then nothing was
// tested.
func (s *storm) judgeMixed(ctx context.Context, r *report) error {
	if !s.opts.mixed {
		return nil
	}
	var old int
	if err := s.pool.QueryRow(ctx, bySideSQL, s.Fleet.Mixed(), s.migratedAt).Scan(&r.NextEffects, &old); err != nil {
		return err
	}
	if r.NextEffects == 0 || old == 0 {
		s.Breaches = append(
			s.Breaches,
			fmt.Sprintf("S1 after the migration workers of the next version made %d effects, and those of this one %d", r.NextEffects, old),
		)
	}
	return nil
}
