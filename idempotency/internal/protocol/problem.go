package protocol

import (
	"encoding/json"
	"mime"
	"net/http"
)

// MaxProblem is the most bytes of an answer that a client reads to find out whether it is a problem
// that is final. Each of the server's own problems is shorter.
const MaxProblem = 64 << 10

// IsFinalProblem reports whether an answer is a problem (RFC 9457) that asks not to be retried: one
// whose member "retryable" is false.
func IsFinalProblem(h http.Header, body []byte) bool {
	media, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil || media != "application/problem+json" {
		return false
	}
	var problem struct {
		Retryable *bool `json:"retryable"`
	}
	return json.Unmarshal(body, &problem) == nil && problem.Retryable != nil && !*problem.Retryable
}
