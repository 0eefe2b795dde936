package natsqueue_test

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/test/queuerig"
)

// BenchmarkQueue is a stream on a server in this process.
func BenchmarkQueue(b *testing.B) {
	queuerig.Bench(b, func(b *testing.B, messages []queue.Delivery) queue.Broker {
		s := newServer(b)
		stream, js := s.stream(), s.js()
		for _, d := range messages {
			msg := nats.NewMsg(stream + ".a")
			msg.Data = d.Body
			msg.Header.Set(nats.MsgIdHdr, d.ID)
			if _, err := js.PublishMsgAsync(msg); err != nil {
				b.Fatal(err)
			}
		}
		<-js.PublishAsyncComplete()
		return s.broker(stream)
	})
}
