package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/onlyonce/onlyonce/internal/metrics"
	"github.com/onlyonce/onlyonce/queue"
)

func instrumentQueue(c *queue.Config, t Config) error {
	r := newRecorder(t)
	received := r.counter(metrics.QueueReceived)
	if r.err != nil {
		return r.err
	}
	name, then := attribute.String("queue", c.Name), c.OnStored
	count := func(s queue.StoredEvent) {
		for outcome, n := range map[string]int{"fresh": s.Fresh, "copy": s.Copies, "parked": s.Parked} {
			received.Add(
				context.Background(),
				int64(n),
				metric.WithAttributes(name, attribute.String("outcome", outcome)),
			)
		}
	}
	count(queue.StoredEvent{}) // so that the counters are there, at 0
	c.OnStored = func(s queue.StoredEvent) {
		if then != nil {
			then(s)
		}
		count(s)
	}
	return nil
}
