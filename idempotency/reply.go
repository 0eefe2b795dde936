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

// reply is what is answered: a problem, or an answer of the handler's.
type reply struct {
	mark       Mark
	code       code        // of a problem
	status     int         // of a problem: 0 is its code's
	set, added http.Header // of the answer: in the place of what stands around the layer, and behind it
	body       []byte
	expires    *time.Time
	retryAfter time.Duration
	final      bool  // of a problem: not to be sent again, whatever its code says
	failed     error // what the operator should know
}

// answer is the handler's, to the first client: with all its headers.
func answer(m Mark, rec *recorder) reply {
	set, added := rec.change()
	return reply{mark: m, status: rec.status(), set: set, added: added, body: rec.body()}
}

// refusal is a problem.
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

// inProgress is the answer to a duplicate of a request that is under way.
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
	// A handler that passes on a provider's answer passes on what that says of itself. These headers speak of this layer alone.
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
		_, _ = x.w.Write(rep.body) // a client that has gone comes again
	}
	return rep.status
}

// instance names the request in a problem: by its record, which says nothing to who does not know the key.
func (x *exchange) instance() string {
	if x.id == [16]byte{} {
		return ""
	}
	return "urn:uuid:" + codec.UUIDv8(x.id).String()
}

// stored is what of a handler's answer is answered again.
func (e *endpoint) stored(rec *recorder) *response {
	set, added := rec.change()
	r := &response{Status: rec.status(), Body: rec.body()}
	r.Header, r.Added = storable(set, added, rec.header(), e.route.KeepHeaders)
	if e.route.NoStoreBody && len(r.Body) > 0 || len(r.Body) > e.route.MaxResponse {
		r.Body, r.Tombstone = nil, true
	}
	return r
}

// envelope is that as it is kept.
func (x *exchange) envelope(rec *recorder) (stored []byte, sealed bool, err error) {
	return x.layer.seal(codec.SealPlace(x.id, sealedAnswer, ""), x.endpoint.stored(rec).encode())
}

// Which of a row's values a sealed one is, see codec.SealPlace: the answer of a record and the results of its steps, the input of an operation and
// its result, and a record's entry in the cache (H24).
const (
	sealedAnswer = "answer"
	sealedStep   = "step"
	sealedInput  = "input"
	sealedResult = "result"
	sealedEntry  = "entry"
)

// seal makes of a value what is stored in a place, and says whether that is sealed (H16).
func (l *Layer) seal(place [16]byte, value []byte) (stored []byte, sealed bool, err error) {
	if l.cfg.Sealer == nil {
		return value, false, nil
	}
	stored, err = l.cfg.Sealer.Seal(place, value)
	return stored, true, err
}

var (
	// errNoSealer says that what is stored cannot be read here.
	errNoSealer = errors.New("idempotency: what is stored is sealed, and there is no Config.Sealer")
	// errUnsealed says that what is stored is not to be believed here.
	errUnsealed = errors.New("idempotency: what is stored is not sealed, and Config.RequireSealed is set")
)

// open is what was stored in a place.
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

// judge answers a request under whose key a record stands.
func (x *exchange) judge(r *record) reply {
	same, err := x.layer.print.matches(r.fingerprint, &x.subject)
	if errors.Is(err, errJSON) { // the record is from when the route compared JSON: its body could be read
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
	return again(resp, r.expires)
}

// again is the first one's answer.
func again(resp *response, expires *time.Time) reply {
	if resp.Tombstone {
		return gone(resp.Header)
	}
	return reply{mark: Replayed, status: resp.Status, set: resp.Header, added: resp.Added, body: resp.Body, expires: expires}
}

// gone is the answer where the first one's was not stored, or was erased.
func gone(h http.Header) reply {
	rep := reply{mark: Replayed, code: codeNotReplayable, set: http.Header{}}
	maps.Copy(rep.set, h)
	return rep
}
