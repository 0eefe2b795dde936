package kafkasource_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
)

// transaction is a producer with a transaction open.
type transaction struct {
	t     *testing.T
	cl    *kgo.Client
	topic string
}

func begin(t *testing.T, cl *kgo.Client, topic string) *transaction {
	t.Helper()
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	return &transaction{t, cl, topic}
}

func (x *transaction) end(commit kgo.TransactionEndTry) {
	x.t.Helper()
	if err := x.cl.EndTransaction(x.t.Context(), commit); err != nil {
		x.t.Fatalf("ending a transaction: %v", err)
	}
}

func transactional(t *testing.T, brokers []string, id string) *kgo.Client {
	t.Helper()
	return kafkatest.Client(t, brokers, kgo.TransactionalID(kafkatest.TopicName(t)+id), kgo.TransactionTimeout(time.Minute))
}

// end returns the log's end, including transaction markers.
func end(t *testing.T, adm *kadm.Client, topic string) int64 {
	t.Helper()
	offsets, err := adm.ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	o, _ := offsets.Lookup(topic, 0)
	return o.Offset
}

// Several producers write into one partition. Their transactions interleave and are committed or
// aborted at random, among records without a transaction; the log ends with an aborted one.
// Whatever the fetch size, exactly the committed records are returned, in the log's order, and the
// position ends after the last marker (F8).
func TestReadCommitted(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 1, nil)
		rnd := rand.New(rand.NewPCG(1, 2))
		plain := kafkatest.Client(t, brokers)
		clients := make([]*kgo.Client, 4)
		for i := range clients {
			clients[i] = transactional(t, brokers, fmt.Sprint("-", i))
		}
		open := make([]*transaction, len(clients))
		fate := make([]bool, len(clients))
		committed := map[string]bool{}
		written := 0
		for step := range 120 {
			i := rnd.IntN(len(clients) + 1)
			if i == len(clients) {
				v := fmt.Sprint("plain-", step)
				kafkatest.Write(t, plain, topic, v)
				committed[v] = true
				continue
			}
			if open[i] == nil {
				open[i] = begin(t, clients[i], topic)
				fate[i] = rnd.IntN(2) == 0
			}
			for range rnd.IntN(3) {
				v := fmt.Sprintf("p%d-%d-%v", i, written, fate[i])
				written++
				kafkatest.Write(t, clients[i], topic, v)
				committed[v] = fate[i]
			}
			if rnd.IntN(3) == 0 {
				open[i].end(kgo.TransactionEndTry(fate[i]))
				open[i] = nil
			}
		}
		for i, x := range open {
			if x != nil {
				x.end(kgo.TransactionEndTry(fate[i]))
			}
		}
		last := begin(t, clients[0], topic)
		kafkatest.Write(t, clients[0], topic, "never")
		last.end(kgo.TryAbort)

		want := kgoReads(t, brokers, topic, committed)
		stop := end(t, kafkatest.Admin(t, brokers), topic)
		for _, limit := range []int{1, 300, 1 << 20} {
			cfg := quick(brokers, topic)
			cfg.FetchMaxBytes = limit
			m := join(t, cfg)
			h := m.Holds(topic, 0)
			if got := values(h.ReadTo(t, 0, stop)); !slices.Equal(got, want) {
				t.Errorf("limit %d: read %d messages, franz-go read %d, or they differ", limit, len(got), len(want))
			}
			// From every offset, like after a restart.
			for from := int64(0); limit == 300 && from <= stop; from += 7 {
				for _, m := range h.ReadTo(t, from, stop) {
					if !committed[string(m.Value)] {
						t.Errorf("from %d: %q at %d was aborted", from, m.Value, m.Offset)
					}
				}
			}
			if err := m.Leave(); err != nil {
				t.Error(err)
			}
		}
	})
}

// kgoReads reads with another client, to compare the order. The set must be that of the committed
// records.
func kgoReads(t *testing.T, brokers []string, topic string, committed map[string]bool) []string {
	t.Helper()
	n := 0
	for _, ok := range committed {
		if ok {
			n++
		}
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	var out []string
	for len(out) < n {
		fs := cl.PollFetches(t.Context())
		if err := fs.Err(); err != nil {
			t.Fatal(err)
		}
		fs.EachRecord(func(r *kgo.Record) {
			if !committed[string(r.Value)] {
				t.Fatalf("franz-go read %q, which was aborted", r.Value)
			}
			out = append(out, string(r.Value))
		})
	}
	return out
}

// A topic that was compacted earlier has holes, and batches that end in one.
func TestOnceCompactedTopic(t *testing.T) {
	t.Parallel()
	c := kafkatest.FakeCluster(t)
	brokers := c.ListenAddrs()
	topic := kafkatest.Topic(t, brokers, 1, map[string]string{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
	cl := kafkatest.Client(t, brokers)
	for range 5 {
		var recs []*kgo.Record
		for i := range 6 {
			recs = append(recs, &kgo.Record{Topic: topic, Key: []byte{byte(i % 4)}, Value: []byte("v")})
		}
		if err := cl.ProduceSync(t.Context(), recs...).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	c.Compact()
	adm := kafkatest.Admin(t, brokers)
	policy := "delete"
	if _, err := adm.AlterTopicConfigs(
		t.Context(),
		[]kadm.AlterConfig{{Op: kadm.SetConfig, Name: "cleanup.policy", Value: &policy}},
		topic,
	); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []int{1, 1 << 20} {
		cfg := quick(brokers, topic)
		cfg.FetchMaxBytes = limit
		m := join(t, cfg)
		h := m.Holds(topic, 0)
		b, err := h.Bounds(h.Ctx) // kfake lets the log begin with its first batch
		if err != nil {
			t.Fatal(err)
		}
		start := b.Start
		stable := b.End
		for from := start; from < stable; from++ {
			got := h.ReadTo(t, from, stable)
			wrong := int64(len(got)) > stable-from ||
				from == start && (len(got) < 4 || int64(len(got)) == stable-start)
			if wrong {
				t.Errorf("limit %d: %d messages from %d to %d after compaction", limit, len(got), from, stable)
			}
		}
		if err := m.Leave(); err != nil {
			t.Error(err)
		}
	}
}
