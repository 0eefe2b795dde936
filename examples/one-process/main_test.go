package main

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"testing"
)

// stops records in which order parts stop.
type stops struct {
	mu  sync.Mutex
	all []string
}

func (s *stops) add(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, name)
}

// part runs until its context ends.
func (s *stops) part(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		<-ctx.Done()
		s.add(name)
		return nil
	}
}

// The relay stops when the work has stopped, whether a signal stops the process or a part that
// fails.
func TestRelayStopsLast(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, fails := range map[string]bool{"signal": false, "failure": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s stops
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			work := s.part("work")
			if fails {
				work = func(context.Context) error { s.add("work"); return broken }
			} else {
				cancel()
			}
			err := runParts(ctx, &http.Server{Addr: "127.0.0.1:0"}, s.part("relay"), work, s.part("work"))
			if errors.Is(err, broken) != fails || !fails && err != nil {
				t.Errorf("error %v", err)
			}
			if !slices.Equal(s.all, []string{"work", "work", "relay"}) {
				t.Errorf("stopped in the order %v", s.all)
			}
		})
	}
}
