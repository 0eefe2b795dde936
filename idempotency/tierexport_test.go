package idempotency

import (
	"context"
	"net/http"
	"testing"
	"time"
)

// Tier is a tier for tests that use a real Redis, whose package imports this one.
type Tier struct{ t *tier }

// TestHistory is the database's in those tests.
var TestHistory = history{System: 7, Timeline: 1}

// NewTestTier makes one whose cache may take as long as timeout.
func NewTestTier(t testing.TB, c Cache, timeout time.Duration) Tier {
	t.Helper()
	tier, _ := testTier(t, Config{Cache: c, CacheTimeout: timeout})
	return Tier{tier}
}

// Saw tells it of an answer of the database.
func (t Tier) Saw(timeline uint32) {
	now := time.Now()
	t.t.saw(history{TestHistory.System, timeline}, now, now)
}

// Put keeps an answer of timeline 1.
func (t Tier) Put(ctx context.Context, id [16]byte, body []byte, still func(context.Context) (bool, error)) {
	t.t.put(ctx, id, &cached{Origin: TestHistory, Expires: time.Now().Add(time.Hour), Fingerprint: []byte{1}, Response: &response{Status: 200, Header: http.Header{}, Body: body}}, still)
}

// Get returns an answer's body.
func (t Tier) Get(ctx context.Context, id [16]byte) ([]byte, bool) {
	c, ok := t.t.get(ctx, id)
	if !ok {
		return nil, false
	}
	return c.Response.Body, true
}

// Forget removes it.
func (t Tier) Forget(ctx context.Context, id [16]byte) error { return t.t.forget(ctx, id) }
