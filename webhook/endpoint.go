package webhook

import (
	"sync/atomic"

	"github.com/onlyonce/onlyonce/internal/bodies"
	"github.com/onlyonce/onlyonce/internal/eventsource"
	"github.com/onlyonce/onlyonce/internal/intake"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/ready"
	"github.com/onlyonce/onlyonce/internal/watch"
	"github.com/onlyonce/onlyonce/shard"
)

// Endpoint receives one provider's webhooks: an http.Handler that verifies and stores events, and
// the source of the stored ones for a consumer. It is for one consumer. It is safe for concurrent
// use.
//
// Requests that arrive together are stored together: at most two transactions of a database are
// under way at a time, and each takes what waits when it begins, at most 100 events and 8 MiB. An
// event that comes alone is stored at once. Each request is answered by itself, after the COMMIT
// (W23).
type Endpoint struct {
	pool   *primary.Pool
	cfg    Config
	store  *intake.Store[*incomingEvent]
	gather *intake.Gather[*incomingEvent] // of the requests that wait to be stored
	events *eventsource.Source            // of the stored events; nil if there are none here
	slots  chan struct{}                  // a token for each verified event that is being processed
	bodies *bodies.Room                   // the memory of bodies that are held

	set    *shard.Set           // nil if there is one database
	name   string               // of the endpoint's database, if there are several
	shards map[string]*Endpoint // of an endpoint of several databases: one for each; it has no pool itself

	refusals pace.Seldom  // log lines of refused requests
	storing  ready.Link   // whether events can be stored
	consumed atomic.Bool  // it is a consumer's source
	kept     atomic.Bool  // Upkeep runs
	begun    ready.Run    // of Upkeep
	watched  *watch.Clock // of Upkeep

	oldIDs, oldBodies *pace.Portion // that one statement of Upkeep deletes
}
