package idempotency

import "encoding/hex"

// derivedPrefix begins each derived key. No client can send it, because a key is printable (H4).
const derivedPrefix = "\x00derived "

// derivesKey reports whether a request of this scope that has no key gets a derived one. Nobody's
// request does not: two strangers who send the same would get one answer (H34).
func (rh *routeHandler) derivesKey(scope Scope) bool {
	return rh.route.DeriveKeyFor > 0 && scope != Scope{}
}

// deriveKey makes the request's key of what makes two requests equal, which the fingerprint covers.
// It is the keyed hash: the record's id, which is made of it, gives nothing away.
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

// outcome returns what an answer says of the request.
func (req *servedRequest) outcome(rep reply) ServeOutcome {
	if req.derived && (rep.mark == Created || rep.mark == Replayed) {
		return Derived
	}
	return rep.mark
}
