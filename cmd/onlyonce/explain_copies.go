package main

import (
	"fmt"
	"slices"

	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/ops"
)

// strange reports whether the key is never claimed in a ring, because it is a call's, a webhook's
// or a request's. That the ring does not hold it then means nothing.
func strange(r *ops.KeyReport, which string) bool {
	held := slices.ContainsFunc(r.Claims, func(c ops.Claim) bool { return c.Ring == which })
	return !held && (r.Request != nil || which != ring.StandardKeys().Name && (len(r.Call) > 0 || len(r.Webhooks) > 0))
}

func (a *app) writeCopies(r *ops.KeyReport) {
	for _, c := range r.Copies {
		if c.Because == nil && strange(r, c.Ring) {
			continue
		}
		from := "that a consumer reads from Kafka"
		if c.Ring == ring.StandardKeys().Name {
			from = "that a webhook brings, that dedupe.Claim is asked for, or that is a call from outside of consumers"
		}
		_, _ = fmt.Fprintf(a.out, "A copy %s is %s.\n", from, verdict(r, c))
	}
}

func verdict(r *ops.KeyReport, c ops.Copy) string {
	switch {
	case c.Because == nil && slices.ContainsFunc(r.Claims, func(k ops.Claim) bool { return k.Ring == c.Ring }):
		return fmt.Sprintf("new: %s is no longer asked for the key", c.Ring)
	case c.Because == nil:
		return fmt.Sprintf("new: %s does not hold the key", c.Ring)
	case *c.Because == "parked":
		return fmt.Sprintf("a duplicate for as long as what is parked is not settled, although %s does not hold the key", c.Ring)
	case *c.Because == "stored":
		return "a duplicate for as long as the call is stored"
	}
	return fmt.Sprintf("a duplicate: %s holds the key", c.Ring)
}
