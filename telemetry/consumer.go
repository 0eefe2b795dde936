package telemetry

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/metrics"
)

// consumerRecorder records what a consumer does.
type consumerRecorder struct {
	*recorder
	scope                   string
	messages, retries, hung metric.Int64Counter
	delay                   metric.Float64Histogram
	processed               messaging
	kind                    []trace.SpanStartOption // of a message's span

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
	topic              metric.MeasurementOption
	delay              []metric.RecordOption // topic, as Record takes it
	handled, duplicate metric.MeasurementOption
	skipped, parked    metric.MeasurementOption
	processed, failed  metric.MeasurementOption // of the conventions' metrics
	tracer             trace.Tracer             // of messages' spans; nil without them
	span               []attribute.KeyValue     // of a message's span
}

func instrumentConsumer(c *consumer.Config, t Config) error {
	r := &consumerRecorder{
		recorder: newRecorder(t),
		scope:    c.Scope,
		topics:   map[string]*topicSets{},
		kind:     []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer)},
	}
	r.messages = r.counter(metrics.ConsumerMessages)
	r.retries = r.counter(metrics.ConsumerRetries)
	r.hung = r.counter(metrics.ConsumerHung)
	r.delay = r.histogram(metrics.ConsumerDelay)
	r.processed = r.messaging(messagingConsumed, "Messages of transactions that ended, also of those that failed.",
		messagingProcess, "Time that a transaction took.")
	if r.err != nil {
		return r.err
	}
	hooks := consumer.Hooks{
		AttemptStart: r.begin, AttemptEnd: r.end, HandleBatchStart: r.handleBatch,
		Owned: func(o consumer.OwnedEvent) { r.of(o.Topic) }, // so that its counters are there, at 0
		Retry: func(e consumer.RetryEvent) { r.retries.Add(context.Background(), 1, r.of(e.Topic).topic) },
		Hung:  func(e consumer.HungEvent) { r.hung.Add(context.Background(), 1, r.of(e.Topic).topic) },
	}
	if r.perMessage {
		hooks.HandleStart = r.handle
		hooks.HandleEnd = func(ctx context.Context, _ *consumer.Message, err error) { endMessage(ctx, err) }
	}
	c.Hooks = c.Hooks.Join(hooks)
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
	ours := []attribute.KeyValue{attribute.String("scope", r.scope), attribute.String("topic", topic)}
	theirs := []attribute.KeyValue{
		attribute.String(messagingSystem, "kafka"),
		attribute.String(messagingOpName, messagingOpProcess),
		attribute.String(messagingName, topic),
	}
	s := &topicSets{
		topic:     with(ours),
		handled:   with(ours, attribute.String("outcome", "handled")),
		duplicate: with(ours, attribute.String("outcome", "duplicate")),
		skipped:   with(ours, attribute.String("outcome", "skipped")),
		parked:    with(ours, attribute.String("outcome", "parked")),
		processed: with(theirs),
		failed:    with(theirs, attribute.String(errorType, "_OTHER")),
	}
	if r.perMessage {
		// The conventions ask for the topic. The scope, which is the same in all spans of a
		// consumer, is an attribute of the instrumentation's scope: in each span it would cost as
		// much again.
		s.span = []attribute.KeyValue{attribute.String(messagingName, topic)}
		s.tracer = r.tracers.Tracer(
			instrumentation,
			trace.WithInstrumentationAttributes(attribute.String(attrScope, r.scope)),
		)
	}
	s.delay = []metric.RecordOption{s.topic}
	r.topics[topic] = s
	for _, outcome := range []metric.MeasurementOption{s.handled, s.duplicate, s.skipped, s.parked} {
		r.messages.Add(context.Background(), 0, outcome)
	}
	r.retries.Add(context.Background(), 0, s.topic)
	r.hung.Add(context.Background(), 0, s.topic)
	return s
}

// with makes a set of attributes, once for all measurements.
func with(attrs []attribute.KeyValue, more ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(slices.Concat(attrs, more)...))
}

// transaction is the transaction that a context belongs to.
type transaction struct {
	scope, topic string
	partition    int32
	sets         *topicSets
	span         trace.Span
	handle       string     // name of its messages' spans
	link         trace.Link // of its messages' spans
	begun        time.Time

	recording bool // the span: it is sampled

	mu       sync.Mutex          // a handler that was abandoned may still begin a message
	times    []time.Duration     // of the last run's messages, since begun; a time.Time has a pointer
	msgs     []*consumer.Message // of the last run, with spans for messages
	hasSpans bool                // messages have spans of their own
	links    int
}

type transactionKey struct{}

func (r *consumerRecorder) begin(ctx context.Context, b consumer.Batch) context.Context {
	if b.Messages == 0 { // it only moves the position past offsets that hold nothing
		return ctx
	}
	ctx, span := r.tracer.Start(
		ctx,
		"process "+b.Topic,
		trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(
			attribute.String(messagingSystem, "kafka"),
			attribute.String(messagingName, b.Topic),
			attribute.String(messagingOperation, "process"),
			attribute.Int(messagingPartition, int(b.Partition)),
			attribute.Int(messagingCount, b.Messages),
			attribute.String(attrScope, r.scope),
		),
	)
	t := &transaction{
		scope:     r.scope,
		topic:     b.Topic,
		partition: b.Partition,
		sets:      r.of(b.Topic),
		span:      span,
		recording: span.IsRecording(),
		begun:     time.Now(),
	}
	if r.perMessage {
		t.handle, t.link = "handle "+b.Topic, trace.Link{SpanContext: span.SpanContext()}
	}
	return context.WithValue(ctx, transactionKey{}, t)
}

