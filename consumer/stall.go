package consumer

import (
	"strconv"
	"time"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/show"
)

// stallAfter is how long a partition waits for an open Kafka transaction before that is logged.
// Producers end theirs within seconds. If a producer has died, brokers end its transaction after
// its transaction.timeout.ms, a minute by default.
const stallAfter = time.Minute

// stall describes a partition whose next offset is the last stable one, while there are records
// above it. They belong to a transaction that is still open, or were written after it began, and no
// fetch returns them before it ends. A transaction that no producer and no coordinator knows any
// more (a hanging one) ends only when an operator aborts it.
type stall struct {
	offset int64     // the last stable offset
	since  time.Time // when this process first found it there
	logged bool      // it was logged
}

// after returns the state after a fetch from an offset, which returned at a time. It is nil if the
// partition does not wait, or no longer.
func (s *stall) after(from int64, got fetched, at time.Time) *stall {
	switch {
	case got.Next > from || from != got.LastStable || got.HighWatermark <= from:
		return nil
	case s == nil || s.offset != from:
		return &stall{offset: from, since: at}
	case !s.logged && at.Sub(s.since) >= stallAfter:
		return &stall{s.offset, s.since, true}
	}
	return s
}

// reportStall records what a fetch says about the last stable offset. If a partition waits for
// long, it logs that once, and once more when the partition continues.
func (c *Consumer) reportStall(id source.Identity, state *partitionState, from int64, got fetched) {
	was := state.stall.Load()
	is := was.after(from, got, time.Now())
	if is == was {
		return
	}
	state.stall.Store(is)
	switch {
	case is != nil && is.logged:
		c.cfg.Logger.Warn("onlyonce: partition waits for an open Kafka transaction: nothing behind the last stable offset can be read before it ends; if it does not end by itself, find its producer",
			"scope", c.cfg.Scope, "topic", id.Topic, "partition", id.Partition, "last_stable_offset", is.offset, "high_watermark", got.HighWatermark, "since", is.since,
			"find", "kafka-transactions.sh --bootstrap-server BROKERS describe-producers --topic "+show.Quote(id.Topic)+" --partition "+strconv.Itoa(int(id.Partition)))
	case was != nil && was.logged:
		c.cfg.Logger.Info("onlyonce: partition goes on: the Kafka transaction that it waited for has ended",
			"scope", c.cfg.Scope, "topic", id.Topic, "partition", id.Partition, "last_stable_offset", got.LastStable, "since", was.since)
	}
}
