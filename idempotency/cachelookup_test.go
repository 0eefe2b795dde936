package idempotency_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/seal"
)

func testSealer(t *testing.T) *seal.Sealer {
	t.Helper()
	s, err := seal.New(seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {1}}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// watched is a cache that reports what is put into it.
type watched struct {
	idempotency.Cache
	mu   sync.Mutex
	puts int
}

func (w *watched) Put(ctx context.Context, id [16]byte, entry []byte, ttl time.Duration) error {
	err := w.Cache.Put(ctx, id, entry, ttl)
	w.mu.Lock()
	w.puts++
	w.mu.Unlock()
	return err
}

func (w *watched) have(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.puts >= n
}
