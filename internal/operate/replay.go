package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/eventsource"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// OffsetsAt asks Kafka for the offset of the first message of a time or later in each of some
// partitions of a topic, -1 if there is none, and for the id of the cluster.
type OffsetsAt func(
	ctx context.Context,
	topic string,
	partitions []int32,
	at time.Time,
) (cluster string, offsets map[int32]int64, err error)

// Replaying is the input of "replay". Offsets of Since and Until are found when it is worked out.
type Replaying struct {
	ops.ReplayInput
	Since   moment
	Until   moment
	Brokers string
	Login   string
	Follow  bool

	Kafka OffsetsAt // the program or the console sets it. Nil: no brokers are known

	without *int // partitions in which nothing that was handled lies in this time
}

func replayFields(in *Replaying) []Field {
	return append(cursorFields(&in.CursorName),
		At(&in.From, "from", "OFFSET", "the first OFFSET that is handled again").
			asked("From offset", "The first that is handled again."),
		At(&in.To, "to", "OFFSET",
			"the first OFFSET that is not (default: the position, which is the most)").From(1).
			asked("To offset", "The first that is not. Empty: the position."),
		Option(&in.Resend, "resend", "give calls that are enqueued new keys: remotes apply them again").
			asked("Send the calls of these messages again too, under new keys: remotes apply them again", ""),
		At(&in.Since, "since", "TIME",
			"instead of -from: the first message of TIME or later, by the messages' timestamps: "+
				"2026-03-01T12:00:00Z, or 36h for that long ago").
			asked("Since",
				"Instead of an offset: the first message of that time or later, for example "+
					"2026-03-01T12:00:00Z, or 36h for that long ago."),
		At(&in.Until, "until", "TIME", "instead of -to: up to the first message of TIME or later").
			asked("Until", "Instead of an offset: up to the first message of that time or later."),
		At(&in.Brokers, "brokers", "LIST",
			"with -since and -until: Kafka's brokers, LIST is host:port,... (default: "+
				"$ONLYONCE_KAFKA_BROKERS); not for a topic of webhooks"),
		At(&in.Login, "broker-login", "FILE",
			"with -since and -until: TLS and login of the brokers, a FILE in JSON, as of "+
				"onlyonce doctor"),
		Option(&in.Follow, "follow", "say how far the replay is, until it has ended"),
	)
}

// ByTime reports whether offsets are to be found by their time.
func (in *Replaying) ByTime() bool { return !in.Since.IsZero() || !in.Until.IsZero() }

// several reports whether a whole topic or scope is meant.
func (in *Replaying) several() bool { return in.Topic == "" || in.Partition < 0 }

// Check returns an error of kind ErrInvalid unless the fields go together.
func (in *Replaying) Check() error {
	invalid := func(text string) error { return &ops.Error{Kind: ops.ErrInvalid, Reason: text} }
	switch {
	case !in.Since.IsZero() && in.From != 0:
		return invalid("`Since`: not with `From`")
	case !in.Until.IsZero() && in.To != 0:
		return invalid("`Until`: not with `To`")
	case !in.Until.IsZero() && !in.Since.Before(in.Until.Time):
		return invalid("`Until`: must be after `Since`")
	case in.Brokers != "" && !in.ByTime():
		return invalid("`Brokers`: only with `Since` or `Until`")
	case in.Login != "" && !in.ByTime():
		return invalid("-broker-login: only with `Since` or `Until`")
	case in.several() && in.Since.IsZero():
		return invalid("`Partition`: must be there, unless `Since` says from which time on a whole topic or " +
			"scope is replayed")
	case in.several() && in.To != 0:
		return invalid("`To`: only with `Partition`")
	case in.several() && in.Scope == "":
		return invalid("the scope must not be empty")
	case in.several():
		return nil // what is left is checked with the ranges
	}
	return in.ReplayInput.Check()
}

// moment is a time, also as a duration before now.
type moment struct{ time.Time }

// Set parses RFC 3339, or a duration.
func (m *moment) Set(text string) (err error) {
	if ago, is := ParseDays(text); is == nil {
		m.Time = time.Now().Add(-ago)
		return nil
	}
	if m.Time, err = time.Parse(time.RFC3339, text); err != nil || m.UnixMilli() <= 0 {
		return errors.New("must be a time such as 2026-03-01T12:00:00Z, or a duration before now such as 36h or 2d")
	}
	return nil
}

// replaying finds the offsets of times first, unless a person has agreed to some.
func replaying(ctx context.Context, db ops.DB, by ops.By, in Replaying) (*ops.Replayed, error) {
	switch {
	case !in.ByTime():
	case in.Shown != nil:
		in.agreed()
	default:
		if err := in.find(ctx, db); err != nil {
			return nil, err
		}
	}
	return ops.Replay(ctx, db, by, in.ReplayInput)
}

// agreed takes the offsets over that were shown: the same time may lead to others by now, because
// messages come, and a time such as 36h is one before now.
func (in *Replaying) agreed() {
	if !in.several() {
		in.From = in.Shown.From
		in.To = in.Shown.To
		return
	}
	in.Partition = -1
	in.Ranges = nil
	for i := range in.Shown.Partitions {
		p := &in.Shown.Partitions[i]
		in.Ranges = append(in.Ranges, ops.ReplayRange{Topic: p.Topic, Partition: p.Partition, From: p.From, To: p.To})
	}
}

