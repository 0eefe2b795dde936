package outcome

import (
	"encoding/json"
	"mime"
	"net/http"
	"strings"
)

// HeaderStatus is the header in which the HTTP layer says what it did: its mark (H9, H27).
const HeaderStatus = "Idempotency-Status"

// HeaderExpires is the header in which the layer says until when it keeps an answer (H19).
const HeaderExpires = "Idempotency-Expires"

// The marks: values of HeaderStatus.
const (
	Created    = "created"
	Replayed   = "replayed"
	InProgress = "in-progress"
	Mismatch   = "mismatch"
	Derived    = "derived"
	Bypassed   = "bypassed"
	Rejected   = "rejected"
	Released   = "released"
)

// Mark returns the mark of an answer, or nothing if it has none: it comes from a gateway, or from
// another server.
func Mark(h http.Header) string {
	mark := strings.ToLower(strings.TrimSpace(h.Get(HeaderStatus)))
	switch mark {
	case Created, Replayed, InProgress, Mismatch, Derived, Bypassed, Rejected, Released:
		return mark
	}
	return ""
}

// Marked returns what an answer of the project's own HTTP layer has shown. It is not ok if the
// answer has no mark, or one that says no more than the status does. body is at least the
// beginning of the answer's.
//
//   - created, replayed: the answer is kept. Below 400 it took effect. From 400 on it did not, by
//     any attempt, and each further one gets this answer. A 410 may be the layer's own: it took
//     effect, and its answer was not kept (H15).
//   - in-progress: an attempt runs, or its outcome is not known.
//   - mismatch: the key was used for another request. What became of that is not said.
//   - rejected: the layer refused or undid this attempt. It may not have looked for the key.
//   - released: nothing is kept, and the next attempt runs the handler again. Steps of this run may
//     have had their effect (H18).
//   - bypassed: the handler ran without a key. After a 5xx it may have left effects, which another
//     attempt would repeat (H22).
//   - derived: the request came without a key, so a later one may run again (H34): what the status
//     says counts.
func Marked(status int, h http.Header, body []byte) (a Answer, ok bool) {
	switch Mark(h) {
	case Created, Replayed:
		if status < http.StatusBadRequest || isAnswerNotKept(status, h, body) {
			return Answer{Applied: WasApplied}, true
		}
		return Answer{Applied: NotApplied, OfTheKey: true}, true
	case InProgress:
		return Answer{Again: retryable(h, body, true)}, true
	case Mismatch:
		return Answer{Applied: NotApplied}, true
	case Rejected:
		again := status >= http.StatusInternalServerError || status == http.StatusTooManyRequests
		return Answer{Applied: NotApplied, Again: retryable(h, body, again)}, true
	case Released:
		return Answer{Again: true}, true
	case Bypassed:
		if status >= http.StatusInternalServerError {
			return Answer{}, true
		}
	}
	return Answer{}, false
}

// isAnswerNotKept reports whether an answer is the layer's 410 to a copy of a request whose answer
// was not kept. A handler's own 410 is kept, and says until when.
func isAnswerNotKept(status int, h http.Header, body []byte) bool {
	if status != http.StatusGone || Mark(h) != Replayed {
		return false
	}
	p, is := readProblem(h, body)
	return is && p.Code == "response-not-replayable" || h.Get(HeaderExpires) == ""
}

// MaxProblem is the most bytes of an answer that are read to find out whether it is a problem. Each
// of the layer's own is shorter.
const MaxProblem = 64 << 10

// problem is a problem (RFC 9457), as far as it concerns a client.
type problem struct {
	Code      string `json:"code"`
	Retryable *bool  `json:"retryable"`
}

func readProblem(h http.Header, body []byte) (p problem, is bool) {
	media, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil || media != "application/problem+json" {
		return p, false
	}
	return p, json.Unmarshal(body, &p) == nil
}

// IsFinalProblem reports whether an answer is a problem that asks not to be retried: one whose
// member "retryable" is false. Any server may answer so.
func IsFinalProblem(h http.Header, body []byte) bool { return !retryable(h, body, true) }

// retryable is what a problem says of another attempt, or otherwise if it says nothing.
func retryable(h http.Header, body []byte, otherwise bool) bool {
	p, is := readProblem(h, body)
	if !is || p.Retryable == nil {
		return otherwise
	}
	return *p.Retryable
}
