// Package httpsink sends the outbox's calls over HTTP.
//
//	payments, err := httpsink.New(httpsink.Config{
//		Name: "payments", BaseURL: "https://api.stripe.com/v1", Profile: httpsink.Stripe(),
//		Authorize: httpsink.Bearer(func(context.Context) (string, error) { return readToken() }),
//	})
//
// # Requests
//
// The sink sends the row's method, headers and body as they were when the call was enqueued. The
// address is the base URL plus the row's target. The row's key goes where the remote expects it: in
// the header Idempotency-Key, or as the provider's [Profile] says. A profile ([Stripe], [PayPal],
// [Square], [Adyen], [Standard], or your own) also knows how long the provider remembers keys.
//
// Authentication is added when the call is sent (Config.Authorize, [Bearer], [SecretHeader]). Rows
// hold no secrets, so a rotated token does not turn a row into another call. Authorize can add to
// the call but cannot change the enqueued parts. If a secret is not available, the sink makes no
// call and the relay tries again later. Neither secrets nor the errors of looking them up are
// stored.
//
// A call's trace context ([outbox.Call.Trace]) is sent in the headers traceparent and tracestate.
// It is not part of the call's identity: it is not compared when the call is enqueued again. If the
// row's own headers hold a traceparent, that one is sent instead.
//
// # Answers
//
//	2xx                              delivered
//	408 409 5xx                      tried again, after Retry-After (seconds or a date) if present;
//	                                 the remote may have applied the call. After 503 the calls of
//	                                 the sink wait too
//	425 429                          tried again likewise, and not applied. After 429 the calls of
//	                                 the tenant wait too
//	401 403, of a call with a tenant tried again: the calls of the tenant wait for Breaker.OpenFor
//	no whole answer within Timeout   tried again: the remote may have applied the call
//	101                              the same: the sink never asks for another protocol
//	no connection                    tried again: it has not
//	everything else, 3xx included    rejected: parked for an operator. Redirects are not followed.
//
// Config.Outcomes overrides this for a remote that uses a status differently, and Config.Classify
// for one whose headers or body say more; [Adyen] has signs of its own. If the remote is an API in
// package idempotency, its mark decides (Idempotency-Status):
//
//	created, replayed    delivered, or never applied: no attempt is open then
//	410 of the layer     delivered: it took effect, and its answer is not kept
//	in-progress          tried again, unless the problem says that it is of no use
//	released             tried again
//	rejected, mismatch   not applied by this attempt: tried again if the problem says so, or rejected
//	bypassed, 5xx        reconcile: it was run without its key, and may have left effects
//
// The sink reads at most 64 KiB of the answer's body, to see whether the answer is whole, and what
// a problem says. It keeps the body only if the call asks for it (Call.Capture), and never logs it.
// The answer's headers may hold 64 KiB, unless Config.Transport sets another limit.
//
// After 10 failures in a row the [Breaker] has the relay hold calls for 10 s at a time: those of
// the tenant whose call failed, or all of them if calls of three tenants fail.
//
// # What it defends against
//
// Requests that the transport repeats by itself. If a kept connection breaks after a request was
// written, Go's transport sends a POST with an Idempotency-Key again (https://go.dev/issue/19943).
// That attempt would be outside the journal, timeouts and windows. The sink's requests cannot be
// rewound, and a gate in the connection lets each one out once.
//
// Time that passes between a check and the write that it allows. The gate checks the key's age when
// the first byte is about to leave, which is after connecting and the TLS handshake.
//
// Rows that choose where they go. The host is always the base URL's. Targets with a host, a scheme,
// dot segments (encoded ones too) or control characters are refused when the call is enqueued, and
// again when it is sent.
//
// Names that lead into your own network. For example, a customer's webhook may resolve to a
// database on a private network or to a cloud's metadata service. The sink refuses addresses that
// are not on the Internet. It checks between socket() and connect(), on the address that connect()
// gets, so a second DNS answer cannot differ from the checked one:
//
//	loopback, private, 100.64/10            unless AllowPrivate or AllowNetworks
//	link-local, multicast, unspecified,     unless AllowNetworks
//	reserved, metadata services, IPv4 that
//	is translated to or inside IPv6
//
// [New] refuses such an address in the base URL, as well as localhost and numbers that a resolver
// may take for an address. If a name resolves to such an address, a later answer may differ. The
// relay therefore tries the call again, with its backoff, until the key's window ends; the row's
// last_error has the reason. Config.AllowHosts restricts base URLs that come from customers. The
// sink takes no proxy from the environment.
package httpsink
