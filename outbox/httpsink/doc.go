// Package httpsink sends the outbox's calls over HTTP.
//
// # What is sent
//
// The row's method, headers and body as they were frozen, to the base URL plus the row's target, with the row's key in
// the header Idempotency-Key (or another, Config.KeyHeader). Authentication is added when the call is sent
// (Config.Authorize): rows hold no secrets, and a rotated token does not make another call of a row.
//
// # What an answer means
//
//	2xx                              delivered
//	408 409 425 429 5xx              tried again, after Retry-After if the answer has it
//	no whole answer within Timeout   tried again: the remote may have applied the call
//	everything else, 3xx included    rejected: parked for an operator. Redirects are not followed.
//
// Config.Outcomes overrules this for a remote that uses a status otherwise. The answer's body is read, at most 64 KiB,
// to know that it is whole; it is neither kept nor logged.
//
// # What it defends against
//
// Requests that the transport sends again by itself. When a kept connection dies after a request went out, Go's transport
// sends a POST with an Idempotency-Key again (https://go.dev/issue/19943): an attempt that is in no journal, outside
// timeouts and windows. Requests here cannot be rewound, and a gate in the connection lets each out once.
//
// Time that passes between a check and the write behind it. The gate asks for the key's age when the first byte is about
// to leave, after connecting and the TLS handshake.
//
// Rows that choose where they go. The host is the base URL's, always: targets with a host, a scheme, dot segments (encoded
// ones too) or control characters are refused when they are enqueued, and again when they are sent. The sink does not look at
// the address that the host's name resolves to; it is your configuration.
package httpsink
