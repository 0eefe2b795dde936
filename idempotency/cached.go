package idempotency

import (
	"context"
	"time"

	"github.com/onlyonce/onlyonce/seal"
)

func (x *exchange) cached() (reply, bool) { return reply{}, false }

func (x *exchange) remember(*response) {}

// Cache is
type Cache interface {
	Get(ctx context.Context, id [16]byte) ([]byte, error)
	Put(ctx context.Context, id [16]byte, entry []byte, ttl time.Duration) error
	Delete(ctx context.Context, id [16]byte) error
}

type tier struct{}

func newTier(Cache, *seal.Sealer, time.Duration) *tier { return nil }
