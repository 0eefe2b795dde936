package client

import (
	"context"
	"fmt"

	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
)

// KeyStore remembers keys for a client that may die after it has sent and before it has the answer. Most clients need none: a
// key that is derived ([Derive]) is found again by deriving it again. It is for those whose keys must be random, or who have
// nothing to derive from but a name for the thing under way, such as a row of a form that was sent off.
//
// One small table is enough:
//
//	create table idempotency_keys (intent text primary key, key text not null, made_at timestamptz not null default now());
//
//	-- Keep: whoever comes second gets the key of the first
//	insert into idempotency_keys (intent, key) values ($1, $2)
//	on conflict (intent) do update set intent = excluded.intent
//	returning key;
//
//	-- Forget
//	delete from idempotency_keys where intent = $1;
//
// This package has no implementation, because a client's memory belongs where the client keeps its intents.
type KeyStore interface {
	// Keep stores key for an intent that has none, and returns the intent's key: this one, or the one that stands there. Of two
	// calls at once both return the same. What it returns has been committed, in a transaction of its own: one that is rolled
	// back after the request was sent would take the key along.
	Keep(ctx context.Context, intent, key string) (string, error)

	// Forget removes an intent's key, if it has one. Call it when the answer has been stored and not when it arrives (a client
	// that dies in between asks again, and must find its key), and no earlier than a late retry can come.
	Forget(ctx context.Context, intent string) error
}

// StoredKey returns the key of an intent: the stored one, or a new one ([NewV7]) that is stored by then. Give it to [WithKey].
// When the store fails there is no key, and nothing may be sent.
func StoredKey(ctx context.Context, store KeyStore, intent string) (string, error) {
	if intent == "" {
		return "", fmt.Errorf("%w: intent: must not be empty", ErrKey)
	}
	key, err := store.Keep(ctx, intent, NewV7())
	if err != nil {
		return "", fmt.Errorf("idempotency/client: storing the key: %w", err)
	}
	if err := protocol.Check(key); err != nil {
		return "", fmt.Errorf("%w: of the store: %w", ErrKey, err)
	}
	return key, nil
}
