package idempotency

import (
	"errors"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
	"github.com/onlyonce/onlyonce/internal/codec"
)

// reply is an answer of the layer: a problem, or the handler's answer.
type reply struct {
	mark       Mark
	code       code        // of a problem; empty for the handler's answer
	status     int         // of a problem, 0 means its code's
	set, added http.Header // of the handler's answer: headers that replace those of middleware around the layer, and values appended to them
	body       []byte
	expires    *time.Time
	retryAfter time.Duration
	final      bool  // of a problem: it must not be retried, even if its code is retryable
	failed     error // the error to log
}

// answer makes the reply for the first client, with all of the handler's headers.
func answer(m Mark, rec *recorder) reply {
	set, added := rec.change()
	return reply{mark: m, status: rec.status(), set: set, added: added, body: rec.body()}
}

// refusal makes a reply with a problem.
func refusal(c code, failed error) reply {
	rep := reply{mark: Rejected, code: c, failed: failed}
	switch c {
	case codeStoreUnavailable, codeOverCapacity, codeRolledBack:
		rep.retryAfter = time.Second
	case codeCommitUnknown:
		rep.mark, rep.retryAfter = InProgress, time.Second
	case codeKeyReused:
		rep.mark = Mismatch
	case codeInProgress:
		rep.mark = InProgress
	}
	return rep
}

// inProgress makes the reply to a copy of a request that is still running.
func inProgress(left time.Duration) reply {
	rep := refusal(codeInProgress, nil)
	rep.retryAfter = min(max(left, time.Second), 5*time.Second)
	return rep
}

// respond writes the reply and returns its status.
func (x *exchange) respond(rep reply) int {
	h, cfg := x.w.Header(), &x.layer.cfg
	if rep.code == "" {
		restore(h, rep.set, rep.added)
	} else if location := rep.set.Get("Location"); location != "" {
		h.Set("Location", location)
	}
	// A handler that forwards a provider's answer may forward the provider's headers of these names
	// too. They must describe this layer only.
	for _, own := range []string{cfg.StatusHeader, cfg.ReplayedHeader, cfg.ExpiresHeader, cfg.Header, cfg.Header + "-Derived"} {
		h.Del(own)
	}
	h.Set(cfg.StatusHeader, string(rep.mark))
	if rep.mark == Replayed {
		h.Set(cfg.ReplayedHeader, "true")
	}
	if x.keyed {
		if value, err := protocol.WriteString(x.key); err == nil {
			h.Set(cfg.Header, value)
		}
	}
	if x.derived {
		h.Set(cfg.Header+"-Derived", "true")
	}
	if rep.expires != nil {
		h.Set(cfg.ExpiresHeader, rep.expires.UTC().Format(http.TimeFormat))
	}
	if rep.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int((rep.retryAfter+time.Second-1)/time.Second)))
	}
	if rep.code != "" {
		status := rep.code.status()
		switch {
		case rep.code == codeKeyReused:
			status = x.endpoint.route.MismatchStatus
		case rep.status != 0:
			status = rep.status
		}
		writeProblem(x.w, status, rep.code, x.detail, x.instance(), rep.code.retryable() && !rep.final)
		return status
	}
	x.w.WriteHeader(rep.status)
	if len(rep.body) > 0 {
		_, _ = x.w.Write(rep.body) // if the client has disconnected, it retries
	}
	return rep.status
}

// instance identifies the request in a problem by its record's id, from which the key cannot be
// found.
func (x *exchange) instance() string {
	if x.id == [16]byte{} {
		return ""
	}
	return "urn:uuid:" + codec.UUIDv8(x.id).String()
}

// stored returns what is stored of a handler's answer.
func (e *endpoint) stored(rec *recorder) *response {
	set, added := rec.change()
	r := &response{Status: rec.status(), Body: rec.body()}
	r.Header, r.Added = storable(set, added, rec.header(), e.route.KeepHeaders)
	if e.route.NoStoreBody && len(r.Body) > 0 || len(r.Body) > e.route.MaxResponse {
		r.Body, r.Tombstone = nil, true
	}
	return r
}

// envelope returns the answer as it is stored: encoded, and sealed if there is a Sealer.
func (x *exchange) envelope(rec *recorder) (stored []byte, sealed bool, err error) {
	return x.layer.seal(codec.SealPlace(x.id, sealedAnswer, ""), x.endpoint.stored(rec).encode())
}

// The kinds of sealed values (H24), see codec.SealPlace: the answer of a record and the results of
// its steps, the input and the result of an operation, and a record's entry in the cache.
const (
	sealedAnswer = "answer"
	sealedStep   = "step"
	sealedInput  = "input"
	sealedResult = "result"
	sealedEntry  = "entry"
)

// seal seals a value for a place, and reports whether it did: without a Sealer the value is stored
// as it is (H16).
func (l *Layer) seal(place [16]byte, value []byte) (stored []byte, sealed bool, err error) {
	if l.cfg.Sealer == nil {
		return value, false, nil
	}
	stored, err = l.cfg.Sealer.Seal(place, value)
	return stored, true, err
}

var (
	// errNoSealer is returned for a sealed value if there is no Sealer.
	errNoSealer = errors.New("idempotency: the stored value is sealed, but Config.Sealer is not set")
	// errUnsealed is returned for a value that is not sealed although the configuration requires
	// it.
	errUnsealed = errors.New("idempotency: the stored value is not sealed, but Config.RequireSealed is set")
)

// open returns the value that was stored in a place.
func (l *Layer) open(place [16]byte, stored []byte, sealed bool) ([]byte, error) {
	switch {
	case !sealed && l.cfg.RequireSealed:
		return nil, errUnsealed
	case !sealed:
		return stored, nil
	case l.cfg.Sealer == nil:
		return nil, errNoSealer
	}
	return l.cfg.Sealer.Open(place, stored)
}

// fromRecord answers a request from the record under its key.
func (x *exchange) fromRecord(r *record) reply {
	same, err := x.layer.fingerprints.matches(r.fingerprint, &x.subject)
	if errors.Is(err, errJSON) { // the record was made when the route compared bodies as JSON, and this body is not JSON
		same, err = false, nil
	}
	if err != nil {
		return refusal(codeRecordUnreadable, err)
	}
	if !same {
		return refusal(codeKeyReused, nil)
	}
	switch r.state {
	case stateRunning:
		return inProgress(r.leaseLeft)
	case stateReconcile:
		return refusal(codeCommitUnknown, nil)
	}
	x.layer.seen.add(x.id)
	if r.erased {
		return gone(nil)
	}
	stored, err := x.layer.open(codec.SealPlace(x.id, sealedAnswer, ""), r.response, r.sealed)
	if err != nil {
		return refusal(codeRecordUnreadable, err)
	}
	resp, err := decodeResponse(stored)
	if err != nil {
		return refusal(codeRecordUnreadable, err)
	}
	x.share(r, resp)
	return replay(resp, r.expires)
}

// replay repeats the first answer.
func replay(resp *response, expires *time.Time) reply {
	if resp.Tombstone {
		return gone(resp.Header)
	}
	return reply{mark: Replayed, status: resp.Status, set: resp.Header, added: resp.Added, body: resp.Body, expires: expires}
}

// gone is the reply if the first answer was not stored, or was erased.
func gone(h http.Header) reply {
	rep := reply{mark: Replayed, code: codeNotReplayable, set: http.Header{}}
	maps.Copy(rep.set, h)
	return rep
}