// find sets the offsets. If there is no such cursor, it leaves that to the replay to say.
func (in *Replaying) find(ctx context.Context, db ops.DB) error {
	filter := reports.CursorFilter{Scope: in.Scope, Topic: in.Topic}
	if !in.several() {
		filter.Partition = &in.Partition
	}
	cursors, err := reports.Look(ctx, db, func(tx pgx.Tx) ([]ops.Cursor, error) {
		return reports.Cursors[ops.Cursor](ctx, tx, filter)
	})
	if err != nil {
		return err
	}
	if in.several() {
		cursors = slices.DeleteFunc(cursors, func(c ops.Cursor) bool { return c.RetiredAt != nil })
		if len(cursors) == 0 {
			return &ops.Error{
				Kind:   ops.ErrNotFound,
				Reason: fmt.Sprintf("there is no cursor in use (%s)", in.CursorName),
				Remedy: "correct the flags; `onlyonce cursor show` lists those there are",
			}
		}
	}
	in.Ranges = nil
	*in.without = 0
	for len(cursors) > 0 {
		of := slices.IndexFunc(cursors, func(c ops.Cursor) bool { return c.Topic != cursors[0].Topic })
		if of < 0 {
			of = len(cursors)
		}
		if err := in.findTopic(ctx, db, cursors[:of]); err != nil {
			return err
		}
		cursors = cursors[of:]
	}
	if in.several() && len(in.Ranges) == 0 {
		return &ops.Error{
			Kind: ops.ErrRefused,
			Reason: fmt.Sprintf("`Since`: no handled message is from %s or later and before `Until`, and "+
				"nothing was done", show.Instant(in.Since.Time)),
		}
	}
	if in.several() {
		in.Partition = -1
	}
	return nil
}

// findTopic finds the offsets of one topic's partitions.
func (in *Replaying) findTopic(ctx context.Context, db ops.DB, cursors []ops.Cursor) error {
	since, err := in.offsets(ctx, db, cursors, in.Since)
	if err != nil {
		return err
	}
	until, err := in.offsets(ctx, db, cursors, in.Until)
	if err != nil {
		return err
	}
	for i := range cursors {
		c := &cursors[i]
		from := since[c.Partition]
		to := until[c.Partition]
		if to > c.Position {
			to = -1 // the range ends at the position
		}
		if in.several() {
			empty := to >= 0 && to <= from
			if from < 0 || from >= c.Position || empty {
				*in.without++
				continue
			}
			in.Ranges = append(in.Ranges, ops.ReplayRange{
				Topic:     c.Topic,
				Partition: c.Partition,
				From:      from,
				To:        max(to, 0),
			})
			continue
		}
		if err := in.choose(c, from, to); err != nil {
			return err
		}
	}
	return nil
}

// choose takes the offsets of the one partition over.
func (in *Replaying) choose(c *ops.Cursor, from, to int64) error {
	refused := func(format string, args ...any) error {
		return &ops.Error{Kind: ops.ErrRefused, Reason: fmt.Sprintf(format, args...)}
	}
	if !in.Since.IsZero() {
		if from < 0 {
			return refused("`Since`: no message of %s/%d is from %s or later, and nothing was done",
				c.Topic, c.Partition, show.Instant(in.Since.Time))
		}
		in.From = from
	}
	if in.Until.IsZero() {
		return nil
	}
	if to >= 0 && to <= in.From {
		return refused("`Until`: no message of %s/%d lies in this time, and nothing was done: the first one "+
			"of %s or later is at offset %d",
			c.Topic, c.Partition, show.Instant(in.Until.Time), to)
	}
	in.To = 0
	if to >= 0 && to < c.Position {
		in.To = to
	}
	return nil
}

// offsets finds the first offsets of a time, for cursors of one topic: those of stored events in
// the database, all others at Kafka's brokers. Without a time there are none.
func (in *Replaying) offsets(ctx context.Context, db ops.DB, cursors []ops.Cursor, at moment) (map[int32]int64, error) {
	found := map[int32]int64{}
	for _, c := range cursors {
		found[c.Partition] = -1
	}
	if at.IsZero() {
		return found, nil
	}
	topic := cursors[0].Topic
	if cluster := cursors[0].ClusterID; cluster != nil && *cluster == eventsource.ClusterID {
		return reports.Look(ctx, db, func(tx pgx.Tx) (map[int32]int64, error) {
			for nr := range found {
				offset, err := eventsource.OffsetAt(ctx, tx, topic, nr, at.Time)
				if err != nil {
					return nil, err
				}
				found[nr] = offset
			}
			return found, nil
		})
	}
	if in.Kafka == nil {
		return nil, &ops.Error{
			Kind:   ops.ErrInvalid,
			Reason: "`Since`, `Until`: no brokers given, and only they have the times of topic " + topic,
			Remedy: "add -brokers host:9092, or set ONLYONCE_KAFKA_BROKERS",
		}
	}
	var partitions []int32
	for _, c := range cursors {
		partitions = append(partitions, c.Partition)
	}
	cluster, offsets, err := in.Kafka(ctx, topic, partitions, at.Time)
	if err != nil {
		return nil, err
	}
	for _, c := range cursors {
		if c.ClusterID != nil && *c.ClusterID != cluster {
			return nil, &ops.Error{
				Kind: ops.ErrRefused,
				Reason: fmt.Sprintf("%s/%d: the brokers are of cluster %s, the cursor is one of cluster %s, "+
					"and nothing was done", topic, c.Partition, cluster, *c.ClusterID),
			}
		}
		if offset, is := offsets[c.Partition]; is {
			found[c.Partition] = offset
		}
	}
	return found, nil
}
