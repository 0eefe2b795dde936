package quickstart

import (
	"context"
	"errors"
	"fmt"

	"github.com/onlyonce/onlyonce/test/fleet"
	"github.com/onlyonce/onlyonce/test/screen"
)

// partsPerKill is how many parts of the stream a kill may use. A SIGKILL between two batches does
// not count, and is tried again. Two parts are for the rebalance, and at least one is left for the
// end.
const partsPerKill = 3

// next produces the next part of the stream; false: only the last one is left.
func (d *demo) next(ctx context.Context) (bool, error) {
	size := max(len(d.stream.records)/(partsPerKill*d.opts.kills+3), 1)
	if len(d.rest) <= size {
		return false, nil
	}
	part := d.rest[:size]
	d.rest = d.rest[size:]
	return true, d.produce(ctx, part)
}

func (d *demo) firstKills(ctx context.Context) error { return d.killUntil(ctx, (d.opts.kills+1)/2) }

func (d *demo) otherKills(ctx context.Context) error { return d.killUntil(ctx, d.opts.kills) }

// killUntil kills workers until the given number of kills has hit one in the middle of a batch.
// Each victim is replaced at once, and the next kill waits until every partition has an owner
// again.
func (d *demo) killUntil(ctx context.Context, wanted int) error {
	missed := false
	for d.inBatch < wanted {
		shot := d.fleet.Shoot(d.random, missed)
		down, err := d.produceUntilHit(ctx, shot)
		if err != nil {
			return err
		}
		d.kills++
		missed = !down.InBatch
		where := "between two batches: does not count"
		if down.InBatch {
			d.inBatch++
			where = fmt.Sprintf("in mid-batch at partition %d, offset %d", down.Partition, down.Offset)
		}
		mark := d.fleet.Mark()
		p, err := d.fleet.Start()
		if err != nil {
			return err
		}
		d.showKill("kill %d of %d: worker %d (pid %d) got SIGKILL %s; worker %d replaces it",
			d.inBatch, d.opts.kills, down.Worker, down.PID, where, p.Number)
		if err := d.waitOwned(ctx, mark); err != nil {
			return err
		}
	}
	return nil
}

// manyKills is the number of kills from which on they are no longer printed one by one.
const manyKills = 20

func (d *demo) showKill(format string, args ...any) {
	if d.opts.kills > manyKills {
		d.screen.Verbose(format, args...)
		return
	}
	d.screen.Step(format, args...)
}

// produceUntilHit produces, part by part, until there was a batch to be hit.
func (d *demo) produceUntilHit(ctx context.Context, s *fleet.Shot) (down *fleet.ShotDown, err error) {
	for down == nil {
		more, err := d.next(ctx)
		if err != nil {
			return nil, err
		}
		if !more {
			return nil, fmt.Errorf("%d of %d kills hit a batch in progress, and the stream is at its end: use more -messages",
				d.inBatch, d.opts.kills)
		}
		err = d.wait(ctx, "a batch in progress, to be hit by a kill", func(ctx context.Context) (bool, string, error) {
			select {
			case down = <-s.Hit:
				return true, "", nil
			default:
			}
			lag, err := d.lag(ctx)
			if err != nil {
				return false, "", err
			}
			return lag == 0, fmt.Sprint(lag), nil
		})
		if err != nil {
			return nil, err
		}
	}
	return down, nil
}

// rebalance lets one more worker join in the middle of the stream, and leave again in order.
func (d *demo) rebalance(ctx context.Context) error {
	if _, err := d.next(ctx); err != nil {
		return err
	}
	mark := d.fleet.Mark()
	p, err := d.fleet.Start()
	if err != nil {
		return err
	}
	if err := d.waitOwned(ctx, mark); err != nil {
		return err
	}
	partitions, _ := d.fleet.Owns(p)
	d.screen.Step("rebalance: worker %d joins, and gets %d of the partitions", p.Number, partitions)
	if _, err := d.next(ctx); err != nil {
		return err
	}
	mark = d.fleet.Mark()
	if p = d.fleet.Newest(); p == nil { // another one, if that one was killed
		return errors.New("no worker is left")
	}
	d.fleet.Leave(p)
	if err := d.waitOwned(ctx, mark); err != nil {
		return err
	}
	d.screen.Step("rebalance: worker %d leaves", p.Number)
	return nil
}

// finishStream produces what is left of the stream, and waits until everything is handled and paid.
func (d *demo) finishStream(ctx context.Context) error {
	rest := d.rest
	d.rest = nil
	if err := d.produce(ctx, rest); err != nil {
		return err
	}
	if err := d.waitHandled(ctx); err != nil {
		return err
	}
	if err := d.waitPaid(ctx); err != nil {
		return err
	}
	d.screen.Step("stream: %s records are handled, and their calls are made", screen.Count(d.written.Load()))
	return nil
}

// resetOffsets sets the group's committed offsets back to the beginning while the group has no
// member, which an operator may do by mistake. Kafka then delivers every record again. The cursors
// in Postgres decide, and they do not move.
func (d *demo) resetOffsets(ctx context.Context) error {
	if err := d.fleet.Stop(stopTimeout); err != nil {
		return err
	}
	before, err := d.effects(ctx)
	if err != nil {
		return err
	}
	k := d.servers.Kafka
	if err := k.Reset(ctx, d.run, d.run, d.opts.partitions); err != nil {
		return err
	}
	at, err := d.positions(ctx)
	if err != nil {
		return err
	}
	for _, offset := range at {
		d.rewound += offset
	}
	d.screen.Step("reset: the group's committed offsets are at 0; Kafka would deliver %s records again", screen.Count(d.rewound))
	if err := d.startWorkers(ctx, "reset"); err != nil {
		return err
	}
	// As its first act, each worker commits the offset of its cursor.
	err = d.wait(ctx, "the group's committed offsets to be where the cursors are", func(ctx context.Context) (bool, string, error) {
		committed, err := k.Committed(ctx, d.run, d.run, d.opts.partitions)
		if err != nil {
			return false, "", err
		}
		n := 0
		for p, offset := range committed {
			if offset == at[int32(p)] || (offset <= 0 && at[int32(p)] == 0) {
				n++
			}
		}
		return n == d.opts.partitions, fmt.Sprint(n), nil
	})
	if err != nil {
		return err
	}
	after, err := d.effects(ctx)
	if err != nil {
		return err
	}
	d.screen.Step("reset: the workers went on from Postgres; effects before %s, after %s",
		screen.Count(int64(before)), screen.Count(int64(after)))
	return nil
}

// produceAgain produces the whole stream a second time, under the same ids, like a producer that
// has lost its own state.
func (d *demo) produceAgain(ctx context.Context) error {
	before := d.written.Load()
	if err := d.produce(ctx, d.stream.records); err != nil {
		return err
	}
	d.second = int(d.written.Load() - before)
	d.screen.Step("second production: all %s records once more, under the same ids", screen.Count(int64(d.second)))
	if err := d.waitHandled(ctx); err != nil {
		return err
	}
	return d.waitPaid(ctx)
}
