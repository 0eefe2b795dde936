package consumer_test

import (
	"context"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
)

// A producer's clock may say anything: nanoseconds where Kafka has milliseconds, say. Its message is parked all the same.
func TestD3MessageOfAnyTimeIsParked(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.log.Append(0, "first", id("first"))
	m := consumer.Message{Value: []byte("odd"), Headers: []consumer.Header{id("odd")}, Time: time.UnixMilli(time.Date(2025, 12, 1, 0, 0, 0, 0, time.UTC).UnixNano())}
	r.log.AppendMessage(0, &m)
	r.log.Append(0, "last", id("last"))
	stop := r.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset == 1 {
			return consumer.Permanent(errBoom)
		}
		return queued(ctx, tx, m)
	}, testConfig())
	r.reaches(0, 3)
	stop()
}
