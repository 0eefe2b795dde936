package consumer_test

import (
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
)

// The guide's way in from a table of processed ids: what the old consumer has applied, and not
// committed to Kafka, takes no effect again.
func TestAdoptingATableOfProcessedIDs(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../docs/guide/adopting.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```sql\n(create table applied_orders[^;]+;)[^\n]*\n(select [^;]+;)\n```").FindSubmatch(guide)
	if block == nil {
		t.Fatal("the guide's statements are not found")
	}
	r := newRig(t, 1)
	applied := r.numbered(0, 40) // the group's committed offset is behind them
	r.exec(string(block[1]))
	for _, v := range applied {
		r.exec(`insert into applied_orders values ($1)`, v)
	}
	r.exec(string(block[2]))
	values := r.numbered(0, 60)[40:]            // the first 40 of them are copies
	r.log.Append(0, applied[7], id(applied[7])) // a producer sends again
	stop := r.start(effect, testConfig())
	r.reaches(0, 101)
	stop()
	r.once(values...)
}

// docs/guide/adopting.md shows this code; package test/docs compares them.

// fromBoth finds the id that Debezium's event router has set, or the one that a relay has.
func fromBoth(m *consumer.Message) (string, error) {
	if id, err := consumer.HeaderKey("id")(m); err == nil {
		return id, nil
	}
	return consumer.HeaderKey("message-id")(m)
}

// The guide's ways in from Debezium's outbox and from Watermill: copies of what was sent the old
// way and of what is sent the new way are found, while producers move.
func TestAdoptingWhileProducersMove(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		old string
		key consumer.KeyFunc
	}{
		"Debezium":  {"id", fromBoth},
		"Watermill": {"_watermill_message_uuid", consumer.HeaderKey("_watermill_message_uuid")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			var values []string
			for n := range 40 {
				v := fmt.Sprint("v", n)
				h := consumer.Header{Name: c.old, Value: []byte(v)}
				if name == "Debezium" && n%2 == 1 {
					h = id(v) // by a producer that has moved
				}
				r.log.Append(0, v, h)
				r.log.Append(0, v, h)
				values = append(values, v)
			}
			cfg := testConfig()
			cfg.Key = c.key
			stop := r.start(effect, cfg)
			r.reaches(0, 80)
			stop()
			r.once(values...)
		})
	}
}
