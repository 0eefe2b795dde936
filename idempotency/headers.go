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

// storedHeaders are the headers that are kept with an answer and given to whoever asks again (H14). It is a list of what may be kept, and not
// of what may not: a header that nobody thought of belongs to the first client alone.
var storedHeaders = []string{
	"Accept-Patch", "Accept-Post", "Allow", "Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Location",
	"Content-Range", "Content-Type", "Etag", "Last-Modified", "Link", "Location", "Retry-After", "Vary",
}

// unstorable says why a header is never kept (H14), or "". Names are canonical.
func unstorable(name string) string {
	switch name {
	case "Set-Cookie", "Set-Cookie2", "Cookie", "Authorization", "Authentication-Info":
		return "is about one client's session or credentials"
	case "Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length", "Http2-Settings":
		return "is about one connection or one message's framing"
	case "Date", "Age":
		return "says when an answer was sent"
	}
	switch {
	case strings.HasPrefix(name, "Www-"), strings.HasPrefix(name, "Proxy-"):
		return "is about one client's session or credentials"
	case strings.HasPrefix(name, "Access-Control-"):
		return "answers one request's origin"
	}
	return ""
}

// checkExtra judges the names of headers that are to be kept besides, and returns every fault at once.
func checkExtra(names []string) error {
	var faults []error
	for _, name := range names {
		if !protocol.ValidName(name) {
			faults = append(faults, fmt.Errorf("%q is not a header name", name))
		} else if why := unstorable(http.CanonicalHeaderKey(name)); why != "" {
			faults = append(faults, fmt.Errorf("%q is never stored: it %s", name, why))
		}
	}
	return errors.Join(faults...)
}

// storable returns what is kept of an answer's headers: of those that are set, and of those that are added to what stands outside. final are all of
// them, with Connection, which says what else is not kept.
func storable(set, added, final http.Header, extra []string) (keepSet, keepAdded http.Header) {
	named := connectionNames(final)
	return kept(set, named, extra), kept(added, named, extra)
}

// connectionNames are the headers that are for one connection (RFC 9110 section 7.6.1), whatever their names.
func connectionNames(h http.Header) map[string]bool {
	named := map[string]bool{}
	for name, values := range h {
		if http.CanonicalHeaderKey(name) != "Connection" {
			continue
		}
		for _, value := range values {
			for option := range strings.SplitSeq(value, ",") {
				named[http.CanonicalHeaderKey(strings.Trim(option, " \t"))] = true
			}
		}
	}
	return named
}

// kept are the headers that may be stored, by canonical names, values in their order.
func kept(h http.Header, named map[string]bool, extra []string) http.Header {
	keep := http.Header{}
	for _, name := range slices.Sorted(maps.Keys(h)) { // sorted: where a map has a name in two cases, their order is no accident
		canonical := http.CanonicalHeaderKey(name)
		if unstorable(canonical) != "" || !slices.Contains(storedHeaders, canonical) && !slices.ContainsFunc(extra, func(e string) bool { return http.CanonicalHeaderKey(e) == canonical }) {
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

// restore puts an answer's headers into the header that it is sent with: set in the place of what is there under their names, added behind it. An answer
// without a Content-Type gets none: net/http would guess one.
func restore(to, set, added http.Header) {
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
