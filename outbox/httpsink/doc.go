// Package httpsink sends the outbox's calls over HTTP.
//
// # What is sent
//
// The row's method, headers and body as they were frozen, to the base URL plus the row's target, with the row's key where
// the remote looks for it: in the header Idempotency-Key, or as the [Profile] of the provider says ([Stripe],
// [PayPal], [Square], [Adyen], [Standard], or your own), which also knows for how long the provider remembers keys:
//
//	payments, err := httpsink.New(httpsink.Config{
//		Name: "payments", BaseURL: "https://api.stripe.com/v1", Profile: httpsink.Stripe(),
//		Authorize: httpsink.Bearer(func(context.Context) (string, error) { return readToken() }),
//	})
//
// Authentication is added when the call is sent (Config.Authorize, [Bearer], [SecretHeader]): rows hold no secrets, and a
// rotated token does not make another call of a row. What it adds is not part of the call; what is frozen it
// cannot change. A secret that cannot be had puts the call off, and no call is made. Neither secrets nor the errors of looking them up
// are stored.
//
// A call's trace context ([outbox.Call.Trace]) goes out in the headers traceparent and tracestate. It is not part of what is frozen, and not compared when the
// call is enqueued again. A traceparent among the row's own headers, which are frozen, goes out in its place.
//
// # What an answer means
//
//	2xx                              delivered
//	408 409 425 429 5xx              tried again, after Retry-After (seconds or a date) if the answer has it
//	no whole answer within Timeout   tried again: the remote may have applied the call
//	everything else, 3xx included    rejected: parked for an operator. Redirects are not followed.
//
// Config.Outcomes overrules this for a remote that uses a status otherwise. The answer's body is read, at most 64 KiB,
// to know that it is whole; it is neither kept nor logged. Its headers may have 64 KiB, unless Config.Transport says otherwise.
//
// After 10 failures in a row a [Breaker] opens: for 10 s no call is made and no row is picked, then one call tries.
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
// ones too) or control characters are refused when they are enqueued, and again when they are sent.
//
// Names that lead inside. A customer's webhook, or a name whose DNS is somebody else's, resolves to a database on a private
// network, or to a cloud's metadata service. Addresses that are not on the Internet are refused between socket() and
// connect(), on the very address that connect() gets, so that there is no second answer of the DNS to be different:
//
//	loopback, private, 100.64/10            unless AllowPrivate or AllowNetworks
//	link-local, multicast, unspecified,     unless AllowNetworks
//	reserved, metadata services, IPv4 that
//	is translated to or inside IPv6
//
// An address in the base URL, localhost, and numbers that a resolver may take for an address are faults of [New]. A name's
// answer may be another one later, so the call is tried again, with the relay's backoff, until its key's window ends; the row's
// last_error says why. Config.AllowHosts bounds base URLs that come from somebody else. No proxy is taken from
// the environment.
package httpsink
