package consumer_test

import (
	"context"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
)

// D3: a producer's clock may say anything: for example nanoseconds, although Kafka has
// milliseconds. Its message is parked all the same, whole and under the nearest time that can be
// stored, and its neighbours are applied.
func TestD3MessageOfAnyTimeIsParked(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.log.Append(0, "first", id("first"))
	m := consumer.Message{
		Value:   []byte("odd"),
		Headers: []consumer.Header{id("odd")},
		Time:    time.UnixMilli(time.Date(2025, 12, 1, 0, 0, 0, 0, time.UTC).UnixNano()),
	}
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
	r.once("first", "last")
	if n := r.count(`select count(*) from onlyonce.parked`); n != 1 {
		t.Errorf("%d rows are parked, want 1", n)
	}
	n := r.count(`select count(*)
                    from onlyonce.parked
                   where "offset" = 1 and state = 'waiting' and reason = 'permanent' and error = 'boom' and body = 'odd'
  and key = onlyonce.key('', 'stock', 'odd') and record_time = '9999-12-31 23:59:59Z'`)
	if n != 1 {
		t.Error("the message is not parked as it came")
		r.dump(`
select "offset",
       state,
       reason,
       error,
       body,
       key,
       record_time
  from onlyonce.parked`)
	}
	if got := r.reasons(); len(got) != 1 || got["1"] != "permanent" {
		t.Errorf("told of: %v", got)
	}
}
