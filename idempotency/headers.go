package idempotency

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
)

// storedHeaders are the headers that are stored with an answer and replayed to every client (H14).
// It lists what is allowed, not what is forbidden, so that a header that we did not think of goes
// to the first client only.
var storedHeaders = []string{
	"Accept-Patch", "Accept-Post", "Allow", "Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Location",
	"Content-Range", "Content-Type", "Etag", "Last-Modified", "Link", "Location", "Retry-After", "Vary",
}

// checkKeepHeaders checks the names in Route.KeepHeaders. Its error lists every fault.
func checkKeepHeaders(names []string) error {
	var faults []error
	for _, name := range names {
		if !protocol.ValidName(name) {
			faults = append(faults, fmt.Errorf("is %q: must be the name of a header", name))
		} else if why := protocol.NeverStored(http.CanonicalHeaderKey(name)); why != "" {
			faults = append(faults, fmt.Errorf("%q is never stored: it %s", name, why))
		}
	}
	return errors.Join(faults...)
}

// headersToStore returns what is stored of an answer's headers: of those that replace the headers
// of middleware around the layer, and of those that are added to them. final holds all headers,
// including Connection, which names further headers that must not be stored (H14).
func headersToStore(set, added, final http.Header, extra []string) (keepSet, keepAdded http.Header) {
	named := connectionNames(final)
	return storedSubset(set, named, extra), storedSubset(added, named, extra)
}

// connectionNames returns the headers that are for one connection because its Connection header
// names them (RFC 9110 section 7.6.1).
func connectionNames(h http.Header) map[string]bool {
	var named map[string]bool
	for name, values := range h {
		if http.CanonicalHeaderKey(name) != "Connection" {
			continue
		}
		for _, value := range values {
			for option := range strings.SplitSeq(value, ",") {
				if named == nil {
					named = map[string]bool{}
				}
				named[http.CanonicalHeaderKey(strings.Trim(option, " \t"))] = true
			}
		}
	}
	return named
}

// storedSubset returns the headers that may be stored, by canonical name, with their values in
// order.
func storedSubset(h http.Header, named map[string]bool, extra []string) http.Header {
	keep := make(http.Header, len(h))
	for _, name := range sortedNames(h) { // sorted, so that a name that occurs in two cases gets its values in the same order each time
		canonical := http.CanonicalHeaderKey(name)
		if protocol.NeverStored(canonical) != "" || !slices.Contains(storedHeaders, canonical) && !slices.ContainsFunc(extra, func(e string) bool { return http.CanonicalHeaderKey(e) == canonical }) {
			continue
		}
		for _, value := range h[name] {
			if protocol.ValidHeader(canonical, value) {
				keep[canonical] = append(keep[canonical], value)
			}
		}
	}
	maps.DeleteFunc(keep, func(name string, _ []string) bool { return named[name] })
	return keep
}

// applyHeaders writes an answer's headers: set replaces the values that are there under the same
// name, added is appended to them. An answer without a Content-Type gets none; net/http would guess
// one.
func applyHeaders(to, set, added http.Header) {
	for name := range to {
		if canonical := http.CanonicalHeaderKey(name); canonical != name {
			if _, has := set[canonical]; has {
				delete(to, name)
			}
		}
	}
	to["Content-Type"] = nil
	for name, values := range set {
		to[name] = slices.Clone(values)
	}
	for name, values := range added {
		to[name] = append(slices.Clip(to[name]), values...)
	}
}
