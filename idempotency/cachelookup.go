package idempotency

import "context"

// replyFromCache answers from the cache.
func (req *servedRequest) replyFromCache() (reply, bool) {
	if req.layer.cache == nil {
		return reply{}, false
	}
	c, ok := req.layer.cache.get(req.ctx, req.id)
	if !ok {
		return reply{}, false
	}
	if same, err := req.layer.fingerprints.matches(c.Fingerprint, &req.subject, req.fingerprint); err != nil || !same {
		return reply{}, false // the database decides between 422 and an error
	}
	return req.replayReply(c.Response, &c.Expires), true
}

// cacheRecord puts a record that was read from the database into the cache, after the answer. A
// record that was just committed is not put: most are never asked for again, and its connection
// would have to be asked for its timeline.
func (req *servedRequest) cacheRecord(r *storedRecord, resp *storedResponse) {
	l := req.layer
	if l.cache == nil || r.expires == nil {
		return
	}
	select {
	case l.cachePuts <- struct{}{}:
	default:
		return
	}
	go func(ctx context.Context, id [16]byte) {
		defer func() { <-l.cachePuts }()
		l.cache.put(ctx, id, &cacheEntry{Origin: r.readFrom, Expires: *r.expires, Fingerprint: r.fingerprint, Response: resp}, func(ctx context.Context) (bool, error) {
			now, err := l.findRecord(ctx, id)
			return err == nil && now != nil && now.token == r.token && !now.erased, err
		})
	}(context.WithoutCancel(req.ctx), req.id)
}
