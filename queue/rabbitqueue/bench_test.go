package rabbitqueue_test

import (
	"testing"

	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/test/queuerig"
)

// BenchmarkQueue is a quorum queue.
func BenchmarkQueue(b *testing.B) {
	queuerig.Bench(b, func(b *testing.B, messages []queue.Delivery) queue.Broker {
		r := newRabbit(b)
		r.publish(messages...)
		return r.broker()
	})
}
