// Package client makes the requests of an HTTP client take effect once: its [Transport] sends a
// request again until there is an answer, under one Idempotency-Key and with the same bytes. It
// works with every server that honours such keys, for example one with package idempotency.
//
//	transport, err := client.NewTransport(client.Config{})
//	...
//	c := &http.Client{Transport: transport}
//
//	key, err := client.Derive(client.Intent{Name: "checkout/charge", Version: 1, Parts: []string{order.ID}})
//	...
//	req, err := http.NewRequestWithContext(client.WithKey(ctx, key), http.MethodPost, url, bytes.NewReader(body))
//	...
//	resp, err := c.Do(req)
//
// If a request got no answer, its client cannot know whether it was applied: the request may have
// been lost on its way to the server, or the answer on its way back. The client can only send it
// again, in a way that lets the server recognize it. An operation is the effect that the client
// wants once; a key names it; attempts are the requests for it.
//
// The source of the key decides which failures the operation survives:
//
//	the request's own header    whatever the caller arranges
//	WithKey with Derive         crashes of the client, restarts, another machine: the key is computed again
//	WithKey with StoredKey      the same, for keys that cannot be derived: a store remembers them
//	WithKey with NewV7          whatever the caller remembers
//	none of them                this one call of the transport, which makes a UUIDv7
//
// # Promises
//
// All attempts at an operation carry one key and the same body, and the Transport counts each
// attempt: it keeps Go's own transport from silently repeating a keyed POST whose connection has
// died. An attempt begins once the Transport has given up the one before. If the server still
// processes that one, it answers 409 with a Retry-After.
//
// It retries after network errors, 409 with a Retry-After, 425, 429 and 5xx except 501, 505 and
// 511. It does not retry if the answer is a problem (RFC 9457) whose member "retryable" is false,
//      or a 5xx with Idempotency-Status: bypassed, because then the server has not kept the key.
//      Every other response is an answer, for example 422: that key belongs to another request. But
//      if an attempt got no answer, a later one that is refused does not say what became of it: a
//      gateway's 401 or 404 knows no keys. The [*TransportError] then has that response. What a
//      server with package idempotency says of a key is final, because its Idempotency-Status says
//      so. It honours a Retry-After in both forms, up to a bound; otherwise waits double, with
//      jitter. The number of attempts, the time of each and of all are bounded, and a cancelled
//      context ends them.
//
// Together client and server apply a request once: at-least-once requests here, effects applied
// once there.
//
// # Limits
//
//   - It does not make a server keep keys: one that ignores them applies each attempt.
//   - It does not outlast the server's memory. A server keeps keys for a time, for example 24
//     hours; a retry after that is a new operation. Config.TotalTime keeps one call below it; a
//     client that retries days later must first check whether the operation was applied.
//   - It does not decide what an open outcome means. After a [*TransportError], with a Response or
//     without, and after a 409, 425, 429 or 5xx that it returns, the outcome is unknown: retry
//     later, under the same key.
//   - It does not repeat an operation on purpose. The server stores a final refusal, for example a
//     declined charge, and returns it again under its key. To try once more, use another key: the
//     next Version of an [Intent].
//   - It does not sign. A transport that signs belongs in Config.Base, where it sees each attempt.
//     If a transport around this one repeats requests, it must set the key, or each repetition is
//     an operation of its own.
//   - If an answer's body breaks off, it does not retry, because the caller has begun to read:
//     retry under the same key.
//   - Requests without a body reach Base with the header's name in lower case, so Header.Get does
//     not find it there; on the wire it is the same.
//
// Numbers in brackets, for example (H6), name rules of docs/rules: what each prevents, and
// the tests that fail without it.
package client
