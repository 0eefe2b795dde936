package telemetry

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/metrics"
)

// consumerRecorder records what a consumer does.
type consumerRecorder struct {
	*recorder
	scope                   string
	messages, retries, hung metric.Int64Counter
	delay                   metric.Float64Histogram

	mu     sync.Mutex
	topics map[string]*topicSets
}

// maxTopics is the most topics of a consumer that have metrics of their own. Further ones share the
// name otherTopic, so that a pattern of topics cannot fill the memory of whoever keeps the metrics.
const (
	maxTopics  = 200
	otherTopic = "other"
)

// topicSets are the attributes of a topic's metrics, made once.
type topicSets struct {
	topic                      metric.MeasurementOption
	handled, duplicate, parked metric.MeasurementOption
}

// Consumer adds telemetry to a consumer's configuration, whose Scope must be set: hooks after those
// that are there, middleware around what is there, and Config.Trace if it is not set. Call it
// before consumer.New, once for each configuration.
func Consumer(c *consumer.Config, t Config) error {
	r := &consumerRecorder{recorder: newRecorder(t), scope: c.Scope, topics: map[string]*topicSets{}}
	r.messages, r.retries, r.hung = r.counter(metrics.ConsumerMessages), r.counter(metrics.ConsumerRetries), r.counter(metrics.ConsumerHung)
	r.delay = r.histogram(metrics.ConsumerDelay)
	if r.err != nil {
		return r.err
	}
	c.Hooks = consumer.JoinHooks(c.Hooks, consumer.Hooks{
		AttemptStart: r.begin, AttemptEnd: r.end,
		Retry: func(e consumer.Retry) { r.retries.Add(context.Background(), 1, r.of(e.Topic).topic) },
		Hung:  func(e consumer.Hung) { r.hung.Add(context.Background(), 1, r.of(e.Topic).topic) },
	})
	c.Middleware = append([]consumer.Middleware{r.handle}, c.Middleware...)
	if c.Trace == nil {
		c.Trace = traceOf
	}
	return nil
}

func (r *consumerRecorder) of(topic string) *topicSets {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.topics[topic]; s != nil {
		return s
	}
	if len(r.topics) >= maxTopics {
		topic = otherTopic
		if s := r.topics[topic]; s != nil {
			return s
		}
	}
	set := func(more ...attribute.KeyValue) metric.MeasurementOption {
		return metric.WithAttributeSet(attribute.NewSet(append(more, attribute.String("scope", r.scope), attribute.String("topic", topic))...))
	}
	s := &topicSets{topic: set(), handled: set(attribute.String("outcome", "handled")), duplicate: set(attribute.String("outcome", "duplicate")), parked: set(attribute.String("outcome", "parked"))}
	r.topics[topic] = s
	return s
}

// transaction is the transaction that a context belongs to.
type transaction struct {
	scope, topic string
	partition    int32
	span         trace.Span

	mu    sync.Mutex // a handler that was abandoned may still begin a message
	last  int64      // offset of the last message that began
	times []time.Time
	links int
}

type transactionKey struct{}

func (r *consumerRecorder) begin(ctx context.Context, b consumer.BatchDone) context.Context {
	if b.Messages == 0 { // it only moves the position past offsets that hold nothing
		return ctx
	}
	ctx, span := r.tracer.Start(ctx, "process "+b.Topic, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
		attribute.String(messagingSystem, "kafka"), attribute.String(messagingName, b.Topic), attribute.String(messagingOperation, "process"),
		attribute.Int(messagingPartition, int(b.Partition)), attribute.Int(messagingCount, b.Messages), attribute.String(attrScope, r.scope)))
	return context.WithValue(ctx, transactionKey{}, &transaction{scope: r.scope, topic: b.Topic, partition: b.Partition, span: span, last: -1})
}

// handle is middleware around the call of a handler with one message, or with a batch.
func (r *consumerRecorder) handle(ctx context.Context, _ consumer.Tx, msgs []*consumer.Message, next func(context.Context) error) error {
	t, ok := ctx.Value(transactionKey{}).(*transaction)
	if !ok {
		return next(ctx)
	}
	for _, m := range msgs {
		t.add(m)
	}
	if !r.perMessage || len(msgs) != 1 {
		return next(ctx)
	}
	// The message's span is in its producer's trace, and has a link to the transaction's.
	outer := ctx
	if producer := producerOf(msgs[0]); producer.IsValid() {
		outer = trace.ContextWithRemoteSpanContext(ctx, producer)
	}
	ctx, span := r.tracer.Start(outer, "handle "+t.topic, trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithLinks(trace.Link{SpanContext: t.span.SpanContext()}), trace.WithAttributes(attribute.String(messagingName, t.topic), attribute.String(attrScope, t.scope)))
	err := context.Canceled // unless the handler returns: it may call runtime.Goexit
	defer func() { end(span, err) }()
	err = next(ctx)
	return err
}

// add notes a message whose handler begins. When the transaction runs again, its messages begin
// anew.
func (t *transaction) add(m *consumer.Message) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m.Offset <= t.last {
		t.times = t.times[:0]
	}
	t.last = m.Offset
	t.times = append(t.times, m.Time)
	if t.links < maxLinks && t.span.IsRecording() {
		if producer := producerOf(m); producer.IsValid() {
			t.span.AddLink(trace.Link{SpanContext: producer})
			t.links++
		}
	}
}

// producerOf returns the span that a message's headers name. It is not valid if they name none.
func producerOf(m *consumer.Message) trace.SpanContext {
	parent, ok := m.Header("traceparent")
	if !ok {
		return trace.SpanContext{}
	}
	state, _ := m.Header("tracestate")
	if len(parent)+len(state) >= codec.MaxTrace {
		return trace.SpanContext{}
	}
	return spanContext(codec.JoinTrace(string(parent), string(state)))
}

func (r *consumerRecorder) end(ctx context.Context, b consumer.BatchDone, err error) {
	t, ok := ctx.Value(transactionKey{}).(*transaction)
	if !ok {
		return
	}
	if err == nil {
		sets := r.of(b.Topic)
		for _, n := range []struct {
			count int
			of    metric.MeasurementOption
		}{{b.Handled, sets.handled}, {b.Duplicates, sets.duplicate}, {b.Parked, sets.parked}} {
			if n.count > 0 {
				r.messages.Add(ctx, int64(n.count), n.of)
			}
		}
		now := time.Now()
		t.mu.Lock()
		for _, at := range t.times {
			r.delay.Record(ctx, max(now.Sub(at), 0).Seconds(), sets.topic)
		}
		t.mu.Unlock()
	}
	end(t.span, err, attribute.Int(attrHandled, b.Handled), attribute.Int(attrDuplicates, b.Duplicates), attribute.Int(attrParked, b.Parked),
		attribute.Bool(attrAlone, b.Alone), attribute.Bool(attrFallback, b.Fallback))
}
