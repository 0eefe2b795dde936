package outbox_test

import (
	"context"
	"net"
	"sync"
	"time"
)

// slowDialer connects at once the first time, and takes its time from then on.
type slowDialer struct {
	mu    sync.Mutex
	dials int
}

func (s *slowDialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	s.mu.Lock()
	s.dials++
	first := s.dials == 1
	s.mu.Unlock()
	if !first {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(1900 * time.Millisecond):
		}
	}
	return (&net.Dialer{}).DialContext(ctx, network, addr)
}

func (s *slowDialer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dials
}
