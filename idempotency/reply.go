package idempotency

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/outcome"
)

// Headers of the layer's answers.
const (
	headerStatus   = outcome.HeaderStatus  // what the layer did, a ServeOutcome
	headerReplayed = "Idempotent-Replayed" // "true" if the answer is a stored one
	headerExpires  = outcome.HeaderExpires // until when the answer is stored
)

// reply is an answer of the layer: a problem, or the handler's answer.
type reply struct {
	mark   ServeOutcome
	code   code // of a problem; empty for the handler's answer
	status int  // of a problem, 0 means its code's
	// of the handler's answer: headers that replace those of middleware around the layer, and
	// values appended to them
	set, added http.Header
	body       []byte
	trailer    http.Header // of the handler's answer
	expires    *time.Time
	retryAfter time.Duration
	final      bool  // of a problem: it must not be retried, even if its code is retryable
	logged     error // the error to log
}

// handlerReply makes the reply for the first client, with all of the handler's headers.
func handlerReply(m ServeOutcome, rec *recorder) reply {
	h := rec.headerChanges()
	return reply{mark: m, status: rec.status(), set: h.set, added: h.added, body: rec.body(), trailer: rec.trailer()}
}

// problemReply makes a reply with a problem (H9).
func problemReply(c code, failed error) reply {
	rep := reply{mark: Rejected, code: c, logged: failed}
	switch c {
	case codeStoreUnavailable, codeOverCapacity, codeRolledBack, codeKeyChanged:
		rep.retryAfter = time.Second
	case codeCommitUnknown, codeNotRendered, codeKeyContended:
		rep.mark = InProgress
		rep.retryAfter = time.Second
	case codeKeyReused:
		rep.mark = Mismatch
	case codeInProgress:
		rep.mark = InProgress
	}
	return rep
}

// inProgressReply makes the reply to a copy of a request that is still running.
func inProgressReply(left time.Duration) reply {
	rep := problemReply(codeInProgress, nil)
	rep.retryAfter = min(max(left, time.Second), 5*time.Second)
	return rep
}

// writeReply writes the reply and returns its status (H9).
func (req *servedRequest) writeReply(rep reply) int {
	h := req.w.Header()
	cfg := &req.layer.cfg
	if rep.code == "" {
		applyHeaders(h, rep.set, rep.added)
	} else if location := rep.set.Get("Location"); location != "" {
		h.Set("Location", location)
	}
	// A handler that forwards a provider's answer may forward the provider's headers of these names
	// too. They must describe this layer only.
	for _, own := range []string{headerStatus, headerReplayed, headerExpires, cfg.Headers[0]} {
		h.Del(own)
	}
	h.Set(headerStatus, string(req.outcome(rep)))
	if rep.mark == Replayed {
		h.Set(headerReplayed, "true")
	}
	if req.key != "" && !req.derived {
		if value, err := protocol.FormatString(req.key); err == nil {
			h.Set(cfg.Headers[0], value)
		}
	}
	if rep.expires != nil {
		h.Set(headerExpires, rep.expires.UTC().Format(http.TimeFormat))
	}
	if rep.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int((rep.retryAfter+time.Second-1)/time.Second)))
	}
	if rep.code != "" {
		status := rep.code.status()
		if rep.status != 0 {
			status = rep.status
		}
		req.layer.writeProblem(
			req.w,
			req.http,
			newProblem(status, rep.code, req.detail, req.problemInstance(), rep.code.retryable() && !rep.final),
		)
		return status
	}
	trailers := sortedNames(rep.trailer)
	for _, name := range trailers {
		h.Add("Trailer", name)
	}
	req.w.WriteHeader(rep.status)
	if len(rep.body) > 0 {
		_, _ = req.w.Write(rep.body) // if the client has disconnected, it retries
	}
	for _, name := range trailers {
		h[name] = rep.trailer[name]
	}
	return rep.status
}

// problemInstance identifies the request in a problem by its record's id, from which the key cannot
// be found.
func (req *servedRequest) problemInstance() string {
	if req.id == [16]byte{} {
		return ""
	}
	return "urn:uuid:" + codec.UUIDv8(req.id).String()
}

// storedResponse returns what is stored of a handler's answer (H28).
func (run *handlerRun) storedResponse(rec *recorder) *storedResponse {
	route := &run.handler.route
	h := rec.headerChanges()
	r := &storedResponse{Status: rec.status(), Body: rec.body(), Trailer: rec.trailer(), Operation: run.operation}
	r.Header, r.Added = headersToStore(h.set, h.added, h.final, route.KeepHeaders)
	if run.reference != "" {
		r.Body = nil
		r.Reference = run.reference
		return r
	}
	if route.DiscardBody && len(r.Body) > 0 || len(r.Body) > route.MaxResponse {
		r.Body = nil
		r.Tombstone = true
	}
	return r
}

// recordedAnswer is an answer as its record has it.
type recordedAnswer struct {
	bytes   []byte
	sealed  bool
	refusal *int16 // the status, if it is 400 or above
}

// encodeResponse returns the answer as it is stored: encoded, and sealed if there is a Sealer
// (H16). The status of a refusal is stored beside it too, because it stays when the answer is
// erased (H15).
func (req *servedRequest) encodeResponse(run *handlerRun, rec *recorder) (a recordedAnswer, err error) {
	resp := run.storedResponse(rec)
	if resp.Status >= http.StatusBadRequest {
		status := int16(resp.Status) // at most lastStatus
		a.refusal = &status
	}
	a.bytes, a.sealed, err = req.layer.seal(sealPlace{req.id, sealedAnswer, ""}, resp.encode())
	return a, err
}

// storedHeaders are the headers that are stored with an answer and replayed to every client (H14).
// It lists what is allowed, not what is forbidden, so that a header that we did not think of goes
// to the first client only.
var storedHeaders = []string{
	"Accept-Patch", "Accept-Post", "Allow", "Cache-Control", "Content-Disposition",
	"Content-Encoding", "Content-Language", "Content-Location", "Content-Range", "Content-Type",
	"Etag", "Last-Modified", "Link", "Location", "Retry-After", "Vary",
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
	// sorted, so that a name that occurs in two cases gets its values in the same order each time
	for _, name := range sortedNames(h) {
		canonical := http.CanonicalHeaderKey(name)
		if protocol.NeverStored(canonical) != "" ||
			!slices.Contains(storedHeaders, canonical) &&
				!slices.ContainsFunc(extra, func(e string) bool { return http.CanonicalHeaderKey(e) == canonical }) {
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
