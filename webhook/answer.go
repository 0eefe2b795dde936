package webhook

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/onlyonce/onlyonce/internal/pace"
)

// duplicateHeader is set, to "true", in the answer to a copy of an event (W9).
const duplicateHeader = "Webhook-Duplicate"

// statusOf returns the status for a verifier's refusal.
func statusOf(err error) int {
	if refused, is := errors.AsType[*Error](err); is {
		return refused.Status()
	}
	return http.StatusBadRequest
}

// answer is how a request was answered.
type answer struct {
	outcome ReceiveOutcome // empty unless the status is 200
	status  int
	err     error // the reason of a refusal
}

// writeAccepted writes a 200, with duplicateHeader for a copy.
func (ep *Endpoint) writeAccepted(w http.ResponseWriter, outcome ReceiveOutcome, body string) answer {
	switch outcome {
	case Duplicate, Divergent, SameBody:
		w.Header().Set(duplicateHeader, "true")
	}
	w.Header().Set("Cache-Control", "no-store")
	if body != "" {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
	}
	w.WriteHeader(http.StatusOK)
	_, _ = io.WriteString(w, body) // if this fails, the sender notices
	return answer{outcome: outcome, status: http.StatusOK}
}

// refusalKinds are the errors whose refusals are logged apart.
var refusalKinds = []error{
	ErrTooLarge, ErrMalformed, ErrSignature, ErrStale, ErrUnavailable, ErrPending, ErrStore,
	ErrHandler, ErrTenant, ErrBusy, ErrQuarantineFull, errMethod, errBodyUnreadable, errBodySlow,
}

// refusalKind names the kind of a refusal, for the bound on log lines.
func refusalKind(err error) string {
	for _, kind := range refusalKinds {
		if errors.Is(err, kind) {
			return kind.Error()
		}
	}
	return ""
}

// writeRefusal writes a status and its name, and no more: the causes that share a status are for
// the operator's log only (W6).
func (ep *Endpoint) writeRefusal(w http.ResponseWriter, status int, err error) answer {
	w.Header().Set("Cache-Control", "no-store")
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", strconv.Itoa(int(ep.cfg.RetryAfter/time.Second)))
	}
	http.Error(w, http.StatusText(status), status)
	if held, yes := ep.refusals.Let(strconv.Itoa(status)+refusalKind(err), time.Now(), pace.Refusals); yes {
		if status == http.StatusServiceUnavailable {
			err = ep.pool.WhileAway(err)
		}
		ep.cfg.Logger.Warn("onlyonce: webhook refused",
			"endpoint", ep.cfg.Name, "status", status, "error", err, "not_logged", held)
	}
	return answer{status: status, err: err}
}
