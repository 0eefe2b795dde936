package idempotency

import (
	"encoding/json"
	"net/http"
)

// code is why the layer answered in place of the application.
type code string

// Codes.
const (
	codeKeyMissing       code = "key-missing"
	codeKeyInvalid       code = "key-invalid"
	codeBodyInvalid      code = "body-invalid"
	codeRequestTooLarge  code = "request-too-large"
	codeKeyReused        code = "key-reused"
	codeInProgress       code = "request-in-progress"
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
)

// problems holds the answer to each code. retryable is for clients (see client.Transport): the same
// request under the same key can end differently without a change by a person.
var problems = map[code]struct {
	status    int
	title     string
	retryable bool
}{
	codeKeyMissing:       {http.StatusBadRequest, "An idempotency key is required", false},
	codeKeyInvalid:       {http.StatusBadRequest, "The idempotency key is invalid", false},
	codeBodyInvalid:      {http.StatusBadRequest, "The request body cannot be compared", false},
	codeRequestTooLarge:  {http.StatusRequestEntityTooLarge, "The request body is too large", false},
	codeKeyReused:        {http.StatusUnprocessableEntity, "The idempotency key belongs to another request", false},
	codeInProgress:       {http.StatusConflict, "A request with this idempotency key is in progress", true},
	codeOverCapacity:     {http.StatusTooManyRequests, "Too many requests with idempotency keys", true},
	codeStoreUnavailable: {http.StatusServiceUnavailable, "The store of idempotency keys is unavailable", true},
	codeCommitUnknown:    {http.StatusServiceUnavailable, "Whether the request took effect is not known yet", true},
	codeResponseTooLarge: {http.StatusInternalServerError, "The response is too large", false},
	codeNotReplayable:    {http.StatusGone, "The request took effect, but its response is not stored", false},
	codeRecordUnreadable: {http.StatusInternalServerError, "The stored response cannot be read", false},
	codeScopeMissing:     {http.StatusForbidden, "The owner of the request cannot be determined", false},
	codeBodyUnreadable:   {http.StatusBadRequest, "The request body could not be read", true},
	codeBodyConsumed:     {http.StatusInternalServerError, "The request body was read before it could be compared", false},
	codeRolledBack:       {http.StatusInternalServerError, "The request was rolled back", true},
}

func (c code) status() int     { return problems[c].status }
func (c code) retryable() bool { return problems[c].retryable }

const (
	// problemType is the prefix of the problems' types. It is a URN, because the project owns no
	// domain.
	problemType = "urn:onlyonce:problem:"
	// maxProblemText bounds a problem's texts in bytes. A client that reads 64 KiB of an answer
	// then always gets the whole problem.
	maxProblemText = 4 << 10
)

// writeRefusal answers with a code and its usual status.
func writeRefusal(w http.ResponseWriter, c code, detail, instance string) {
	writeProblem(w, c.status(), c, detail, instance, c.retryable())
}

// writeProblem answers with a problem (RFC 9457). detail and instance never quote stored or
// received data, which the client might not be allowed to see. Texts that are too long are left
// out.
func writeProblem(w http.ResponseWriter, status int, c code, detail, instance string, retryable bool) {
	short := func(s string) string {
		if len(s) > maxProblemText {
			return ""
		}
		return s
	}
	body, err := json.Marshal(struct {
		Type      string `json:"type"`
		Title     string `json:"title"`
		Status    int    `json:"status"`
		Detail    string `json:"detail,omitempty"`
		Instance  string `json:"instance,omitempty"`
		Code      code   `json:"code"`
		Retryable bool   `json:"retryable"`
	}{problemType + string(c), problems[c].title, status, short(detail), short(instance), c, retryable})
	if err != nil {
		panic(err) // cannot fail: strings, a number and a bool
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Del("Content-Length")
	h.Del("Content-Encoding")
	w.WriteHeader(status)
	_, _ = w.Write(body) // fails if the client has disconnected
}
