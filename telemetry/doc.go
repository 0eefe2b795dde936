// Package telemetry records traces and metrics of consumers, relays, HTTP layers and webhook
// endpoints with OpenTelemetry. It uses OpenTelemetry's API only; the SDK and the exporter are
// yours.
//
// [Instrument] adds hooks to a configuration, after the existing ones. Each part records:
//
//   - a consumer: a span for each transaction, with a link to the producer of each of its first 128
//     messages; with Config.Messages in place of these links a span for each message, in the
//     producer's trace and with a link to the transaction; messages of a batch handler have none.
//     Its scope is an attribute of its instrumentation scope;
//   - a relay: a span for each attempt at a call, with a link to the span in which the call was
//     enqueued;
//   - a layer and an endpoint: a span for each request, below the one in the request's context, for
//     example otelhttp's. A stored event carries the trace of its request to the endpoint's
//     consumer.
//
// [Observe] records the metrics of the database, as onlyonce exporter does.
//
// A call carries the trace context of the span in which it was enqueued, the same at each attempt.
// So with Config.Messages a message, its call and the remote's work are one trace.
//
// Metrics have the names of docs/metrics.md. The four of OpenTelemetry's conventions for messaging
// (1.43, still in development) are recorded too. Counters exist from the start, at 0. Attributes
// never hold an id, a key, a tenant or a payload.
//
// Hooks only record: they run in the goroutines that do the work, so use a span processor that
// exports in the background (the SDK's BatchSpanProcessor). If its exporter blocks, the SDK drops
// spans, and the work continues.
package telemetry
