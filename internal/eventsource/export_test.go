package eventsource

import (
	"context"

	"github.com/onlyonce/onlyonce/dedupe"
)

// AppendTo appends events to a given partition, and not to one that their keys choose.
func AppendTo(ctx context.Context, tx dedupe.AnyTx, partition int16, events ...Event) error {
	for i := range events {
		events[i].Partition = &partition
	}
	return Append(ctx, tx, events...)
}
