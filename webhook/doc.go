// Package webhook receives webhooks and applies each event once, however often it is delivered. It
// verifies that the sender signed the request, and that it did so recently if it signs a time.
//
//	endpoint, err := webhook.New(pool, webhook.Config{
//		Name:     "stripe",
//		Provider: webhook.Stripe{},
//		Secrets:  []string{current, previous}, // previous while it is being replaced
//	})
//	...
//	mux.Handle("/hooks/stripe", endpoint)
//	cfg := consumer.Config{Scope: webhook.Scope("stripe")}
//	events, err := consumer.New(pool, endpoint, consumer.HandlerFunc(handle), cfg)
//	...
//	err = events.Run(ctx) // applies the events, and forgets old ids
//
// # Stored or Inline
//
// In mode [Stored], the default, a 200 means that the event is in the endpoint's stream, committed,
// byte for byte. A consumer applies it later, with its retries and its parked rows: the sender
// waits for one COMMIT and never for a handler. In mode [Inline] the handler has run in the
// transaction that claimed the event, and a 200 means that its effect is committed.
//
// An [Endpoint] has two parts that can be used alone:
//
//   - A [Verifier] verifies a header and the bytes of a body. Use it, for example, in a framework
//     that has no http.Handler, or for requests that were recorded.
//   - A [Source] reads stored events. Use it for one consumer of several endpoints, or for a worker
//     process that has no secrets. Run [Endpoint.Upkeep] in the processes that receive.
//
// # One request
//
//	the method, a bounded read, the signature, its time   the database is not used before these hold
//	BEGIN
//	onlyonce.receive_webhooks  claims the ids, and the bodies if the ids are not signed
//	the events into the log, the handler's statements, the calls that forward them
//	onlyonce.seal              allows the COMMIT
//	COMMIT
//	200
//
// In mode Stored the transaction has all events that waited when it began: see [Endpoint]. In mode
// Inline it has one. Package internal/guard guards the transaction: a handler cannot commit it, and
// an error that the handler swallows still rolls it back.
//
// # Providers
//
// docs/guide/webhooks.md lists the senders: the signed bytes, the id, the time that counts, for how
// long each delivers again, and how to find events that never came.
//
// Twilio, Meta, PayPal, SNS and Graph are packages below this one: twilio, meta and so on.
//
// A [Provider] of your own returns a scheme.Scheme: it names the headers with the signatures, and
// extracts the signed bytes and the event's id and type. The Verifier does the rest: the
// comparison, the order of the checks and all bounds.
//
// # What it defends against
//
// Bytes that were changed on the way, or by the receiver: the MAC is computed over the body as it
// arrived, and the body is not parsed before the MAC is verified. Decoding and encoding JSON again
// changes its signature. Twilio and SNS sign a form's parameters or JSON's members, and Microsoft
// Graph writes a shared secret into the body: their bodies are parsed first, in time and memory
// bounded by their length.
//
// Certificates named by a request (PayPal, SNS): see scheme.Fetch and rule W18.
//
// Tenants named by a request: see [TenantSecrets] and rule W24.
//
// Requests sent again later: the Verifier compares the signed time with the clock, after the
// signature. If the sender signs no time (GitHub, Shopify, Twilio, Meta), a recorded request stays
// valid forever. If it does not sign the id either, the request is valid under any id.
// [Event].IDSigned is then false, and deduplication must compare bodies too.
//
// One signature for two requests: the signed fields are delimited by bytes that they cannot
// contain. For example, a webhook-id with a dot is refused, because "a.1" at time 2 has the same
// signature as "a" at time 1 with a body that begins with "2.". A time has only one spelling, and
// so has a signature: lower-case hexadecimal, or base64 with its padding and no bits left over.
//
// Readers that disagree: each header that the scheme reads must occur exactly once in the request,
// and so must each member of the body.
//
// Signatures without end: a header that the scheme reads has at most 4096 bytes and 16 signatures,
// and an endpoint or a tenant at most 8 secrets.
//
// Copies at once: if an open transaction has claimed the id, the event waits for it, because that
// transaction may roll back. It waits for two seconds at most, because the sender waits only
// briefly for an answer, and delivers the event again. It holds up no other event meanwhile.
//
// A handler that fails after its id was recorded: cannot happen, because both commit in one
// transaction.
//
// A lost answer to COMMIT: the transaction may or may not have committed, so the endpoint repeats
// it on another connection. The new claim blocks on the old transaction, if the server still runs
// it, and then either finds the event (committed) or stores it. A plain read would not block.
//
// A sender that hangs up: once the request is verified, the work no longer depends on it. The work
// continues for as long as the sender would have waited.
//
// A sender that signs no ids: an attacker who has recorded a request can send it under another id.
// So the endpoint remembers bodies for a while. If a body names itself, no other event has it, and
// under a new id it is parked once. If not, a genuine event may have it: Config.SameBodies says
// whether each is parked or handled. None is gone (W7).
//
// # Errors
//
// An [*Error] names the check and the header, for logs. It quotes neither the request nor a secret.
// The sender gets only a status: 413, 400, or 401 for a bad signature and a stale one alike.
//
// # Limits
//
// Any holder of the secret can send events. A Verifier does not recognize copies: it verifies the
// same request as often as it arrives. An Endpoint does not reorder events that arrive out of
// order: see [InOrder]. The inbox remembers ids for the horizon of the endpoint's class, which is
// at least Config.Retention. A later copy is a new event.
//
// Numbers in brackets, for example (W5), name rules of docs/rules: what each prevents, and
// the tests that fail without it.
package webhook
