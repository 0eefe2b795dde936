package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// offsetsAt asks brokers for offsets by time. An empty list: there are none to ask. An empty login:
// they need neither TLS nor a login.
func (a *app) offsetsAt(list, login string) (operate.OffsetsAt, error) {
	if list == "" {
		return nil, nil
	}
	var file *string
	if login != "" {
		file = &login
	}
	client, err := a.brokers(strings.Split(list, ","), file)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, topic string, partitions []int32, at time.Time) (string, map[int32]int64, error) {
		cluster, offsets, err := kafkaOffsetsAt(ctx, client, topic, partitions, at)
		if err != nil {
			err = fmt.Errorf("-brokers: reading from %s the offsets of %s at %s: "+
				"%w", list, topic, show.Instant(at), err)
		}
		return cluster, offsets, err
	}, nil
}

// kafkaOffsetsAt asks in one request for all partitions.
func kafkaOffsetsAt(
	ctx context.Context,
	client *kafka.Client,
	topic string,
	partitions []int32,
	at time.Time,
) (cluster string, offsets map[int32]int64, err error) {
	meta, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		return "", nil, brokerRefusal(ctx, client, err)
	}
	var asked []kafka.OffsetRequest
	for _, nr := range partitions {
		asked = append(asked, kafka.TimeOffsetOf(int(nr), at))
	}
	answer, err := client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{
		topic: asked,
	}})
	if err != nil {
		return "", nil, err
	}
	offsets = map[int32]int64{}
	for _, p := range answer.Topics[topic] {
		if p.Error != nil {
			return "", nil, fmt.Errorf("partition %d: %w", p.Partition, p.Error)
		}
		offsets[int32(p.Partition)] = -1
		for offset := range p.Offsets {
			offsets[int32(p.Partition)] = offset
		}
	}
	for _, nr := range partitions {
		if _, is := offsets[nr]; !is {
			return "", nil, fmt.Errorf("partition %d: the brokers did not answer for it", nr)
		}
	}
	return meta.ClusterID, offsets, nil
}

// followEvery is how often a replay that is followed is looked at.
const followEvery = time.Second

// follow says how far a replay is, until all its partitions have ended it. The replay does not end
// with ctx.
func (a *app) follow(ctx context.Context, db ops.DB, d *ops.Replayed) error {
	parts := d.Partitions
	if parts == nil {
		parts = []ops.Replayed{*d}
	}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for last := ""; ; {
		cursors, err := reports.Look(ctx, db, func(tx pgx.Tx) ([]ops.Cursor, error) {
			return reports.Cursors[ops.Cursor](ctx, tx, reports.CursorFilter{Scope: d.Scope, Topic: d.Topic})
		})
		if err != nil {
			return err
		}
		f := followed(parts, d.Replay, cursors)
		if line := f.String(); line != last {
			a.say("%s", line)
			if err := a.out.Flush(); err != nil {
				return err
			}
			last = line
		}
		if f.underWay == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			a.say("The replay goes on. `onlyonce cursor show` shows how far it is.")
			return nil
		}
	}
}

// progress is how far a replay is.
type progress struct {
	replay        int32
	done, offsets int64
	underWay, of  int
}

// followed compares the ranges with where their cursors are. A cursor that is no longer in this
// replay has ended it, or an operator has.
func followed(parts []ops.Replayed, replay int32, cursors []ops.Cursor) progress {
	f := progress{replay: replay, of: len(parts)}
	for i := range parts {
		p := &parts[i]
		f.offsets += p.To - p.From
		left := int64(0)
		for _, c := range cursors {
			samePartition := c.Topic == p.Topic && c.Partition == p.Partition
			if samePartition && c.Replay == replay && c.ReplayUntil != nil {
				f.underWay++
				left = p.To - c.Position
			}
		}
		f.done += p.To - p.From - left
	}
	return f
}

func (f progress) String() string {
	if f.underWay == 0 {
		return fmt.Sprintf("Replay %d has ended: %d offsets in %s.",
			f.replay, f.offsets, show.Count(int64(f.of), "partition"))
	}
	return fmt.Sprintf("Replay %d: %d of %d offsets, %d of %s under way.",
		f.replay, f.done, f.offsets, f.underWay, show.Count(int64(f.of), "partition"))
}
