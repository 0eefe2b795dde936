package rig

import (
	"context"
	"time"

	"github.com/onlyonce/onlyonce/test/fleet"
)

// KindChange lets a worker join, or leave in order.
const KindChange = "change"

// Usual is how a storm strikes with the blows that most storms have.
type Usual struct {
	Database *Database
	// Lease is for how long the work of a suspended worker is waited for.
	Lease time.Duration
	// More lets more of the stream come, so that there is work when a switchover ends.
	More func()
	// Own strikes with the storm's own blows.
	Own func(ctx context.Context, b fleet.Blow) error
}

// NoBlow is Usual.Own of a storm without blows of its own.
func NoBlow(_ context.Context, b fleet.Blow) error { panic("a blow of no kind: " + b.Kind) }

// StrikeUsual strikes with a blow. It counts the kills that hit a worker in mid-batch.
func (r *Rig) StrikeUsual(ctx context.Context, b fleet.Blow, u Usual) error {
	switch b.Kind {
	case KindKill:
		down, err := r.Kill(ctx, r.Fleet.Shoot(r.Random, false))
		if err == nil && down.InBatch {
			r.KillsInBatch++
		}
		return err
	case KindFreeze:
		return r.Freeze(ctx, u.Lease+u.Lease/4+b.Wait) // until others have its leases
	case KindChange:
		return r.Fleet.Change(r.Random, r.Workers)
	case KindPostgres:
		return KillPostgres(ctx, u.Database.Primary, b.Wait)
	case KindSwitchover:
		u.More()
		return r.SwitchOver(ctx, u.Database.Forward, u.Database.Primary, u.Database.Standby, b.Wait)
	case KindClock:
		return r.StepClock(ctx, b.Wait)
	}
	return u.Own(ctx, b)
}
