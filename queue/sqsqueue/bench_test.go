package sqsqueue_test

import (
	"testing"

	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/test/queuerig"
)

// BenchmarkQueue is a standard queue of moto, a server in Python, so it measures the adapter and
// not SQS.
func BenchmarkQueue(b *testing.B) {
	queuerig.Bench(b, func(b *testing.B, messages []queue.Delivery) queue.Broker {
		s := newServer(b)
		url := s.queue("", nil)
		s.publish(url, messages...)
		return s.broker(url)
	})
}
