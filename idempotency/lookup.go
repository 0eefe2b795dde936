package idempotency

// lookup is what stands under a request's key in the store, as it was found before the request
// takes the key.
type lookup struct {
	kind   lookupKind
	reply  reply         // lookupAnswered
	record *storedRecord // lookupLeaseEnded
}

type lookupKind int

const (
	lookupNothing    lookupKind = iota // no record, or one that has expired
	lookupAnswered                     // a record that answers the request: it is complete, runs, or is another request's
	lookupLeaseEnded                   // a request in lease mode whose owner is gone: its lease can be taken over
)

// lookUp looks for the key's record in the cache, and then in the database. If the database does
// not answer, that is the answer too.
func (req *servedRequest) lookUp() lookup {
	if rep, cached := req.replyFromCache(); cached {
		return lookup{kind: lookupAnswered, reply: rep}
	}
	rec, err := req.layer.findRecord(req.ctx, req.id)
	switch {
	case err != nil:
		return lookup{kind: lookupAnswered, reply: problemReply(codeStoreUnavailable, err)}
	case rec == nil:
		return lookup{}
	}
	rep := req.replyFromRecord(rec) // a different request under such a key gets 422 as usual
	if req.handler.route.Mode == Leased && rec.leaseEnded && rep.code == codeInProgress {
		return lookup{kind: lookupLeaseEnded, record: rec}
	}
	return lookup{kind: lookupAnswered, reply: rep}
}
