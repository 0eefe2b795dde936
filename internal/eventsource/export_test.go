package eventsource

import (
	"context"

	"github.com/onlyonce/onlyonce/dedupe"
)

// AppendTo appends events to a partition that is not chosen by their keys.
func AppendTo(ctx context.Context, tx dedupe.Tx, partition int16, events ...Event) error {
	for i := range events {
		events[i].partition = &partition
	}
	return Append(ctx, tx, events...)
}
