package idempotency

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/onlyonce/onlyonce/internal/guard"
)

// decision is what a handler has decided about its answer. Without one, the status decides.
type decision int

const (
	byStatus decision = iota
	decidedFinal
	decidedTransient
)

// Final makes the handler's answer final, whatever its status (H27): it is stored, and each copy of
// the request gets it. For example a 503 of a provider that will never accept the request. Of an
// answer of 400 or above the writes are undone, as of any final refusal, unless Route.KeepWrites is
// set.
//
// As long as a [Step] of the request has an unknown outcome, nothing is stored all the same: the
// next request has to find the outcome out. Of several calls of Final and [Transient] the last one
// counts. Without a [Layer], and after the handler's return, they have no effect.
func Final(r *http.Request) { decide(r, decidedFinal) }

// Transient makes the handler's refusal transient, whatever its status (H27): its writes are
// undone, nothing is stored, and the next request under the key runs again. For example a 402 that
// the customer can mend by topping up. Set Retry-After to have clients come back by themselves. An
// answer below 400 cannot be transient: it is not sent, and the client gets 500 (code
// "rolled-back").
func Transient(r *http.Request) { decide(r, decidedTransient) }

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
// gets the body that the handler writes, which may have up to 32 MiB then.
//
// The reference has 1 to 1,024 bytes. It is sealed as answers are. Reference returns an error
// outside of a route with Render, and after the handler's return. If the answer is not stored, its
// reference is not either.
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

// ErrReferenceGone is what Route.Render returns, also wrapped, if what the reference names does not
// exist any more. The client gets 410 (code "response-not-replayable").
var ErrReferenceGone = errors.New("idempotency: what the reference names does not exist any more")
