// Package idempotency makes an HTTP request that is sent twice take effect once. So far it is the client's side: a
// [Transport] that asks until it has an answer, under one Idempotency-Key and with the same bytes. The server's side, which
// answers the second request with the first one's answer, is built beside it; any server that keeps keys will do.
//
//	transport, err := idempotency.NewTransport(idempotency.TransportConfig{})
//	...
//	client := &http.Client{Transport: transport}
//
//	key, err := idempotency.Derive(idempotency.Intent{Name: "checkout/charge", Version: 1, Parts: []string{order.ID}})
//	...
//	req, err := http.NewRequestWithContext(idempotency.WithKey(ctx, key), http.MethodPost, url, bytes.NewReader(body))
//	...
//	resp, err := client.Do(req)
//
// # Concept
//
// A client whose request got no answer cannot know whether it was applied: it may have been lost on the way there, or the answer on
// the way back. It can only ask again, in a way in which the server recognizes the question. An operation is what the client
// wants once; a key names it; attempts are the requests that ask for it.
//
// Where the key comes from decides what survives:
//
//	the request's own header    the caller's business
//	WithKey with Derive         crashes of the client, restarts, another machine: the key is computed again
//	WithKey with StoredKey      the same, for keys that cannot be derived: a store remembers them
//	WithKey with NewV4, NewV7   what the caller remembers
//	none of them                this one call of the transport: it makes a UUIDv7
//
// # What it promises
//
// All attempts at an operation carry one key and the same body, and each is counted: Go's own transport, which silently repeats
// a keyed POST whose connection has died, is kept from it. Attempts follow one another, each after the one before it was given up;
// a server may still be working on that one, and answers 409 with a Retry-After then, or knows the key.
//
// It asks again after errors of the network, 409 with a Retry-After, 425, 429 and 5xx but 501, 505 and 511, unless the answer
// is a problem (RFC 9457) whose member "retryable" is false, or a 5xx that says Idempotency-Status: bypassed: the server has
// not kept the key. All else is an answer, 422 above all: that key belongs to another request. A Retry-After is honoured in
// both forms, up to a bound; otherwise waits double and are spread. The number of attempts, the time of each and of all are
// bounded, and a cancelled context ends them.
//
// Applied once, then, is what client and server make together: at-least-once requests here, effects applied once there.
//
// # What it does not do
//
//   - It does not make a server keep keys. One that ignores them applies each attempt.
//   - It does not outlast the server's memory. A server keeps keys for a time (24 hours is usual); a retry after that is a new
//     operation, whatever its key. TransportConfig.TotalTime keeps one call below it; a client that comes back days later must look
//     first whether the operation stands.
//   - It does not decide what an open outcome means. After a [*TransportError], and after a 409, 425, 429 or 5xx that it returns, nobody knows:
//     ask again later, under the same key.
//   - It does not ask again on purpose. A final refusal (a declined charge) is stored and answered again under its
//     key, so that wanting it another time takes another one: the next Version of an [Intent].
//   - It does not sign. Whatever does belongs into TransportConfig.Base, where it sees each attempt. Above, a transport that repeats
//     requests by itself must set the key, or each of its repetitions is an operation of its own.
//   - An answer's body that breaks off is not asked for again, because the caller has begun to read: ask again under the same key.
//   - Requests without a body carry the header's name in lower case where they reach Base, so that Header.Get does not find
//     it there; on the wire it is the same.
package idempotency
