package kafkalog

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/internal/recordbatch"
	"github.com/onlyonce/onlyonce/consumer/source"
)

// brokers are a cluster of which a test says what it answers: a log of one batch of four records
// for each leader epoch.
type brokers struct {
	t       *testing.T
	epochs  []int32 // of the batches
	leader  int32   // the leader's epoch
	cutOff  int64   // where the epoch ends that is asked for; 0: at the log's end
	fetches int
	checks  []int32 // epochs that were asked for
}

const inBatch = 4

func (b *brokers) end() int64 { return int64(len(b.epochs) * inBatch) }

func (b *brokers) Error(code int16) error { return kerr.ErrorForCode(code) }

func (b *brokers) Code(err error) (int16, bool) {
	var e *kerr.Error
	if errors.As(err, &e) {
		return e.Code, true
	}
	return 0, false
}

func (b *brokers) Ask(_ context.Context, req kmsg.Request) (kmsg.Response, error) {
	switch req := req.(type) {
	case *kmsg.MetadataRequest:
		p := kmsg.NewMetadataResponseTopicPartition()
		p.LeaderEpoch = b.leader
		topic := kmsg.NewMetadataResponseTopic()
		topic.Topic = kmsg.StringPtr("t")
		topic.TopicID = [16]byte{1}
		topic.Partitions = append(topic.Partitions, p)
		resp := req.ResponseKind().(*kmsg.MetadataResponse)
		resp.ClusterID = kmsg.StringPtr("c")
		resp.Topics = append(resp.Topics, topic)
		return resp, nil
	case *kmsg.DescribeConfigsRequest:
		c := kmsg.NewDescribeConfigsResponseResourceConfig()
		c.Name, c.Value = retentionMs, kmsg.StringPtr("1000")
		r := kmsg.NewDescribeConfigsResponseResource()
		r.ResourceName = "t"
		r.Configs = append(r.Configs, c)
		resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
		resp.Resources = append(resp.Resources, r)
		return resp, nil
	}
	b.t.Errorf("asked for %T", req)
	return nil, errors.New("not known")
}

func (b *brokers) AskLeader(_ context.Context, _ int32, req kmsg.Request) (kmsg.Response, error) {
	switch req := req.(type) {
	case *kmsg.OffsetForLeaderEpochRequest:
		asked := req.Topics[0].Partitions[0]
		p := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
		p.LeaderEpoch, p.EndOffset = asked.LeaderEpoch, b.end()
		if b.cutOff > 0 {
			p.EndOffset = b.cutOff
		}
		if asked.CurrentLeaderEpoch != b.leader {
			p.ErrorCode = kerr.FencedLeaderEpoch.Code
		} else {
			b.checks = append(b.checks, asked.LeaderEpoch)
		}
		topic := kmsg.NewOffsetForLeaderEpochResponseTopic()
		topic.Topic = "t"
		topic.Partitions = append(topic.Partitions, p)
		resp := req.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
		resp.Topics = append(resp.Topics, topic)
		return resp, nil
	case *kmsg.ListOffsetsRequest:
		asked := req.Topics[0].Partitions[0]
		p := kmsg.NewListOffsetsResponseTopicPartition()
		p.Offset = b.end()
		switch {
		case asked.Timestamp == earliest:
			p.Offset = 0
		case asked.Timestamp >= 0: // no record is that young, and right after the answer one is
			p.Offset = -1
			b.epochs = append(b.epochs, b.leader)
		}
		if asked.CurrentLeaderEpoch != b.leader {
			p.ErrorCode = kerr.FencedLeaderEpoch.Code
		}
		topic := kmsg.NewListOffsetsResponseTopic()
		topic.Topic = "t"
		topic.Partitions = append(topic.Partitions, p)
		resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
		resp.Topics = append(resp.Topics, topic)
		return resp, nil
	case *kmsg.FetchRequest:
		asked := req.Topics[0].Partitions[0]
		p := kmsg.NewFetchResponseTopicPartition()
		p.HighWatermark = b.end() + 1
		p.LastStableOffset = b.end()
		p.PreferredReadReplica = -1
		if asked.CurrentLeaderEpoch != b.leader {
			p.ErrorCode = kerr.FencedLeaderEpoch.Code
		} else {
			b.fetches++
			for i, epoch := range b.epochs {
				if base := int64(i * inBatch); base+inBatch > asked.FetchOffset {
					p.RecordBatches = append(p.RecordBatches, batchOf(base, epoch)...)
				}
			}
		}
		topic := kmsg.NewFetchResponseTopic()
		topic.Topic = "t"
		topic.TopicID = [16]byte{1}
		topic.Partitions = append(topic.Partitions, p)
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		resp.Version = FetchByID
		resp.Topics = append(resp.Topics, topic)
		return resp, nil
	}
	b.t.Errorf("the leader was asked for %T", req)
	return nil, errors.New("not known")
}

// batchOf is a batch whose records say what their offsets are.
func batchOf(base int64, epoch int32) []byte {
	var body []byte
	for i := range int32(inBatch) {
		r := kmsg.Record{OffsetDelta: i, Value: fmt.Append(nil, base+int64(i))}
		r.Length = int32(len(r.AppendTo(nil)) - 1) // a length of 0 takes one byte
		body = r.AppendTo(body)
	}
	k := kmsg.RecordBatch{
		FirstOffset:          base,
		PartitionLeaderEpoch: epoch,
		Magic:                2,
		LastOffsetDelta:      inBatch - 1,
		ProducerID:           -1,
		NumRecords:           inBatch,
		Records:              body,
	}
	raw := k.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-12))
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	return raw
}

