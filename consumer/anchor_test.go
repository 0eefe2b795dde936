package consumer_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
)

// deleting is a source whose log is cut by retention right before a fetch.
type deleting struct {
	consumer.Source
	before func(from int64)
}

func (d deleting) Run(ctx context.Context, own func(context.Context, source.Partition[*consumer.Message]) error) error {
	return d.Source.Run(ctx, func(ctx context.Context, p source.Partition[*consumer.Message]) error {
		return own(ctx, deletingPartition{p, d.before})
	})
}

type deletingPartition struct {
	source.Partition[*consumer.Message]
	before func(from int64)
}

func (d deletingPartition) Fetch(ctx context.Context, from int64, most int) (source.Fetched[*consumer.Message], error) {
	d.before(from)
	return d.Partition.Fetch(ctx, from, most)
}

// F5: retention passes the anchor after the consumer has read the log's bounds and before it reads
// the anchor. That is no sign of another log.
func TestF5AnchorDeletedDuringTheTakeOver(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 10)
	stop := r.start(queued, testConfig())
	r.reaches(0, 10)
	stop()
	var deleted atomic.Bool
	src := deleting{r.src, func(from int64) {
		if from == 9 { // the anchor
			deleted.Store(true)
			r.log.DeleteBefore(0, 10)
		}
	}}
	r.log.Append(0, "next", id("next"))
	stop = r.startOn(src, r.pool, queued, testConfig())
	r.reaches(0, 11)
	stop()
	r.once(append(values, "next")...)
	if !deleted.Load() || len(r.halts) > 0 {
		t.Errorf("deleted: %v, halts: %v", deleted.Load(), r.halts)
	}
}