// handle begins the handler's call with one message.
func (r *consumerRecorder) handle(ctx context.Context, m *consumer.Message) context.Context {
	t, ok := ctx.Value(transactionKey{}).(*transaction)
	if !ok {
		return ctx
	}
	t.mu.Lock()
	t.hasSpans = true
	t.mu.Unlock()
	// The message's span is in its producer's trace, and has a link to the transaction's, which
	// needs none to the producer then.
	if of := producerOf(m); of.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, of)
	}
	ctx, span := t.sets.tracer.Start(ctx, t.handle, r.kind...)
	// Set after Start, which would copy those of its options once more.
	span.SetAttributes(t.sets.span...)
	span.AddLink(t.link)
	return ctx
}

// handleBatch notes the messages of a run, and links the transaction's span to their producers.
// When the transaction runs again, they are the same or fewer.
func (r *consumerRecorder) handleBatch(ctx context.Context, msgs []*consumer.Message) context.Context {
	t, ok := ctx.Value(transactionKey{}).(*transaction)
	if !ok {
		return ctx
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.times = slices.Grow(t.times[:0], len(msgs))
	for _, m := range msgs {
		t.times = append(t.times, m.Time.Sub(t.begun))
	}
	if r.perMessage {
		t.msgs = msgs // it is not known yet whether they will have spans
	} else if t.links == 0 {
		t.linkTo(msgs)
	}
	return ctx
}

// endMessage ends the span that handle has put into the context. If it has not, because the SDK
// panicked, the span there is the transaction's.
func endMessage(ctx context.Context, err error) {
	t, ok := ctx.Value(transactionKey{}).(*transaction)
	if span := trace.SpanFromContext(ctx); ok && span.SpanContext().SpanID() != t.link.SpanContext.SpanID() {
		end(span, err)
	}
}

// linkTo links the transaction's span to messages' producers. A producer that sent several in a row
// within one span has one link. The caller has the lock.
func (t *transaction) linkTo(msgs []*consumer.Message) {
	if !t.recording {
		return
	}
	var linked []byte // traceparent of the last one with a link
	for _, m := range msgs {
		parent, ok := m.Header(traceparent)
		if !ok || bytes.Equal(parent, linked) {
			continue
		}
		state, _ := m.Header(tracestate)
		if of := spanOf(parent, state); of.IsValid() && t.links < maxLinks {
			t.span.AddLink(trace.Link{SpanContext: of})
			linked = parent
			t.links++
		}
	}
}

// producerOf returns the span that a message's headers name. It is not valid if they name none.
func producerOf(m *consumer.Message) trace.SpanContext {
	parent, ok := m.Header(traceparent)
	if !ok {
		return trace.SpanContext{}
	}
	state, _ := m.Header(tracestate)
	return spanOf(parent, state)
}

func (r *consumerRecorder) end(ctx context.Context, b consumer.BatchResult, err error) {
	t, ok := ctx.Value(transactionKey{}).(*transaction)
	if !ok {
		return
	}
	sets, processed := t.sets, t.sets.processed
	if err != nil {
		processed = sets.failed
	}
	r.processed.messages.Add(ctx, int64(b.Messages), processed)
	r.processed.duration.Record(ctx, time.Since(t.begun).Seconds(), processed)
	if err == nil {
		for _, n := range []struct {
			count int
			of    metric.MeasurementOption
		}{
			{b.Handled, sets.handled},
			{b.Duplicates, sets.duplicate},
			{b.Skipped, sets.skipped},
			{b.Parked, sets.parked},
		} {
			if n.count > 0 {
				r.messages.Add(ctx, int64(n.count), n.of)
			}
		}
		r.delays(ctx, t)
	}
	if t.mu.Lock(); !t.hasSpans && !errors.Is(err, consumer.ErrHandlerHung) { // such a handler may still change them
		t.linkTo(t.msgs) // a batch handler's
	}
	t.mu.Unlock()
	end(
		t.span,
		err,
		attribute.Int(attrHandled, b.Handled),
		attribute.Int(attrDuplicates, b.Duplicates),
		attribute.Int(attrParked, b.Parked),
		attribute.Bool(attrAlone, b.Alone),
		attribute.Bool(attrFallback, b.Fallback),
	)
}

// delays records how long after its time each message was committed. Only the longest delay of a
// transaction is an exemplar: one message leads to the trace of them all.
func (r *consumerRecorder) delays(ctx context.Context, t *transaction) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.times) == 0 {
		return
	}
	// In floating point, because a message without a time is further away than a Duration reaches.
	now, first := float64(time.Since(t.begun)), slices.Min(t.times)
	unsampled := context.Background()
	exemplar := true
	for _, at := range t.times {
		within := unsampled
		if exemplar && at == first {
			within, exemplar = ctx, false
		}
		r.delay.Record(within, max(now-float64(at), 0)/float64(time.Second), t.sets.delay...)
	}
}
