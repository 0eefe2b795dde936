package density

// perCall are the types whose values live exactly as long as one call, and may hold its context.
// Each is named by its directory and name.
var perCall = map[string]bool{
	// A call of Run, until it returns.
	"cmd/onlyonce.exporter":           true,
	"consumer/franzsource.fetchers":   true,
	"consumer/franzsource.membership": true,
	"consumer/kafkasource.membership": true,
	"internal/primary.pinnedRow":      true,
	"internal/rig/memlog.Held":        true,
	"onlyoncetest.Process":            true,
	"onlyoncetest.play":               true,
	"cmd/idemcheck/suite.session":     true,
	"outbox.heldLanes":                true,

	// A partition or a lane, from when it is taken until it is left.
	"consumer.stop":                      true,
	"consumer/franzsource.heldPartition": true,
	"internal/eventsource.partition":     true,
	"outbox.heldLane":                    true,

	// A request, a transaction, or calls that are made together.
	"consumer.preparedContext":          true,
	"consumer/franzsource.pendingFetch": true,
	"idempotency.servedRequest":         true,
	"internal/intake.ticket":            true,
	"ops/console.visit":                 true,
	"outbox.laneCalls":                  true,
	"outbox/kafkasink.sendGroup":        true,
	"sqltx.own":                         true,

	// Of tests: a test's rig, until the test ends, or a request.
	"cmd/onlyonce.session":       true,
	"idempotency/client.tracked": true,
	"ops/console/e2e.run":        true,
	"test/adversary.rig":         true,
	"test/seams.world":           true,
	"test/storm/webhook.hangs":   true,
}
