package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/franzsource"
	"github.com/onlyonce/onlyonce/consumer/kafkasource"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
)

// A Kafka that hangs, and a topic that is deleted, as status and doctor show them: on a real broker
// and with the defaults of each source, and the command that mends it. How soon is printed.
func TestS3FaultsOfKafka(t *testing.T) {
	t.Parallel()
	k := kafkatest.Own(t, 1)
	f := newDrill(t)
	topics := map[string]string{"kafka": kafkatest.Topic(t, k.Brokers, 2, nil), "franz": kafkatest.Topic(t, k.Brokers, 2, nil)}
	for scope, source := range map[string]consumer.Source{
		"kafka": kafkasource.New(kafkasource.Config{Brokers: k.Brokers, GroupID: "kafka", Topics: []string{topics["kafka"]}}),
		"franz": franzsource.New(franzsource.Config{Brokers: k.Brokers, GroupID: "franz", Topics: []string{topics["franz"]}}),
	} {
		c, err := consumer.New(
			f.pool,
			source,
			consumer.HandlerFunc(func(context.Context, consumer.Tx, *consumer.Message) error { return nil }),
			consumer.Config{Scope: scope, PositionsOnly: true},
		)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- c.Run(t.Context()) }()
		t.Cleanup(func() {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
	var report ops.StatusReport
	read := func() {
		report = ops.StatusReport{}
		if err := json.Unmarshal([]byte(f.run("status", "-json").want(t, statusGood).out), &report); err != nil {
			t.Fatal(err)
		}
	}
	well := func(what string) {
		t.Helper()
		eventually(t, what, func() bool {
			read()
			owned := 0
			for _, o := range report.Owners {
				owned += len(o.Partitions)
			}
			return len(report.Faults) == 0 && owned == 4
		})
	}
	// shown waits until a fault of each scope is shown.
	shown := func(what string, fits func(f *ops.Fault) bool) {
		t.Helper()
		began := time.Now()
		found := map[string]string{}
		eventually(t, what, func() bool {
			read()
			for i := range report.Faults {
				if f := &report.Faults[i]; found[f.Scope] == "" && fits(f) {
					found[f.Scope] = f.String()
					t.Logf("%s: %v: %s", what, time.Since(began).Round(100*time.Millisecond), f)
				}
			}
			return len(found) == len(topics)
		})
	}
	any := func(*ops.Fault) bool { return true }
	well("all partitions have owners")

	if err := k.Nodes[0].Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	shown("Kafka hangs", any)
	f.says("- cannot ", "check that the brokers answer") // a member may have lost its group by now
	if out := f.run("doctor", "-all").out; strings.Contains(out, "faults: no living process") || !strings.Contains(out, "warn  faults: ") {
		t.Errorf("%s", out)
	}
	if err := k.Nodes[0].Continue(t.Context()); err != nil {
		t.Fatal(err)
	}
	well("Kafka goes on")
	f.quiet("- cannot ")

	adm := kafkatest.Admin(t, k.Brokers)
	for _, topic := range topics {
		if _, err := adm.DeleteTopic(t.Context(), topic); err != nil {
			t.Fatal(err)
		}
	}
	// Each client has its own words. If a group of kafka-go forms anew meanwhile, as on a busy
	// machine, it has no partitions of that topic to give, and nobody reads them.
	gone := map[string]string{"kafka": "a topic or partition that does not exist", "franz": "UNKNOWN_TOPIC_OR_PARTITION"}
	shown("the topics are deleted", func(f *ops.Fault) bool {
		return f.Topic == topics[f.Scope] &&
			f.Partitions == 2 &&
			(f.Kind == "topic" && strings.Contains(f.Text, gone[f.Scope]) || f.Kind == "unowned" && f.Scope == "kafka")
	})
	// One is made again: by mistake it was deleted. The other is taken out of use.
	if _, err := adm.CreateTopic(t.Context(), 2, 1, nil, topics["kafka"]); err != nil {
		t.Fatal(err)
	}
	f.mends("- no such topic: scope franz, 2 partitions of "+topics["franz"], "onlyonce cursor retire -scope franz -topic "+topics["franz"])
	f.mends("- halted: scope kafka, 2 partitions of "+topics["kafka"]+" (0, 1), new-topic",
		"onlyonce cursor adopt -scope kafka -topic "+topics["kafka"]+" -halted new-topic -at first")
}
