package natsqueue_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// BenchmarkReceive receives, stores and acknowledges messages of 200 bytes, one process.
func BenchmarkReceive(b *testing.B) {
	s := newServer(b)
	pool, stream, js := pgtest.DB(b), s.stream(), s.js()
	for n := range b.N {
		msg := nats.NewMsg(stream + ".a")
		msg.Data = make([]byte, 200)
		msg.Header.Set(nats.MsgIdHdr, fmt.Sprint("m", n))
		if _, err := js.PublishMsgAsync(msg); err != nil {
			b.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	ctx, stop := context.WithCancel(b.Context())
	stored := 0
	q, err := queue.New(pool, s.broker(stream), queue.Config{Name: "q", CopiesWithin: time.Hour, Stored: func(s queue.Stored) {
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