// reading is a log of these brokers, and its fetch of one record.
func reading(t *testing.T, b *brokers) (*Log, func(from int64) source.Fetched[*consumer.Message]) {
	l := New(b, Options{MaxBytes: 1 << 20, MaxWait: time.Millisecond, MaxRecord: 1 << 20, Codecs: recordbatch.NewCodecs()}, "t", 0)
	if _, err := l.Identity(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l, func(from int64) source.Fetched[*consumer.Message] {
		t.Helper()
		f, err := l.Fetch(t.Context(), from, 1)
		if err != nil {
			t.Fatal(err)
		}
		good := len(f.Messages) == 1 &&
			f.Messages[0].Offset == from &&
			string(f.Messages[0].Value) == fmt.Sprint(from) &&
			f.Next == from+1
		if !good {
			t.Fatalf("fetch at %d: %+v", from, f)
		}
		return f
	}
}

// F5: each part of a response has the leader epoch of its own last batch, whatever the response
// holds behind it.
func TestF5EpochsOfAResponseInParts(t *testing.T) {
	b := &brokers{t: t, epochs: []int32{2, 2, 5}, leader: 7}
	_, fetch := reading(t, b)
	for at := range b.end() {
		f := fetch(at)
		if want := b.epochs[at/inBatch]; f.LeaderEpoch != want || f.Messages[0].LeaderEpoch != want {
			t.Errorf("offset %d is of epoch %d, and what was read up to it of %d, want %d",
				at, f.Messages[0].LeaderEpoch, f.LeaderEpoch, want)
		}
		if f.HighWatermark != b.end()+1 || f.LastStable != b.end() || f.Kept != (at > 0) {
			t.Errorf("fetch at %d: %+v", at, f)
		}
	}
	if b.fetches != 1 {
		t.Errorf("%d fetches were sent", b.fetches)
	}
}

// F5: what the rest of a response was handed over under is the leader that sent it. The first fetch
// behind it asks the one that leads by then.
func TestF5LeaderChangesWhileAResponseIsReadInParts(t *testing.T) {
	b := &brokers{t: t, epochs: []int32{2}, leader: 7}
	l, fetch := reading(t, b)
	fetch(0)
	fetch(1)
	b.epochs = []int32{2, 8, 8}
	b.leader = 8
	if at, err := l.Bounds(t.Context()); err != nil || at.LeaderEpoch != 8 {
		t.Fatalf("%+v, %v", at, err)
	}
	fetch(2)
	fetch(3)
	b.cutOff = 2
	_, err := l.Fetch(t.Context(), 4, 1)
	var out *source.OutOfRangeError
	if !errors.As(err, &out) || *out != (source.OutOfRangeError{Offset: 4, Start: 0, End: 2}) {
		t.Errorf("fetch behind what was cut off: %v", err)
	}
	b.cutOff = 0
	if f := fetch(4); f.LeaderEpoch != 8 || len(b.checks) != 2 || b.checks[1] != 2 {
		t.Errorf("fetched in epoch %d after the epochs %v were asked for", f.LeaderEpoch, b.checks)
	}
}

// F5: what is left of a response that came before Verify is not handed over after it: the leader
// that sent it may be another one.
func TestF5VerifyGivesUpTheRest(t *testing.T) {
	b := &brokers{t: t, epochs: []int32{2, 2}, leader: 7}
	l, fetch := reading(t, b)
	f := fetch(0)
	if err := l.Verify(t.Context(), 1, f.LeaderEpoch); err != nil {
		t.Fatal(err)
	}
	if f := fetch(1); f.Kept || b.fetches != 2 {
		t.Errorf("the record behind the position was kept from before Verify")
	}
	b.epochs = []int32{2, 8, 8}
	b.leader = 8
	b.cutOff = 1
	l.dropUnread()
	l.recheck = true
	var out *source.OutOfRangeError
	if _, err := l.Fetch(t.Context(), 2, 1); !errors.As(err, &out) {
		t.Errorf("fetch behind what was cut off: %v", err)
	}
}

// F14: a look aside leaves the rest of a response alone, and what the next leader is asked about
// it. A partition that is given up keeps nothing.
func TestF14RestBesideALookAside(t *testing.T) {
	b := &brokers{t: t, epochs: []int32{2, 3}, leader: 7}
	l, fetch := reading(t, b)
	fetch(0)
	read := l.lastRead
	if until, err := l.Retained(t.Context(), 6); err != nil || until.IsZero() {
		t.Fatal(until, err)
	}
	if l.lastRead != read {
		t.Errorf("a look aside made %+v of %+v", l.lastRead, read)
	}
	if f := fetch(1); !f.Kept || b.fetches != 2 {
		t.Errorf("after a look aside the rest was asked for again")
	}
	l.Close()
	if f := fetch(2); f.Kept {
		t.Errorf("what was given up was kept")
	}
}

// F3: a record that is written while the offset of a time is looked for is not passed over.
func TestF3RecordsWhileATimeIsLookedFor(t *testing.T) {
	b := &brokers{t: t, epochs: []int32{0}}
	l := New(b, Options{}, "t", 0)
	if at, err := l.OffsetAt(t.Context(), time.UnixMilli(1)); err != nil || at != inBatch {
		t.Errorf("the offset is %d, want %d, before the record that came meanwhile: %v", at, inBatch, err)
	}
}
