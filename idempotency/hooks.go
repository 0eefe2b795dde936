package idempotency

import "time"

// Hooks are called once a request is answered, from its goroutine. Nil hooks are skipped. The structs may grow.
type Hooks struct {
	// Served is called for every request of a method that keys count for, also for one whose handler panicked.
	Served func(Served)
	// Purged is called by [Layer.Run] when it has deleted records.
	Purged func(records int)
	// Failed is called for errors of the store that a request was answered 5xx for, and those of the purge.
	Failed func(error)
}

// Served tells what became of a request.
type Served struct {
	Pattern, Method, Tenant string
	// Mark is what Config.StatusHeader said.
	Mark Mark
	// Code is the problem's, empty where the answer is the handler's.
	Code string
	// Status is the answer's; 0 where there was none, because the handler panicked or ended its goroutine. Mark is then [Released].
	Status int
	// Runs is how often the handler ran for this request: more than once after serialization failures.
	Runs int
	// Took is the time from the request to the answer.
	Took time.Duration
}

// Mark is the value of Config.StatusHeader (H9): it separates the layer's 409 and 422 from those of the application.
type Mark string

// Marks.
const (
	Created    Mark = "created"     // the handler ran, and its answer is stored
	Replayed   Mark = "replayed"    // the answer is the stored one
	InProgress Mark = "in-progress" // another request with the key is under way, or its outcome is open
	Mismatch   Mark = "mismatch"    // the key was used for another request
	Bypassed   Mark = "bypassed"    // the handler ran without protection: no key where none is needed, another method, or FailOpen
	Rejected   Mark = "rejected"    // refused before the handler ran, or undone by the layer
	Released   Mark = "released"    // the handler's own answer, which is not stored: its writes are undone and the key is free
)
