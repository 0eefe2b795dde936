package telemetry

// Attributes of OpenTelemetry's semantic conventions 1.43. Those for messaging are still in
// development, so they are pinned here.
const (
	errorType          = "error.type"
	messagingSystem    = "messaging.system"
	messagingName      = "messaging.destination.name"
	messagingOperation = "messaging.operation.type"
	messagingCount     = "messaging.batch.message_count"
	messagingPartition = "messaging.destination.partition.id"
)

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
