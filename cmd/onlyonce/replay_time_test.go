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
		c.Start, c.DrainTimeout = consumer.At(at.Add(time.Minute)), 5*time.Second
	})
	s.reaches(5)
	s.times(map[int64]int{1: 1, 2: 1, 3: 1, 4: 1})

	replay := func(more ...string) []string {
		return append([]string{"replay", "-scope", "stock", "-topic", topic, "-partition", "0", "-reason", "x", "-brokers", strings.Join(brokers, ",")}, more...)
	}
	span := []string{"-since", "2026-03-01T12:01:30Z", "-until", "2026-03-01T12:03:00Z"}
	s.run(replay(append(span, "-dry-run")...)...).want(t, statusGood, "The first message of 2026-03-01 12:01:30", "is at offset 2", "ends before offset 3", "offset 2 to 2")
	s.times(map[int64]int{1: 1, 2: 1, 3: 1, 4: 1})
	s.run(replay(append(span, "-yes")...)...).want(t, statusGood, "from offset 2 up to 3")
	s.reaches(5)
	s.times(map[int64]int{1: 1, 2: 2, 3: 1, 4: 1})
	s.run(replay("-since", "2026-03-01T13:03:00+01:00", "-until", "1m", "-yes")...).want(t, statusGood, "from offset 3 up to 5")
	s.reaches(5)
	s.times(map[int64]int{1: 1, 2: 2, 3: 2, 4: 2})

	s.run(replay("-since", "1m", "-yes")...).want(t, statusFailed, "-since: no message of", "nothing was done")
	s.run(replay("-since", "2026-03-01T12:01:01Z", "-until", "2026-03-01T12:01:02Z", "-yes")...).want(t, statusFailed, "-until: no message of", "offset 2")
	s.run(replay("-since", "2026-03-01T12:01:00Z", "-until", "2026-03-01T12:01:00Z", "-yes")...).want(t, statusEnvironment, "-until: must be after -since")
	s.run(replay("-since", "noon", "-yes")...).want(t, statusEnvironment, "must be a time such as")
	s.run(replay("-since", "1d", "-from", "3", "-yes")...).want(t, statusEnvironment, "-since: not with -from")
	s.run(replay("-from", "3", "-yes")...).want(t, statusEnvironment, "-brokers: only with -since or -until")
	s.run("replay", "-scope", "stock", "-topic", topic, "-partition", "0", "-reason", "x", "-since", "1d", "-yes").want(t, statusEnvironment, "no brokers given", envBrokers)
	s.exec(`update onlyonce.cursors set cluster_id = 'another'`)
	s.run(replay(append(span, "-yes")...)...).want(t, statusFailed, "the cursor is one of cluster another", "nothing was done")
}
