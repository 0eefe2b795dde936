package ops

import "time"

// Request is a request of the HTTP layer, without its key, fingerprint and answer. A nil pointer
// means: not yet, or none.
type Request struct {
	ID string `json:"id" doc:"stored form of the Idempotency-Key, a UUID"`
	// State is one of: running; left, if its process died or its handler answered 5xx; abandoned,
	// if its steps had their effect and its client has not retried; reconcile, if a step's outcome
	// is unknown and too old to ask about; completed.
	State        string     `json:"state"`
	Tenant       string     `json:"tenant"`
	Scope        string     `json:"scope" doc:"for example \"http POST /v1/charges\""`
	CreatedAt    time.Time  `json:"created_at"`
	CompletedAt  *time.Time `json:"completed_at"`
	ExpiresAt    *time.Time `json:"expires_at"`
	ErasedAt     *time.Time `json:"erased_at"`
	Bytes        *int64     `json:"bytes" doc:"size of the stored answer"`
	Unknown      []string   `json:"unknown" doc:"names of steps without a result"`
	Done         []string   `json:"done" doc:"names of steps with a result"`
	UnknownSince *time.Time `json:"unknown_since" doc:"since when the provider may know the first unknown step's key"`
}
