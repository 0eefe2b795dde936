package idempotency

import "encoding/hex"

// derivedPrefix begins each derived key. No client can send it, because a key is printable (H4).
const derivedPrefix = "\x00derived "

// derivesKey reports whether a request of this scope that has no key gets a derived one. A request
// without an owner gets none: two strangers who send the same would get one answer (H34).
func (rh *routeHandler) derivesKey(scope Scope) bool {
	return rh.route.DeriveKeyFor > 0 && scope != Scope{}
}

// deriveKey makes the request's key from the fingerprint's subject, so that equal requests share
// it. It is the keyed hash: the record's id, which is made of it, gives nothing away.
func (req *servedRequest) deriveKey() error {
	sum, err := req.handler.layer.fingerprints.sum(&req.subject)
	if err != nil {
		return err
	}
	req.key = derivedPrefix + hex.EncodeToString(sum)
	req.derived = true
	req.ttl = req.handler.route.DeriveKeyFor
	return nil
}

// outcome returns the outcome that an answer reports.
func (req *servedRequest) outcome(rep reply) ServeOutcome {
	if req.derived && (rep.mark == Created || rep.mark == Replayed) {
		return Derived
	}
	return rep.mark
}
