package client

import (
	"context"
	"fmt"

	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
)

// KeyStore stores keys for a client that may crash after it has sent a request and before it has
// the answer. Most clients need none, because they can derive their keys again ([Derive]). Use it
// if keys must be random, or if only a name identifies the operation, for example the id of a
// submitted form.
//
// Keys belong where the client stores its intents. [SQLKeyStore] stores them in one small table.
type KeyStore interface {
	// Keep stores key for an intent without one, and returns the intent's key: this one, or the one
	// stored before. Two concurrent calls return the same key. Keep must commit in a transaction of
	// its own before it returns. In the caller's, a rollback after the request was sent would
	// remove the key.
	Keep(ctx context.Context, intent, key string) (string, error)

	// Forget removes an intent's key, if there is one. Call it after the answer has been stored,
	// not when it arrives: a client that crashes in between tries again, and needs the key. Call it
	// only once a late retry can no longer come.
	Forget(ctx context.Context, intent string) error
}

// StoredKey returns the key of an intent from the store, or stores and returns a new one ([NewV7]).
// Pass it to [WithKey]. If StoredKey returns an error there is no key, and the client must not send
// the request.
func StoredKey(ctx context.Context, store KeyStore, intent string) (string, error) {
	if intent == "" {
		return "", fmt.Errorf("%w: intent: must not be empty", ErrKey)
	}
	key, err := store.Keep(ctx, intent, NewV7())
	if err != nil {
		return "", fmt.Errorf("idempotency/client: storing the key: %w", err)
	}
	if err := protocol.CheckKey(key); err != nil {
		return "", fmt.Errorf("%w: the key that KeyStore.Keep returned %w", ErrKey, err)
	}
	return key, nil
}
