package sharesource_test

import (
	"context"
	"errors"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
)

// G1: two members get the records of one partition, and each has one effect. Handlers fail now and
// then, and a record that always fails is parked.
func TestG1EachRecordOnce(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		r := newRig(t, brokers)
		fails := func(_ context.Context, m *consumer.Message) error {
			switch {
			case string(m.Value) == "7":
				return errors.New("never")
			case m.Offset%13 == 0 && m.Attempt < 2:
				return errors.New("not yet")
			}
			return nil
		}
		r.write(200)
		r.start("a", fails)
		r.start("b", fails)
		r.applied(1)
		r.write(100)
		r.applied(1)
		r.until("members have acknowledged every record", func() bool { return int(r.acked.Load()) >= r.written })
	})
}
