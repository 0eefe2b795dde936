package brokerfaults

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
)

var rows = slices.Concat(fetchRows, offsetRows, groupRows)

// fetch: what the log says.
var fetchRows = []row{
	{"fetch", "aborted or control record", func(f *faults) {
		// The mix has aborted transactions in it, and ends with one: they become neither calls nor
		// a reason to stop.
		f.begin(1)
		f.finish(f.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			if string(m.Value) == "aborted" {
				f.t.Errorf("the handler was called for the aborted record at %d", m.Offset)
			}
			return f.handle(ctx, tx, m)
		}))
		if end := f.logEnd(); f.position(0) != end {
			f.t.Errorf("position %d, want %d, behind the last marker", f.position(0), end)
		}
	}},
	{"fetch", "log start passed the position", func(f *faults) {
		f.stopsAt(consumer.HaltGap, func(adm *kadm.Client) {
			lost := f.log.AppendMessage(0, &consumer.Message{Value: []byte("lost")})
			var cut kadm.Offsets
			cut.Add(kadm.Offset{Topic: f.topic, At: lost + 1})
			if _, err := adm.DeleteRecords(f.t.Context(), cut); err != nil {
				f.t.Fatal(err)
			}
		}, false)
	}},
	{"fetch", "topic recreated", func(f *faults) { f.stopsAt(consumer.HaltNewTopic, f.recreate, false) }},
	{"fetch", "topic recreated: between two fetches", func(f *faults) { f.stopsAt(consumer.HaltNewTopic, f.recreate, true) }},
	{"fetch", "log truncated", cutOff},
	{"fetch", "corrupt batch", func(f *faults) {
		f.beginFake(1)
		f.corrupt(func() bool { return f.retried("checksum") == 0 })
		f.finish(f.start(f.handle))
	}},
}

// logEnd is the end of partition 0.
func (f *faults) logEnd() int64 {
	f.t.Helper()
	ends, err := kafkatest.Admin(f.t, f.brokers).ListEndOffsets(f.t.Context(), f.topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		f.t.Fatal(err)
	}
	end, _ := ends.Lookup(f.topic, 0)
	return end.Offset
}

