package kafkalog

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onlyonce/onlyonce/consumer/internal/recordbatch"
	"github.com/onlyonce/onlyonce/consumer/source"
)

const (
	// leaderPatience is how long a request is repeated while a leader moves, an election included.
	leaderPatience = 5 * time.Second
	// identityTrustedFor is how long a topic's incarnation is trusted after it was read, if fetches
	// do not carry it themselves.
	identityTrustedFor = time.Second
)

// Options are what the adapters' configurations say about reading.
type Options struct {
	// MaxBytes is how much one fetch returns at most.
	MaxBytes int
	// MaxWait is how long a fetch waits at the broker where there is nothing new.
	MaxWait time.Duration
	// MaxRecord is how large a record may be, uncompressed.
	MaxRecord int
	// Codecs are the source's.
	Codecs *recordbatch.Codecs
	// Throttled is called where a broker throttles this client.
	Throttled func(topic string, partition int32, by time.Duration)
}

// Log is one partition's log. It has the methods of source.Partition that are not about the
// group. They are called by one goroutine at a time.
type Log struct {
	cluster Cluster
	opts    Options
	topic   string
	index   int32

	identified bool            // whether identity is set
	identity   source.Identity // what Identity said last
	leader     Leadership      // who leads it
	// Something went wrong: look again who leads it, and whether it is still the same topic.
	recheck       bool
	fetchesByName bool      // the broker's fetches do not name the topic by its id
	lastFetchAt   time.Time // the last fetch's end
	lastRead      lastRead
	empty         emptyAnswers
	unread        *unreadResponse // what the last fetch's response holds beyond that; nil: nothing
}

// unreadResponse is what a response holds that was not returned yet, because the consumer had no
// room for it.
type unreadResponse struct {
	contents      *recordbatch.Contents
	next          int64 // where it goes on
	highWatermark int64 // the response's high watermark
	lastStable    int64 // and its last stable offset
	leaderEpoch   int32 // leader epoch that the leader had
}

// lastRead is the last record fetched; the next fetch checks that the log still contains it.
type lastRead struct {
	next  int64 // position behind it
	epoch int32 // leader epoch that no batch below next exceeded: its last batch's
	// Leader epoch of the leader that was asked last whether the log is still made of it; -1: none
	// was.
	checkedUnder int32
}

// New asks nothing yet.
func New(c Cluster, opts Options, topic string, partition int32) *Log {
	return &Log{cluster: c, opts: opts, topic: topic, index: partition}
}

func (l *Log) String() string { return fmt.Sprintf("%s/%d", l.topic, l.index) }

// Close gives up what is left of the last response, and with it what Codecs keep open for it. It is
// called when the partition is given up.
func (l *Log) Close() { l.dropUnread() }

// Identity queries the cluster. Later fetches are compared with the answer.
func (l *Log) Identity(ctx context.Context) (source.Identity, error) {
	l.dropUnread() // the caller begins anew, and compares the log with its own state
	err := RetryTransient(ctx, l.cluster, leaderPatience, func() error {
		id, at, err := l.locate(ctx)
		if err == nil {
			l.identity = id
			l.leader = at
			l.identified = true
			l.recheck = false
		}
		return err
	})
	if err != nil {
		return source.Identity{}, fmt.Errorf("%v: %w", l, err)
	}
	return l.identity, nil
}

// locate asks who leads the partition, and of which incarnation of the topic it is.
func (l *Log) locate(ctx context.Context) (source.Identity, Leadership, error) {
	topics, err := Topics(ctx, l.cluster, l.topic)
	if err != nil {
		return source.Identity{}, Leadership{}, err
	}
	t := topics[l.topic]
	at, ok := t.Partitions[l.index]
	if !ok {
		return source.Identity{}, Leadership{}, noTopic(l.cluster, l.topic)
	}
	return source.Identity{
		ClusterID:      t.ClusterID,
		TopicID:        t.ID,
		TopicPartition: source.TopicPartition{Topic: l.topic, Partition: l.index},
		Partitions:     int32(len(t.Partitions)),
	}, at, nil
}

// confirmTopic looks again where there is doubt: after an error, and, where fetches name the topic
// by its name only, when so much time has passed that the topic may have been deleted and created
// again. It fails with ErrIncarnation when that is so (F4).
func (l *Log) confirmTopic(ctx context.Context) error {
	stale := l.fetchesByName && time.Since(l.lastFetchAt) > identityTrustedFor
	if l.identified && !l.recheck && !stale {
		return nil
	}
	id, at, err := l.locate(ctx)
	if err != nil {
		return err
	}
	if l.identified {
		if err := sameIncarnation(l.identity, id); err != nil {
			return err
		}
	} else {
		l.identity = id
		l.identified = true
	}
	l.leader = at
	l.recheck = false
	return nil
}

