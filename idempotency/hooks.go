package idempotency

import "time"

// Hooks observe the layer. A request's hook is called from the request's goroutine after it was
// answered; keep it short. Nil hooks are skipped. The structs may get more fields.
type Hooks struct {
	// Served is called for each request with a method for which keys count, even if its handler
	// panicked.
	Served func(Served)
	// Purged is called by [Layer.Run] when it has deleted records.
	Purged func(records int)
	// Failed is called for an error of the store: if a request was answered 5xx because of it, or
	// if the purge failed.
	Failed func(error)
}

// Served describes how a request was answered.
type Served struct {
	Pattern, Method, Tenant string
	// Mark is the value of Config.StatusHeader.
	Mark Mark
	// Code is the code of the layer's problem, for example "key-reused". It is empty if the handler
	// answered.
	Code string
	// Status is the answer's status. It is 0 if there was no answer, because the handler panicked
	// or ended its goroutine; Mark is then [Released].
	Status int
	// Runs is how often the handler ran for this request: 0 for a replay, more than 1 after
	// serialization failures.
	Runs int
	// Took is the time from the request to the answer.
	Took time.Duration
}

// Mark is the value of Config.StatusHeader (H9). With it, a client can distinguish the layer's 409
// and 422 from the application's.
type Mark string

// The marks.
const (
	Created    Mark = "created"     // the handler ran, and its answer is stored
	Replayed   Mark = "replayed"    // the answer is the stored one
	InProgress Mark = "in-progress" // a request with the key is running, or its outcome is not known yet
	Mismatch   Mark = "mismatch"    // the key was used for another request
	Bypassed   Mark = "bypassed"    // the handler ran without protection: no key and none required, another method, or FailOpen
	Rejected   Mark = "rejected"    // refused before the handler ran, or undone by the layer
	Released   Mark = "released"    // the handler's own answer, not stored: its writes are undone, and the next request runs again
)
