package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/franzsource"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"

	"github.com/twmb/franz-go/pkg/kgo"
)

// F10: a replay by time is one of the offsets that the brokers name, and says so before it asks.
func TestReplayByTime(t *testing.T) {
	t.Parallel()
	brokers := kafkatest.Fake(t)
	s := newShop(t)
	topic := kafkatest.Topic(t, brokers, 1, nil)
	client := kafkatest.Client(t, brokers)
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for i := range 5 { // a message each minute
		r := &kgo.Record{Topic: topic, Value: fmt.Append(nil, "v", i), Timestamp: at.Add(time.Duration(i) * time.Minute),
			Headers: []kgo.RecordHeader{{Key: "message-id", Value: fmt.Append(nil, "m", i)}}}
		if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	source := franzsource.New(franzsource.Config{Brokers: brokers, GroupID: topic, Topics: []string{topic}})
	s.startOn(source, effect, func(c *consumer.Config) {
		c.Start = consumer.At(at.Add(time.Minute))
		c.DrainTimeout = 5 * time.Second
	})
	s.reaches(5)
	s.times(map[int64]int{1: 1, 2: 1, 3: 1, 4: 1})

	replay := func(more ...string) []string {
		return append(
			[]string{
				"replay",
				"-scope",
				"stock",
				"-topic",
				topic,
				"-partition",
				"0",
				"-reason",
				"x",
				"-brokers",
				strings.Join(brokers, ","),
			},
			more...,
		)
	}
	span := []string{"-since", "2026-03-01T12:01:30Z", "-until", "2026-03-01T12:03:00Z"}
	s.run(replay(append(span, "-dry-run")...)...).want(t, statusGood, "The first message of 2026-03-01 12:01:30",
		"is at offset 2", "ends before offset 3", "offset 2 to 2")
	s.times(map[int64]int{1: 1, 2: 1, 3: 1, 4: 1})
	s.run(replay(append(span, "-yes")...)...).want(t, statusGood, "from offset 2 up to 3")
	s.reaches(5)
	s.times(map[int64]int{1: 1, 2: 2, 3: 1, 4: 1})
	s.run(replay("-since", "2026-03-01T13:03:00+01:00", "-until", "1m", "-yes")...).want(t, statusGood, "from offset 3 up to 5")
	s.reaches(5)
	s.times(map[int64]int{1: 1, 2: 2, 3: 2, 4: 2})

	s.run(replay("-since", "1m", "-yes")...).want(t, statusFailed, "-since: no message of", "nothing was done")
	s.run(replay("-since", "2026-03-01T12:01:01Z", "-until", "2026-03-01T12:01:02Z", "-yes")...).want(
		t,
		statusFailed,
		"-until: no message of",
		"offset 2",
	)
	s.run(replay("-since", "2026-03-01T12:01:00Z", "-until", "2026-03-01T12:01:00Z", "-yes")...).want(
		t,
		statusEnvironment,
		"-until: must be after -since",
	)
	s.run(replay("-since", "noon", "-yes")...).want(t, statusEnvironment, "must be a time such as")
	s.run(replay("-since", "1d", "-from", "3", "-yes")...).want(t, statusEnvironment, "-since: not with -from")
	s.run(replay("-from", "3", "-yes")...).want(t, statusEnvironment, "-brokers: only with -since or -until")
	s.run("replay", "-scope", "stock", "-topic", topic, "-partition", "0", "-reason", "x", "-since", "1d", "-yes").want(
		t,
		statusEnvironment,
		"no brokers given",
		envBrokers,
	)
	s.exec(`update onlyonce.cursors set cluster_id = 'another'`)
	s.run(replay(append(span, "-yes")...)...).want(t, statusFailed, "the cursor is one of cluster another", "nothing was done")
}

// F10: a replay by time of a whole topic is one replay in all its partitions, with one number.
// Partitions in which nothing lies in this time are left out, and so are those of later messages.
func TestF10ReplayTopicByTime(t *testing.T) {
	t.Parallel()
	brokers := kafkatest.Fake(t)
	s := newShop(t)
	topic := kafkatest.Topic(t, brokers, 4, nil)
	client := kafkatest.Client(t, brokers)
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	produce := func(partition int32, minute int, id string) {
		t.Helper()
		r := &kgo.Record{Topic: topic, Partition: partition, Value: []byte(id), Timestamp: at.Add(time.Duration(minute) * time.Minute),
			Headers: []kgo.RecordHeader{{Key: "message-id", Value: []byte(id)}}}
		if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	for minute := range 5 { // offset n at minute n
		produce(0, minute, fmt.Sprint("a", minute))
		produce(1, minute, fmt.Sprint("b", minute))
	}
	produce(1, 5, "a3") // a copy, offset 5 of partition 1
	produce(2, 0, "c0") // before the time
	source := franzsource.New(franzsource.Config{Brokers: brokers, GroupID: topic, Topics: []string{topic}})
	s.startOn(source, effect, func(c *consumer.Config) {
		c.Start = consumer.At(at)
		c.DrainTimeout = 5 * time.Second
	})
	applied := func() (n int) { return one[int](s.fixture, `select count(*) from effects`) }
	eventually(t, "all are applied once", func() bool { return applied() == 11 })

	replay := func(more ...string) []string {
		return append([]string{"replay", "-scope", "stock", "-reason", "x", "-brokers", strings.Join(brokers, ",")}, more...)
	}
	span := []string{"-since", "2026-03-01T12:01:30Z", "-until", "2026-03-01T12:06:00Z"}
	s.run(replay(append(span, "-topic", topic, "-dry-run")...)...).want(
		t,
		statusGood,
		"7 offsets in 2 partitions",
		"Left out: 2 partitions",
	)
	s.run(replay(append(span, "-topic", topic, "-yes", "-follow")...)...).want(
		t,
		statusGood,
		"Done: replay 1 of 2 partitions",
		"Replay 1 has ended: 7 offsets in 2 partitions.",
	)
	if n := applied(); n != 11+6 { // a2, a3, a4, b2, b3, b4: the copy of a3 is one of the ranges too
		t.Errorf("%d effects after the replay, want %d", n, 11+6)
	}
	if n := one[int](s.fixture, `select count(*) from onlyonce.audit where action = 'replay'`); n != 1 {
		t.Errorf("%d audit rows", n)
	}
	s.run(replay(append(span, "-yes", "-follow")...)...).want(t, statusGood, "Done: replay 2 of 2 partitions") // the whole scope
	if n := applied(); n != 11+6+6 {
		t.Errorf("%d effects after the replay of the scope, want %d", n, 11+6+6)
	}

	s.run(replay("-topic", topic, "-since", "1m", "-yes")...).want(t, statusFailed, "-since: no handled message", "nothing was done")
	s.run("replay", "-scope", "stock", "-reason", "x", "-topic", topic, "-from", "3", "-yes").want(
		t,
		statusEnvironment,
		"-partition: must be there",
	)
	s.run(replay("-topic", "none", "-since", "1d", "-yes")...).want(t, statusEnvironment, "there is no cursor in use")
	s.run(replay(append(span, "-topic", topic, "-yes", "-broker-login", "none.json")...)...).want(
		t,
		statusEnvironment,
		"-broker-login",
		"none.json",
	)
}
