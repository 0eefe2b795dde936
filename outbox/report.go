package outbox

import (
	"fmt"

	"github.com/onlyonce/onlyonce/internal/presence"
)

// Kinds of faults that a relay reports, as onlyonce.owners.faults has them.
const (
	faultRemote   = "remote"   // no call is delivered
	faultRefused  = "refused"  // nearly all calls are refused alike, and wait (O17)
	faultHalted   = "halted"   // a lane stands still until an operator has decided
	faultStuck    = "stuck"    // calls have not come back although their contexts have ended (O18)
	faultDatabase = "database" // transactions of the relay fail
)

// reporter reports each sink of this relay (S3).
func (r *Relay) reporter() *presence.Reporter {
	senders := map[string]*sender{}
	var sinks []string
	for _, s := range r.senders {
		senders[s.name] = s
		sinks = append(sinks, s.name)
	}
	return &presence.Reporter{
		Pool:   r.pool,
		Part:   presence.Relay,
		Scopes: sinks,
		Faults: func(sink string) []presence.Fault { return senders[sink].presentFaults() },
		Logger: r.cfg.Logger,
	}
}

// presentFaults returns what keeps this relay from sending the sink's calls now, the kinds in a
// fixed order.
func (s *sender) presentFaults() []presence.Fault {
	var all []presence.Fault
	if since, err := s.link.Trouble(); err != nil {
		all = append(all, presence.Since(faultDatabase, since, err)...)
	}
	if since, err := s.halts.first(); err != nil {
		all = append(all, presence.Since(faultHalted, since, err)...)
	}
	if since, err := s.refusals.waiting(); err != nil {
		all = append(all, presence.Since(faultRefused, since, err)...)
	}
	if since, err := s.remote.down(); err != nil {
		all = append(all, presence.Since(faultRemote, since, err)...)
	}
	if since, n := s.stuck.first(); n > 0 {
		all = append(
			all,
			presence.Since(
				faultStuck,
				since,
				fmt.Errorf("%d calls have not come back although their contexts have ended; the log names them", n),
			)...,
		)
	}
	return all
}
