package idempotency

import (
	"cmp"
	"encoding/json"
	"net/http"

	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
)

// code is why the layer answered in place of the application.
type code string

// Problem is an answer that refuses a request (RFC 9457).
type Problem struct {
	// Type identifies the kind of problem, for example "urn:onlyonce:problem:key-reused".
	Type string `json:"type"`
	// Title describes the problem, in the same words for each problem of a type.
	Title string `json:"title"`
	// Status is the answer's.
	Status int `json:"status"`
	// Detail says more about this request. It may be empty.
	Detail string `json:"detail,omitempty"`
	// Instance identifies the request without revealing its key. It may be empty.
	Instance string `json:"instance,omitempty"`
	// Code is the reason, for programs.
	Code string `json:"code"`
	// Retryable reports whether the same request under the same key can end differently without a
	// person's intervention.
	Retryable bool `json:"retryable"`
}

// Write answers with the problem as application/problem+json. Handlers may use it for refusals of
// their own, so that clients find "retryable" in each; set Retryable as the layer will treat the
// answer, see [Final] and [Transient]. If Status is 0, it is 500.
func (p Problem) Write(w http.ResponseWriter) {
	p.Status = cmp.Or(p.Status, http.StatusInternalServerError)
	writeBody(w, p.Status, "application/problem+json", p.encode())
}

func (p Problem) encode() []byte {
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // cannot fail: strings, a number and a bool
	}
	return body
}

// Codes.
const (
	codeKeyMissing       code = "key-missing"
	codeKeyInvalid       code = "key-invalid"
	codeBodyInvalid      code = "body-invalid"
	codeRequestTooLarge  code = "request-too-large"
	codeKeyReused        code = "key-reused"
	codeInProgress       code = "request-in-progress"
	codeKeyContended     code = "key-contended"
	codeOverCapacity     code = "over-capacity"
	codeStoreUnavailable code = "store-unavailable"
	codeCommitUnknown    code = "commit-unknown"
	codeResponseTooLarge code = "response-too-large"
	codeNotReplayable    code = "response-not-replayable"
	codeRecordUnreadable code = "record-unreadable"
	codeScopeMissing     code = "scope-missing"
	codeBodyUnreadable   code = "body-unreadable"
	codeBodyConsumed     code = "body-consumed"
	codeRolledBack       code = "rolled-back"
	codeNotRendered      code = "response-not-rendered"
	codeKeyChanged       code = "fingerprint-key-changed"
)

// problems holds the answer to each code. retryable is for clients (see client.Transport): the same
// request under the same key can end differently without a change by a person.
var problems = map[code]struct {
	status    int
	title     string
	retryable bool
}{
	codeKeyMissing:      {http.StatusBadRequest, "An idempotency key is required", false},
	codeKeyInvalid:      {http.StatusBadRequest, "The idempotency key is invalid", false},
	codeBodyInvalid:     {http.StatusBadRequest, "The request body cannot be compared", false},
	codeRequestTooLarge: {http.StatusRequestEntityTooLarge, "The request body is too large", false},
	codeKeyReused:       {http.StatusUnprocessableEntity, "The idempotency key belongs to another request", false},
	codeInProgress:      {http.StatusConflict, "A request with this idempotency key is in progress", true},
	codeKeyContended: {
		http.StatusServiceUnavailable,
		"Other requests with this idempotency key come and go faster than this one can answer",
		true,
	},
	codeOverCapacity:     {http.StatusTooManyRequests, "Too many requests with idempotency keys", true},
	codeStoreUnavailable: {http.StatusServiceUnavailable, "The store of idempotency keys is unavailable", true},
	codeCommitUnknown:    {http.StatusServiceUnavailable, "Whether the request took effect is not known yet", true},
	codeResponseTooLarge: {http.StatusInternalServerError, "The response is too large", false},
	codeNotReplayable:    {http.StatusGone, "The request took effect, but its response is not stored", false},
	codeRecordUnreadable: {http.StatusInternalServerError, "The stored response cannot be read", false},
	codeScopeMissing:     {http.StatusForbidden, "The owner of the request cannot be determined", false},
	codeBodyUnreadable:   {http.StatusBadRequest, "The request body could not be read", true},
	codeBodyConsumed: {
		http.StatusInternalServerError,
		"The request body was read before it could be compared",
		false,
	},
	codeRolledBack: {http.StatusInternalServerError, "The request was rolled back", true},
	codeNotRendered: {
		http.StatusServiceUnavailable,
		"The request took effect, but its response cannot be rendered now",
		true,
	},
	codeKeyChanged: {http.StatusServiceUnavailable, "The request cannot be compared with earlier ones now", true},
}

func (c code) status() int { return problems[c].status }

func (c code) retryable() bool { return problems[c].retryable }

const (
	// problemType is the prefix of the problems' types. It is a URN, because the project owns no
	// domain.
	problemType = "urn:onlyonce:problem:"
	// maxProblemText bounds a problem's texts in bytes. A client that reads 64 KiB of an answer
	// then always gets the whole problem.
	maxProblemText = 4 << 10
)

// newProblem makes a problem of the layer. detail and instance never quote stored or received data,
// which the client might not be allowed to see. Texts that are too long are left out.
func newProblem(status int, c code, detail, instance string, retryable bool) Problem {
	short := func(s string) string {
		if len(s) > maxProblemText {
			return ""
		}
		return s
	}
	return Problem{
		problemType + string(c),
		problems[c].title,
		status,
		short(detail),
		short(instance),
		string(c),
		retryable,
	}
}

// writeRefusal answers with a code and its usual status.
func (l *Layer) writeRefusal(w http.ResponseWriter, r *http.Request, c code) {
	l.writeProblem(w, r, newProblem(c.status(), c, "", "", c.retryable()))
}

// writeProblem answers with a problem, in the API's own form if there is a Config.Problem (H9).
func (l *Layer) writeProblem(w http.ResponseWriter, r *http.Request, p Problem) {
	if l.cfg.Problem == nil {
		p.Write(w)
		return
	}
	contentType, body := l.cfg.Problem(r, p)
	if !protocol.ValidHeader("Content-Type", contentType) || contentType == "" {
		p.Write(w)
		return
	}
	writeBody(w, p.Status, contentType, body)
}

func writeBody(w http.ResponseWriter, status int, contentType string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	h.Del("Content-Length")
	h.Del("Content-Encoding")
	w.WriteHeader(status)
	_, _ = w.Write(body) // fails if the client has disconnected
}
