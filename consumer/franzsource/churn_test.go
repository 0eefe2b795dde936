package franzsource_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/franzsource"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// Members come, go, and lose partitions to another owner in the database, at random. No partition
// is ever held by two members. A holder commits until its context ends and while it drains. In the
// end each partition has a holder.
func TestChurn(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		const partitions = 7
		topic := kafkatest.Topic(t, brokers, partitions, nil)
		cfg := quick(brokers, topic)
		cfg.SessionTimeout = 20 * time.Second
		cfg.RebalanceTimeout = 20 * time.Second
		rnd := rand.New(rand.NewPCG(1, 1))
		var mu sync.Mutex
		holder := map[int32]int{} // 0: none
		lose := map[int32]bool{}  // whose next commit reports a loss
		own := func(id int) func(context.Context, source.Partition[*consumer.Message]) error {
			return func(ctx context.Context, p source.Partition[*consumer.Message]) error {
				is, err := p.Identity(ctx)
				if err != nil {
					if ctx.Err() != nil {
						return nil
					}
					return err
				}
				mu.Lock()
				if other := holder[is.Partition]; other != 0 {
					t.Errorf("partition %d goes to member %d, and member %d has not let go", is.Partition, id, other)
				}
				holder[is.Partition] = id
				mu.Unlock()
				defer func() {
					mu.Lock()
					defer mu.Unlock()
					holder[is.Partition] = 0
				}()
				for n := int64(1); ; n++ {
					last := ctx.Err() != nil
					if err := p.Commit(context.WithoutCancel(ctx), n, fmt.Sprint(id)); err != nil {
						t.Errorf("member %d, partition %d, commit %d, draining %v: %v", id, is.Partition, n, last, err)
						return err
					}
					if last {
						return nil
					}
					mu.Lock()
					lost := lose[is.Partition]
					delete(lose, is.Partition)
					mu.Unlock()
					if lost {
						return source.ErrOwnershipLost
					}
				}
			}
		}
		type running struct {
			stop context.CancelFunc
			done chan error
		}
		var members []running
		start := func(id int) {
			ctx, stop := context.WithCancel(context.Background())
			r := running{stop, make(chan error, 1)}
			go func() { r.done <- franzsource.New(cfg).Run(ctx, own(id)) }()
			members = append(members, r)
		}
		end := func(i int) {
			members[i].stop()
			select {
			case err := <-members[i].done:
				if err != nil {
					t.Errorf("Run: %v", err)
				}
			case <-time.After(patience):
				pgtest.GaveUp(t, patience, "the end of Run")
			}
			members = append(members[:i], members[i+1:]...)
		}
		all := func() bool {
			mu.Lock()
			defer mu.Unlock()
			n := 0
			for _, id := range holder {
				if id != 0 {
					n++
				}
			}
			return n == partitions
		}
		defer func() {
			for len(members) > 0 {
				end(0)
			}
		}()
		start(1)
		for id := 2; id < 14; id++ {
			switch n := rnd.IntN(3); {
			case n == 0 && len(members) > 1:
				end(rnd.IntN(len(members)))
			case n == 1:
				mu.Lock()
				lose[int32(rnd.IntN(partitions))] = true
				mu.Unlock()
			default:
				start(id)
			}
			if rnd.IntN(2) == 0 { // or in the middle of a rebalance
				eventually(t, "all partitions to be somebody's", all)
			}
		}
		eventually(t, "all partitions to be somebody's", all)
	})
}
