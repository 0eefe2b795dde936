package client_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	"github.com/onlyonce/onlyonce/idempotency/client"
)

// table is a store in memory, which does what its SQL in KeyStore's documentation does.
type table struct {
	mu   sync.Mutex
	rows map[string]string
	err  error
}

func (s *table) Keep(_ context.Context, intent, key string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return "", s.err
	}
	if kept, has := s.rows[intent]; has {
		return kept, nil
	}
	if s.rows == nil {
		s.rows = map[string]string{}
	}
	s.rows[intent] = key
	return key, nil
}

func (s *table) Forget(_ context.Context, intent string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.rows, intent)
	return s.err
}

// A client that dies after sending finds its key again: the server applies the operation once.
func TestStoredKeySurvivesTheClient(t *testing.T) {
	t.Parallel()
	store := &table{}
	s := &server{drop: func(n int) bool { return n == 1 }}
	url := start(t, s)
	client := func() error { // everything but the store is new
		key, err := client.StoredKey(t.Context(), store, "form 17")
		if err != nil {
			return err
		}
		resp, err := transport(t, client.Config{MaxAttempts: 1}).RoundTrip(post(t, client.WithKey(t.Context(), key), url, "x"))
		if err != nil {
			return err
		}
		read(t, resp)
		return store.Forget(t.Context(), "form 17")
	}
	if err := client(); err == nil {
		t.Fatal("the connection did not break off")
	}
	if err := client(); err != nil {
		t.Fatal(err)
	}
	if got, effects := s.requests(); effects != 1 || len(got) != 2 {
		t.Errorf("%d effects of %d requests", effects, len(got))
	}
	if err := client(); err != nil { // wanted once more, after the first has been forgotten
		t.Fatal(err)
	}
	if _, effects := s.requests(); effects != 2 {
		t.Errorf("%d effects", effects)
	}
}

func TestStoredKeyFaults(t *testing.T) {
	t.Parallel()
	if _, err := client.StoredKey(t.Context(), &table{err: io.ErrClosedPipe}, "i"); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
	if _, err := client.StoredKey(t.Context(), &table{}, ""); !errors.Is(err, client.ErrKey) {
		t.Error(err)
	}
	if _, err := client.StoredKey(t.Context(), &table{rows: map[string]string{"i": ""}}, "i"); !errors.Is(err, client.ErrKey) {
		t.Error(err)
	}
}