// cutOff makes an unclean election cut the log off below the position, while no consumer reads it.
// Every record that reached a handler is still there: only aborted records and their marker are
// lost, which only broker 1 had. Then others write beyond the position.
func cutOff(f *faults) {
	k := kafkatest.Cluster(f.t)
	one := k.Nodes[0]
	two := k.Nodes[1]
	topic := kafkatest.TopicOn(
		f.t,
		k.Brokers,
		map[string]string{"unclean.leader.election.enable": "true", "min.insync.replicas": "1"},
		int32(one.ID),
		int32(two.ID),
	)
	f.beginWith(k.Brokers, topic, 1)
	kafkatest.Led(f.t, k.Brokers, topic, int32(one.ID), int32(one.ID), int32(two.ID))
	both := f.logEnd()
	if err := two.Pause(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	kafkatest.Led(f.t, k.Brokers, topic, int32(one.ID), int32(one.ID))
	f.writeWithout(k, 1)
	f.log.Skip(0, 5)
	end := f.logEnd()
	f.brokers = slices.Delete(slices.Clone(k.Brokers), 1, 2) // the first questions may go to any of them
	stop := f.start(f.handle)
	f.done()
	f.until("the position behind the aborted records", func() bool { return f.position(0) >= end })
	end = f.logEnd() // the marker that ends them may have been written after the first check
	f.until("the position at the log's end", func() bool { return f.position(0) == end })
	stop()
	before := f.calls.Load()
	if err := one.Kill(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	if err := two.Continue(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	f.brokers = k.Brokers[1:]
	kafkatest.Led(f.t, f.brokers, topic, int32(two.ID), int32(two.ID))
	if at := f.logEnd(); at < both || at >= end {
		f.t.Fatalf("the log ends at %d: it was to lose what lies between %d and %d, and no more", at, both, end)
	}
	fresh := newTopicLog(f.t, f.brokers, topic) // a client that knows the topic as it is now
	for f.logEnd() < end+20 {
		fresh.AppendMessage(0, &consumer.Message{Value: []byte("unseen")})
	}
	stop = f.start(f.handle)
	_ = f.halted(consumer.HaltTruncated)
	stop()
	if n := f.calls.Load(); n != before || f.position(0) != end {
		f.t.Errorf("position %d, and %d calls of the handler after that", f.position(0), n-before)
	}
	f.decide()
}

// writeWithout makes new clients write the next part: ones that do not know a paused broker, after
// another broker has become the coordinator of their transactions. An older client may still use
// the paused broker as its coordinator, and waits for its answer in vain.
func (f *faults) writeWithout(k *devenv.Kafka, paused int) {
	f.t.Helper()
	others := slices.Delete(slices.Clone(k.Brokers), paused, paused+1)
	f.log = newTopicLog(f.t, others, f.topic)
	adm := kafkatest.Admin(f.t, others)
	f.until("another coordinator of transactions than the paused broker", func() bool {
		at := adm.FindTxnCoordinators(f.t.Context(), f.log.id)[f.log.id]
		return at.Err == nil && int(at.NodeID) != k.Nodes[paused].ID
	})
}

func (f *faults) recreate(adm *kadm.Client) { kafkatest.Recreate(f.t, adm, f.topic) }

// stopsAt handles the mix, lets something happen to the topic, and expects a halt and no call of
// the handler for records that are in the log now.
func (f *faults) stopsAt(reason consumer.HaltReason, happens func(*kadm.Client), alive bool) {
	f.t.Helper()
	f.begin(1)
	stop := f.start(f.handle)
	f.done()
	if !alive {
		stop()
	}
	before := f.calls.Load()
	happens(kafkatest.Admin(f.t, f.brokers))
	fresh := newTopicLog(f.t, f.brokers, f.topic) // a client that knows the topic as it is now
	for range 80 {                                // beyond the position
		fresh.AppendMessage(0, &consumer.Message{Value: []byte("unseen")})
	}
	if !alive {
		stop = f.start(f.handle)
	}
	_ = f.halted(reason)
	stop()
	if n := f.calls.Load(); n != before {
		f.t.Errorf("%d calls of the handler after that", n-before)
	}
	f.decide()
}

// corrupt answers fetches with the topic's batches, in one of which a bit is flipped, for as long
// as the test asks for it.
func (f *faults) corrupt(still func() bool) {
	f.t.Helper()
	// The batches as the broker stores them, asked for by name.
	req := kmsg.NewPtrFetchRequest()
	req.MaxBytes = 1 << 20
	req.MaxWaitMillis = 100
	topic := kmsg.NewFetchRequestTopic()
	part := kmsg.NewFetchRequestTopicPartition()
	topic.Topic = f.topic
	part.PartitionMaxBytes = 1 << 20
	topic.Partitions = append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	cl := kafkatest.Client(f.t, f.brokers, kgo.MaxVersions(kversion.V2_8_0()))
	resp, err := cl.Broker(int(f.fake.LeaderFor(f.topic, 0))).Request(f.t.Context(), req)
	if err != nil {
		f.t.Fatal(err)
	}
	batches := slices.Clone(resp.(*kmsg.FetchResponse).Topics[0].Partitions[0].RecordBatches)
	batches[len(batches)/2] ^= 1

	f.fake.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		f.fake.KeepControl()
		if !still() {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		for _, t := range req.(*kmsg.FetchRequest).Topics {
			rt := kmsg.NewFetchResponseTopic()
			rt.Topic = t.Topic
			rt.TopicID = t.TopicID
			for _, p := range t.Partitions {
				rp := kmsg.NewFetchResponseTopicPartition()
				rp.Partition = p.Partition
				rp.HighWatermark = 1000
				rp.LastStableOffset = 1000
				rp.RecordBatches = batches
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
}

var offsetRows = []row{
	{"offset", "commit errors 22, 25 and 27", func(f *faults) {
		f.beginFake(1)
		codes := []int16{kerr.IllegalGeneration.Code, kerr.UnknownMemberID.Code, kerr.RebalanceInProgress.Code}
		seen := f.refuseCommits(func(n int32) int16 {
			if n%3 == 2 && int(n/3) < len(codes) {
				return codes[n/3]
			}
			return 0
		})
		stop := f.start(f.handle)
		f.done()
		for i := 0; seen.Load() < 9; i++ { // offsets are committed now and then
			f.mix.Add(0, "k0", "late-"+strings.Repeat("i", i), "")
			f.done()
		}
		f.until("three generations to end", func() bool { return f.count(`select epoch from onlyonce.leases`) >= 4 })
		f.finish(stop)
	}},
	{"offset", "coordinator moved", func(f *faults) {
		f.beginFake(1)
		seen := f.refuseCommits(func(n int32) int16 {
			if n > 1 && n < 6 {
				return kerr.NotCoordinator.Code
			}
			return 0
		})
		stop := f.start(f.handle)
		f.done()
		f.until("the offset to be committed after all", func() bool { return seen.Load() >= 6 })
		f.finish(stop)
		if n := f.count(`select epoch from onlyonce.leases`); n != 1 {
			f.t.Errorf("epoch %d: the partition was given up", n)
		}
	}},
	{"offset", "offsets expired or deleted", func(f *faults) {
		f.absorbs(func(adm *kadm.Client) error {
			_, err := adm.DeleteOffsets(f.t.Context(), f.group, kadm.TopicsSet{f.topic: {0: {}}})
			return err
		})
	}},
	{"offset", "offsets reset to earliest", func(f *faults) {
		f.absorbs(func(adm *kadm.Client) error {
			var first kadm.Offsets
			first.Add(kadm.Offset{Topic: f.topic, LeaderEpoch: -1})
			return adm.CommitAllOffsets(f.t.Context(), f.group, first)
		})
	}},
}

// refuseCommits answers the n-th offset commit, from 1 on, with an error code, unless that is 0.
func (f *faults) refuseCommits(code func(n int32) int16) *atomic.Int32 {
	var seen atomic.Int32
	f.fake.ControlKey(int16(kmsg.OffsetCommit), func(req kmsg.Request) (kmsg.Response, error, bool) {
		f.fake.KeepControl()
		c := code(seen.Add(1))
		if c == 0 {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.OffsetCommitResponse)
		for _, t := range req.(*kmsg.OffsetCommitRequest).Topics {
			rt := kmsg.NewOffsetCommitResponseTopic()
			rt.Topic = t.Topic
			rt.TopicID = t.TopicID
			for _, p := range t.Partitions {
				rp := kmsg.NewOffsetCommitResponseTopicPartition()
				rp.Partition = p.Partition
				rp.ErrorCode = c
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
	return &seen
}

// absorbs handles the mix, lets something happen to the group's offsets, and expects that the next
// owner calls no handler for what was handled.
func (f *faults) absorbs(happens func(*kadm.Client) error) {
	f.begin(1)
	stop := f.start(f.handle)
	f.done()
	stop()
	before := f.calls.Load()
	adm := kafkatest.Admin(f.t, f.brokers)
	f.until("the group to be empty, and its offsets to be changed", func() bool { return happens(adm) == nil })
	f.mix.Add(0, "k0", "later", "call")
	stop = f.start(f.handle)
	f.done()
	if n := f.calls.Load() - before; n != 1 {
		f.t.Errorf("%d calls of the handler after that, want 1", n)
	}
	f.finish(stop)
}

var groupRows = []row{
	{"group", "rebalance in mid-handler", func(f *faults) {
		// Some handlers do not return before the partition has to be given up; a second member
		// comes and goes meanwhile.
		f.begin(2)
		f.cfg.DrainTimeout = 100 * time.Millisecond
		in := make(chan struct{})
		var stuck atomic.Int32
		handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			err := f.handle(ctx, tx, m)
			if f.calls.Load()%10 == 0 && stuck.Add(1) <= 2 {
				select {
				case in <- struct{}{}:
					<-ctx.Done()
				case <-ctx.Done():
				}
			}
			return err
		}
		stop := f.start(handle)
		<-in
		stop2 := f.start(handle)
		<-in
		f.until("both partitions to be the first member's, and one to be the second's", func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.owned >= 3
		})
		stop2()
		f.finish(stop)
	}},
	{"group", "zombie owner", zombie},
	{"group", "two groups with one scope", func(f *faults) {
		f.begin(1)
		stop := f.start(f.handle)
		f.done()
		stop()
		f.group += "-other"
		stop = f.start(f.handle)
		if h := f.halted(consumer.HaltForeignGroup); !strings.Contains(h.Error(), strings.TrimSuffix(f.group, "-other")) {
			f.t.Errorf("halt: %v: does not name the owner", h)
		}
		stop()
		f.decide()
	}},
}
