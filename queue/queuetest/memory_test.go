package queuetest_test

import (
	"testing"

	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/queue/queuetest"
)

func TestConformance(t *testing.T) {
	queuetest.Conformance(t, queuetest.Harness{
		Queue: func(testing.TB) queuetest.Target {
			m := &queuetest.Memory{}
			return queuetest.Target{
				Connect: func(testing.TB) queue.Broker { return m.Connect() },
				Publish: func(_ testing.TB, all ...queue.Delivery) { m.Publish(all...) },
			}
		},
		Unreachable: func(testing.TB) queue.Broker {
			m := &queuetest.Memory{}
			m.SetAway(true)
			return m.Connect()
		},
	})
}
