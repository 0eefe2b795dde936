package consumer_test

import (
	"os"
	"regexp"
	"testing"
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
