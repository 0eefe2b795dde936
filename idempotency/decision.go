package idempotency

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/onlyonce/onlyonce/internal/guard"
)

// Final makes the handler's answer final, whatever its status (H27): the layer stores it, and each
// copy of the request gets it. Use it, for example, for a 503 of a provider that will never accept
// the request. For an answer of 400 or above the layer undoes the writes, as for any final refusal,
// unless Route.KeepWrites is set.
//
// While a [Step] of the request has an unknown outcome, the layer does not store the answer even
// so: the next request has to find out the outcome. The last call of Final or [Transient] counts.
// Without a [Layer], and after the handler's return, they have no effect.
func Final(r *http.Request) { decide(r, decidedFinal) }

// Transient makes the handler's refusal transient, whatever its status (H27): the layer undoes its
// writes and does not store it, and the next request under the key runs again. Use it, for example,
// for a 402 that the customer can resolve by topping up. Set Retry-After to make clients retry by
// themselves. An answer below 400 cannot be transient: the client gets 500 (code "rolled-back")
// instead.
func Transient(r *http.Request) { decide(r, decidedTransient) }

// decide records the handler's decision about its answer (H27).
func decide(r *http.Request, d decision) {
	run, ok := r.Context().Value(runKey{}).(*handlerRun)
	if !ok {
		return
	}
	run.asking.Lock()
	defer run.asking.Unlock()
	if !run.returned.Load() {
		run.decision = d
	}
}

// errTransientSuccess is why an answer was not sent.
var errTransientSuccess = errors.New("idempotency: the handler called Transient, and answered with a status below 400")

// maxReference bounds a reference, in bytes.
const maxReference = 1024

// errReference is wrapped by every error of [Reference].
var errReference = errors.New("idempotency: the answer cannot be stored by reference")

// Reference stores a reference in place of the answer's body (H28), for example the id of the
// charge that the handler has made, or the key and the ETag of an object. Status and headers are
// stored as usual. Route.Render renders the body again for copies of the request. The first client
// gets the handler's own body, of up to 32 MiB.
//
// The reference has 1 to 1,024 bytes. It is sealed like an answer. Reference returns an error
// outside of a route with Render, and after the handler's return. If the layer does not store the
// answer, it does not store the reference.
func Reference(r *http.Request, reference string) error {
	run, ok := r.Context().Value(runKey{}).(*handlerRun)
	switch {
	case !ok || run.handler.route.Render == nil:
		return fmt.Errorf("%w: the request has no route with Render", errReference)
	case reference == "" || len(reference) > maxReference:
		return fmt.Errorf("%w: it must have 1 to %d bytes, and has %d", errReference, maxReference, len(reference))
	}
	run.asking.Lock()
	defer run.asking.Unlock()
	if run.returned.Load() {
		return guard.ErrClosed
	}
	run.reference = reference
	return nil
}

// ErrReferenceGone is for Route.Render to return, also wrapped, if the referenced object no longer
// exists. The client gets 410 (code "response-not-replayable").
var ErrReferenceGone = errors.New("idempotency: the referenced object no longer exists")