// sameIncarnation compares what is known on both sides: a broker that is too old tells no topic id.
func sameIncarnation(was, is source.Identity) error {
	unknown := [16]byte{}
	switch {
	case was.ClusterID != is.ClusterID:
		return fmt.Errorf("%w: %s/%d was in cluster %q, and the brokers now are cluster %q",
			source.ErrIncarnation, was.Topic, was.Partition, was.ClusterID, is.ClusterID)
	case was.TopicID != is.TopicID && was.TopicID != unknown && is.TopicID != unknown:
		return fmt.Errorf("%w: the id of %q was %x and is %x",
			source.ErrIncarnation, was.Topic, was.TopicID, is.TopicID)
	}
	return nil
}

// Timestamps that stand for an end of the log in ListOffsets.
const (
	earliest = -2
	latest   = -1
)

// Bounds returns the log's start and its last stable offset: below that everything is committed or
// aborted for good.
func (l *Log) Bounds(ctx context.Context) (b source.Bounds, err error) {
	err = RetryTransient(ctx, l.cluster, leaderPatience, func() (err error) {
		if err = l.confirmTopic(ctx); err == nil {
			b.Start, b.End, err = l.askBounds(ctx)
			b.LeaderEpoch = l.leader.Epoch // the broker refuses to answer under another one
		}
		l.recheck = l.recheck || err != nil
		return err
	})
	if err != nil {
		return source.Bounds{}, fmt.Errorf("%v: bounds of the log: %w", l, err)
	}
	return b, nil
}

// OffsetAt asks the leader, which looks it up in its index of times. If no record is that young, it
// is the end as it was before that look: records that came meanwhile are after it (F3).
func (l *Log) OffsetAt(ctx context.Context, t time.Time) (offset int64, err error) {
	err = RetryTransient(ctx, l.cluster, leaderPatience, func() (err error) {
		end := int64(-1)
		if err = l.confirmTopic(ctx); err == nil {
			end, err = l.listOffset(ctx, latest)
		}
		if err == nil {
			offset, err = l.listOffset(ctx, t.UnixMilli())
		}
		if offset < 0 {
			offset = end
		}
		l.recheck = l.recheck || err != nil
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("%v: offset at a time: %w", l, err)
	}
	return offset, nil
}

// Verify asks the leader where the epoch ends (KIP-320), and has the fetches that go on from there
// ask again whenever the leader changes. Without an epoch they begin with that of the leader as it
// is now. What is left of an earlier response is given up: the leader that sent it may be another
// one than the leader that is asked here (F5).
func (l *Log) Verify(ctx context.Context, at int64, epoch int32) error {
	l.dropUnread()
	err := RetryTransient(ctx, l.cluster, leaderPatience, func() error {
		err := l.confirmTopic(ctx)
		if err == nil {
			l.lastRead = lastRead{next: at, epoch: epoch, checkedUnder: -1}
			if epoch < 0 {
				l.lastRead.epoch = l.leader.Epoch
				l.lastRead.checkedUnder = l.leader.Epoch
			}
			err = l.checkEpoch(ctx, at)
		}
		l.recheck = l.recheck || err != nil
		return err
	})
	if err != nil {
		return fmt.Errorf("%v: checking that the log below offset %d is the one that was read: %w", l, at, err)
	}
	return nil
}

func (l *Log) askBounds(ctx context.Context) (start, end int64, err error) {
	if start, err = l.listOffset(ctx, earliest); err != nil {
		return 0, 0, err
	}
	end, err = l.listOffset(ctx, latest)
	return start, end, err
}

func (l *Log) listOffset(ctx context.Context, which int64) (int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	req.IsolationLevel = isolationCommitted
	rt := kmsg.NewListOffsetsRequestTopic()
	rp := kmsg.NewListOffsetsRequestTopicPartition()
	rp.Partition = l.index
	rp.CurrentLeaderEpoch = l.leader.Epoch
	rp.Timestamp = which
	rp.MaxNumOffsets = 1
	rt.Topic = l.topic
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	resp, err := ask[*kmsg.ListOffsetsResponse](ctx, l.cluster, &l.leader.Leader, req)
	if err != nil {
		return 0, err
	}
	for _, t := range resp.Topics {
		for _, r := range t.Partitions {
			if t.Topic != l.topic || r.Partition != l.index {
				continue
			}
			if r.ErrorCode != 0 {
				return 0, l.cluster.Error(r.ErrorCode)
			}
			return r.Offset, nil
		}
	}
	return 0, ErrUnanswered
}
