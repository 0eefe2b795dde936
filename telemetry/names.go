package telemetry

import (
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/metric"
)

// Attributes of OpenTelemetry's semantic conventions 1.43. Those for messaging are still in
// development, so names are pinned in this file.
const (
	errorType          = "error.type"
	messagingSystem    = "messaging.system"
	messagingName      = "messaging.destination.name"
	messagingOperation = "messaging.operation.type"
	messagingOpName    = "messaging.operation.name"
	messagingCount     = "messaging.batch.message_count"
	messagingPartition = "messaging.destination.partition.id"
)

// Metrics of the conventions. A consumer records consumed and process, a relay sent and operation.
// Their attributes are messagingOpName, messagingSystem, messagingName, and errorType after an
// error.
const (
	messagingConsumed  = "messaging.client.consumed.messages"
	messagingProcess   = "messaging.process.duration"
	messagingSent      = "messaging.client.sent.messages"
	messagingDuration  = "messaging.client.operation.duration"
	messagingMessages  = "{message}"
	messagingOpProcess = "process"
	messagingOpSend    = "send"
)

// messagingBuckets are the bounds that the conventions advise, in seconds.
var messagingBuckets = []float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10}

// messaging is a counter and a histogram of the conventions.
type messaging struct {
	messages metric.Int64Counter
	duration metric.Float64Histogram
}

func (r *recorder) messaging(counter, counted, histogram, timed string) (m messaging) {
	var of [2]error
	m.messages, of[0] = r.meter.Int64Counter(
		counter,
		metric.WithUnit(messagingMessages),
		metric.WithDescription(counted),
	)
	m.duration, of[1] = r.meter.Float64Histogram(
		histogram,
		metric.WithUnit("s"),
		metric.WithDescription(timed),
		metric.WithExplicitBucketBoundaries(messagingBuckets...),
	)
	if err := errors.Join(of[:]...); err != nil {
		r.err = errors.Join(r.err, fmt.Errorf("telemetry: %s, %s: %w", counter, histogram, err))
	}
	return m
}

// Attributes of spans that are our own.
const (
	attrScope      = "onlyonce.scope"
	attrHandled    = "onlyonce.handled"
	attrDuplicates = "onlyonce.duplicates"
	attrParked     = "onlyonce.parked"
	attrAlone      = "onlyonce.alone"
	attrFallback   = "onlyonce.fallback"
	attrAttempt    = "onlyonce.attempt"
	attrKind       = "onlyonce.attempt.kind"
	attrName       = "onlyonce.call.name"
	attrOutcome    = "onlyonce.outcome"
	attrRoute      = "onlyonce.route"
	attrEndpoint   = "onlyonce.endpoint"
	attrRuns       = "onlyonce.runs"
	attrStatus     = "http.response.status_code"
)
