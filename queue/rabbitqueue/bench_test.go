package rabbitqueue_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// BenchmarkReceive receives, stores and acknowledges messages of 200 bytes, one process.
func BenchmarkReceive(b *testing.B) {
	r := newRabbit(b)
	all := make([]queue.Delivery, b.N)
	for n := range all {
		all[n] = queue.Delivery{ID: fmt.Sprint("m", n), Body: make([]byte, 200)}
	}
	r.publish(all...)
	ctx, stop := context.WithCancel(b.Context())
	stored := 0
	q, err := queue.New(pgtest.DB(b), r.broker(), queue.Config{Name: "q", CopiesWithin: time.Hour, Stored: func(s queue.Stored) {
		if stored += s.Fresh; stored >= b.N {
			stop()
		}
	}})
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	if err := q.Receive(ctx); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}
