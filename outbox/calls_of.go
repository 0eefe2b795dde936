package outbox

import "strings"

// callsOf says whose calls a rate is for: of the sink as a whole (the zero value), of a tenant, or
// of ordering keys with a prefix.
type callsOf struct{ tenant, prefix string }

// allCalls are those of the sink as a whole.
var allCalls callsOf

// stored is onlyonce.rates.calls_of.
func (c callsOf) stored() string {
	switch {
	case c.prefix != "":
		return "key " + c.prefix
	case c.tenant != "":
		return "tenant " + c.tenant
	}
	return ""
}

// parseCallsOf parses what stored returns.
func parseCallsOf(stored string) (c callsOf) {
	if prefix, is := strings.CutPrefix(stored, "key "); is {
		c.prefix = prefix
	} else {
		c.tenant = strings.TrimPrefix(stored, "tenant ")
	}
	return c
}

// limitedCalls are those that need permits, but for the sink's. None of the arrays is nil, because
// that would become NULL.
type limitedCalls struct {
	tenants    []string
	prefixes   []int64 // as codec.OrderPrefix has them
	ofPrefixes []string
}
