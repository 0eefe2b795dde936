package webhook

import (
	"cmp"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/bodies"
	"github.com/onlyonce/onlyonce/internal/intake"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/ready"
	"github.com/onlyonce/onlyonce/internal/watch"
	"github.com/onlyonce/onlyonce/shard"
)

// Endpoint is one provider's webhooks from the request to the handler: an http.Handler that
// verifies and stores events, and an [Endpoint.Run] that applies them and forgets old ids. It is
// safe for concurrent use.
type Endpoint struct {
	pool   *primary.Pool
	cfg    Config
	intake *intake.Intake
	worker *consumer.Consumer // of the stored events, if the endpoint consumes them itself
	slots  chan struct{}      // a token for each verified event that is being processed
	bodies *bodies.Room       // the memory of bodies that are held

	set    *shard.Set           // nil if there is one database
	name   string               // of the endpoint's database, if there are several
	shards map[string]*Endpoint // of an endpoint of several databases: one for each; it has no pool itself

	refusals pace.Seldom // log lines of refused requests
	begun    ready.Run
	watched  *watch.Clock // of Run
}

// Consumer returns the consumer of the endpoint's stored events, for its status and its readiness;
// nil if the endpoint has none, because Handler is not set or runs inline. An endpoint of several
// databases has one in each of [Endpoint.Shards].
func (ep *Endpoint) Consumer() *consumer.Consumer { return ep.worker }

// place returns the place of an event.
func (ep *Endpoint) place(i *incomingEvent) string { return cmp.Or(i.event.Tenant, ep.cfg.Name) }
