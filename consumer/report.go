package consumer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/presence"
	"github.com/onlyonce/onlyonce/internal/ready"
)

// reportedPartition is an element of onlyonce.owners.partitions.
type reportedPartition struct {
	Topic         string   `json:"topic"`
	Partition     int32    `json:"partition"`
	Epoch         int64    `json:"epoch"`
	Position      int64    `json:"position"`
	LogStart      int64    `json:"log_start"`
	HighWatermark int64    `json:"high_watermark"`
	Lag           int64    `json:"lag"`
	LastStable    int64    `json:"last_stable"`
	WaitingFor    float64  `json:"waiting_for,omitempty"`
	Paused        bool     `json:"paused,omitempty"`
	Halted        string   `json:"halted,omitempty"`
	Detail        string   `json:"detail,omitempty"`
	HaltedFor     float64  `json:"halted_for,omitempty"`
	Resolve       string   `json:"resolve,omitempty"`
	Remedy        string   `json:"remedy,omitempty"`
	Commands      []string `json:"commands,omitempty"`
	ForTopic      []string `json:"for_topic,omitempty"`
	LastBatchAge  *float64 `json:"last_batch_age,omitempty"` // nil: none under this owner

	Ignored *reportedIgnored `json:"ignored,omitempty"`

	// What holds up the position although later messages are done; nil: nothing does.
	BlockedBy *reportedBlocker `json:"blocked_by,omitempty"`
}

// reportedIgnored is Ignored in onlyonce.owners: another program's offset in Kafka, found at the
// take-over.
type reportedIgnored struct {
	Offset   int64   `json:"offset"`
	Position int64   `json:"position"` // then
	For      float64 `json:"for"`
}

// reportedBlocker is BlockedBy in onlyonce.owners.
type reportedBlocker struct {
	Offset int64   `json:"offset"`
	Key    string  `json:"key,omitempty"` // hash of its ordering key
	For    float64 `json:"for"`
	Done   int     `json:"done"`
}

// statusReport is a process's report about itself, as JSON.
type statusReport struct {
	partitions, faults string
	shape              string // the part that is written at once if it changes
}

// statusReport returns this process's partitions in this database, and its faults; nil if that has
// the known shape. The links have the times since which the process has faults.
func (c *Consumer) statusReport(group, handlers *ready.Link, known *string) (*statusReport, error) {
	shape := ""
	owned := []reportedPartition{}
	for _, s := range c.partitions.snapshot() {
		if s.Shard != c.shard {
			continue
		}
		o := reportedPartition{
			Topic:         s.Topic,
			Partition:     s.Partition,
			Epoch:         s.Epoch,
			Position:      s.Position,
			LogStart:      s.LogStart,
			HighWatermark: s.HighWatermark,
			Lag:           s.Lag,
			LastStable:    s.LastStable,
			Paused:        s.Paused,
		}
		if !s.WaitingSince.IsZero() {
			o.WaitingFor = time.Since(s.WaitingSince).Seconds()
		}
		if h := s.Halted; h != nil {
			o.Halted = string(h.Reason)
			o.Detail = codec.TextUpTo(h.Detail, 512)
			o.HaltedFor = time.Since(s.HaltedSince).Seconds()
			r := h.remedy()
			o.Resolve, o.Remedy = codec.TextUpTo(r.text(), 2048), codec.TextUpTo(r.words(), 512)
			o.Commands, o.ForTopic = r.commands()
		}
		if !s.LastBatch.IsZero() {
			age := time.Since(s.LastBatch).Seconds()
			o.LastBatchAge = &age
		}
		if i := s.ignored; i != nil {
			o.Ignored = &reportedIgnored{i.offset, i.position, time.Since(i.at).Seconds()}
		}
		if b := s.BlockedBy; b != nil {
			o.BlockedBy = &reportedBlocker{b.Offset, b.Key, time.Since(b.Since).Seconds(), b.Done}
		}
		owned = append(owned, o)
		shape += fmt.Sprintf("%s/%d %d %v %s %v\n",
			s.Topic, s.Partition, s.Epoch, s.Paused, o.Halted, s.WaitingSince.IsZero())
	}
	present := c.presentFaults(group, handlers)
	for _, f := range present {
		shape += fmt.Sprintf("%s %s %d\n", f.Kind, f.Topic, f.Partitions)
	}
	if known != nil && shape == *known {
		return nil, nil
	}
	partitions, err := json.Marshal(owned)
	if err != nil {
		return nil, fmt.Errorf("reporting this process's partitions: %w", err)
	}
	faults, err := json.Marshal(present)
	if err != nil {
		return nil, fmt.Errorf("reporting this process's faults: %w", err)
	}
	return &statusReport{string(partitions), string(faults), shape}, nil
}

// Kinds of faults, as onlyonce.owners.faults has them.
const (
	faultGroup   = "group"   // the process is no member of its group
	faultRead    = "read"    // cursors or logs cannot be read: brokers or the database are away
	faultTopic   = "topic"   // the topic does not exist
	faultApply   = "apply"   // messages cannot be applied, and are tried again
	faultHandler = "handler" // a handler does not return
)

// joinPatience is how long a process may take to join its group before that is a fault.
const joinPatience = 5 * time.Second

// presentFaults returns the faults of this process and of its partitions in this database, in a
// fixed order. A partition that is halted or paused has no others (S3).
func (c *Consumer) presentFaults(group, handlers *ready.Link) []presence.Fault {
	found := []presence.Fault{}
	add := func(kind, topic string, partitions int, t trouble, patience time.Duration) {
		age := time.Since(t.since)
		if t.err == nil || age < patience {
			return
		}
		at := slices.IndexFunc(found, func(f presence.Fault) bool { return f.Kind == kind && f.Topic == topic })
		if at < 0 {
			at = len(found)
			found = append(found, presence.Fault{Kind: kind, Topic: topic})
		}
		f := &found[at]
		f.Partitions += partitions
		if age.Seconds() >= f.For {
			f.For, f.Text = age.Seconds(), faultText(kind, t.err)
		}
	}
	if s, ok := c.source.(SourceReady); ok {
		group.Set(s.Ready())
	}
	handlers.Set(c.Live())
	var t trouble
	t.since, t.err = group.Trouble()
	add(faultGroup, "", 0, t, joinPatience)
	t.since, t.err = handlers.Trouble()
	add(faultHandler, "", 0, t, 0)
	c.partitions.mu.Lock()
	defer c.partitions.mu.Unlock()
	for s := range c.partitions.all {
		elsewhere := s.topic != "" && s.shard != c.shard
		if elsewhere || s.halted.Load() != nil || s.paused.Load() {
			continue
		}
		read, apply := s.readTroubles()
		kind := faultRead
		if errors.Is(read.err, source.ErrNoTopic) {
			kind = faultTopic
		}
		add(kind, s.topic, 1, read, 0)
		add(faultApply, s.topic, 1, apply, c.answerPatience())
	}
	slices.SortFunc(found, func(a, b presence.Fault) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Topic, b.Topic))
	})
	return found
}

// faultText describes the error of a fault. A handler's error may quote the message, so only its
// SQLSTATE is given (S3).
func faultText(kind string, err error) string {
	if kind != faultApply && !errors.As(err, new(*handlerFailure)) {
		return codec.TextUpTo(err.Error(), 256)
	}
	if state := guard.SQLState(err); state != "" {
		return "SQLSTATE " + state
	}
	return "the log of the process says why"
}
