package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/onlyonce/onlyonce/internal/eventsource"
	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// findOffsets sets the offsets of a replay that is given by times. If there is no such cursor, it
// leaves that to the replay to say.
func findOffsets(ctx context.Context, db ops.DB, in *operate.Replaying) error {
	cursors, err := reports.Look(ctx, db, func(tx pgx.Tx) ([]ops.Cursor, error) {
		return reports.Cursors[ops.Cursor](ctx, tx, reports.CursorFilter{Scope: in.Scope, Topic: in.Topic, Partition: &in.Partition})
	})
	if err != nil || len(cursors) == 0 {
		return err
	}
	cur := &cursors[0]
	offsetAt := func(t time.Time) (int64, error) { return kafkaOffsetAt(ctx, in, cur, t) }
	switch {
	case cur.ClusterID != nil && *cur.ClusterID == eventsource.ClusterID:
		offsetAt = func(t time.Time) (int64, error) {
			return reports.Look(ctx, db, func(tx pgx.Tx) (int64, error) {
				return eventsource.OffsetAt(ctx, tx, in.Topic, in.Partition, t)
			})
		}
	case in.Brokers == "":
		return usagef("-since, -until: no brokers given: add -brokers host:9092, or set %s", envBrokers)
	}
	if !in.Since.IsZero() {
		if in.From, err = offsetAt(in.Since.Time); err != nil {
			return err
		}
		if in.From < 0 {
			return &refusal{fmt.Sprintf("-since: no message of %s/%d is from %s or later, and nothing was done", in.Topic, in.Partition, show.Instant(in.Since.Time))}
		}
	}
	if in.Until.IsZero() {
		return nil
	}
	to, err := offsetAt(in.Until.Time)
	switch {
	case err != nil:
		return err
	case to >= 0 && to <= in.From:
		return &refusal{fmt.Sprintf("-until: no message of %s/%d lies in this time, and nothing was done: the first one of %s or later is at offset %d",
			in.Topic, in.Partition, show.Instant(in.Until.Time), to)}
	case to >= 0 && to < cur.Position: // else the range ends at the position
		in.To = to
	}
	return nil
}

// kafkaOffsetAt asks the brokers for the offset of the first message that is as young, -1 if there
// is none.
func kafkaOffsetAt(ctx context.Context, in *operate.Replaying, cur *ops.Cursor, t time.Time) (int64, error) {
	brokers := strings.Split(in.Brokers, ",")
	client := &kafka.Client{Addr: kafka.TCP(brokers...), Timeout: connectTimeout}
	failed := func(err error) error {
		return fmt.Errorf("-brokers: asking %s for the offset of %s/%d at %s: %w", in.Brokers, in.Topic, in.Partition, show.Instant(t), err)
	}
	meta, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{in.Topic}})
	switch {
	case err != nil:
		return 0, failed(err)
	case cur.ClusterID != nil && *cur.ClusterID != meta.ClusterID:
		return 0, &refusal{fmt.Sprintf("-brokers: %s are of cluster %s, the cursor is one of cluster %s, and nothing was done", in.Brokers, meta.ClusterID, *cur.ClusterID)}
	}
	answer, err := client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{
		in.Topic: {kafka.TimeOffsetOf(int(in.Partition), t)}}})
	if err != nil {
		return 0, failed(err)
	}
	for _, p := range answer.Topics[in.Topic] {
		if p.Partition != int(in.Partition) {
			continue
		}
		if p.Error != nil {
			return 0, failed(p.Error)
		}
		for offset := range p.Offsets {
			return offset, nil
		}
	}
	return -1, nil
}
