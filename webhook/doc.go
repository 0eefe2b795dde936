// Package webhook receives webhooks and applies each event once, however often it is delivered. It
// verifies that a request was signed by its sender, and recently if the sender signs a time.
//
//	endpoint, err := webhook.New(pool, webhook.Config{
//		Name:     "stripe",
//		Provider: webhook.Stripe{},
//		Secrets:  []string{current, previous}, // previous while it is being replaced
//		Handler:  handle,
//	})
//	...
//	mux.Handle("/hooks/stripe", endpoint)
//	err = endpoint.Run(ctx) // applies the events, and forgets old ids
//
// An [Endpoint] has two parts that can be used alone:
//
//   - A [Verifier] verifies a header and the bytes of a body. Use it, for example, in a framework
//     that has no http.Handler, or for requests that were recorded.
//   - A [Source] reads stored events for a consumer of your own. Use it for one consumer of several
//     endpoints, or for a worker process that has no secrets. The endpoint then has no Handler.
//
// # One request
//
//	the method, a bounded read, the signature, its time   the database is not used before these hold
//	BEGIN
//	onlyonce.receive_webhook   claims the id, and the body if the id is not signed; waits for an uncommitted copy
//	the event into the log, the handler's statements, the call that forwards it
//	onlyonce.seal              allows the COMMIT
//	COMMIT
//	200
//
// In mode Stored the event is then in the endpoint's stream, byte for byte, and the endpoint's
// consumer applies it. In mode Inline the handler, which has the same type, has run in this
// transaction. The transaction is package internal/guard's: a handler cannot commit it, and an
// error that a handler swallows still rolls it back.
//
// # Providers
//
//	            signed                   ID                        ID signed   time
//	Standard    id.time.body             webhook-id, svix-id       yes         5 min both ways
//	Stripe      time.body                body's id                 yes         300 s past
//	GitHub      body                     X-GitHub-Delivery         no          none
//	Shopify     body                     X-Shopify-Webhook-Id      no          none
//	Slack       v0:time:body             body's event_id           yes         5 min both ways
//	Twilio      URL, form or body's hash hash of what is signed    yes         none
//	Meta        body                     hash of the body          yes         none
//	PayPal      id|time|webhook|CRC-32   body's id                 no          3 days past, 5 min future
//	SNS         members of the JSON      body's MessageId          yes         65 min past, 5 min future
//	Graph       nothing                  hash of the body          no          none
//	HMAC        as declared
//
// Twilio, Meta, PayPal, SNS and Graph are packages below this one: twilio, meta and so on.
//
// A [Provider] of your own gives a scheme.Scheme: it says which headers hold the signatures, what
// they sign, and what the event's id and type are. The Verifier does the rest: the comparison, the
// order of the checks and all bounds.
//
// # What it defends against
//
// Bytes that were changed on the way, or by the receiver: the MAC is computed over the body as it
// arrived, and the body is not parsed before the MAC is verified. JSON that was decoded and encoded
// again has another signature. Twilio and SNS sign a form's parameters or JSON's members, and
// Microsoft Graph writes a shared secret into the body: their bodies are parsed first, in time and
// memory that their length bounds.
//
// Certificates that a request names (PayPal, SNS): see scheme.Fetch and rule W18.
//
// Requests that are sent again later: the signed time is compared with the clock, after the
// signature. If the sender signs no time (GitHub, Shopify, Twilio, Meta), a recorded request stays
// valid forever. If it does not sign the id either, the request is valid under any id.
// [Event].IDSigned is then false, and the dedupe must compare bodies too.
//
// One signature for two requests: fields in what is signed are delimited by bytes that they cannot
// contain. For example, a webhook-id with a dot is refused, because "a.1" at time 2 has the same
// signature as "a" at time 1 with a body that begins with "2.". A time has one spelling only, and
// so has a signature: lower-case hexadecimal, or base64 with its padding and no bits left over.
//
// Readers that disagree: a header that counts must occur exactly once in the request, and so must a
// member of the body.
//
// Signatures without end: headers that count have at most 4096 bytes and 16 signatures, and there
// are at most 8 secrets.
//
// Copies at once: if another transaction has claimed the id and has not ended, the claim waits for
// it at the primary key of the segment, because that transaction may roll back. It waits for two
// seconds at most. The sender waits only briefly for an answer, and delivers the event again.
//
// A handler that fails after the id was recorded: this cannot happen, because both commit in one
// transaction or neither does.
//
// An answer to COMMIT that never arrives: it is unknown whether the transaction committed, so the
// endpoint does the same again on another connection. Its claim waits for the old transaction, if
// the server still runs it, and then either finds the event or does not. Reading the table without
// a claim would prove nothing.
//
// A sender that hangs up: once the request is verified, the work no longer depends on the request.
// It goes on for as long as its sender would have waited.
//
// A sender that signs no ids: if an attacker has recorded a request, they can send it under another
// id. So the endpoint remembers bodies for a while. An event that is dropped for its body alone is
// kept for an operator, because two events may have the same body.
//
// # What it reports
//
// An [*Error] names the check and the header, for logs. It quotes nothing that was received and
// nothing of a secret. The sender gets only a status: 413, 400, or 401 for a bad signature and a
// stale one alike.
//
// # What it does not do
//
// It does not know who else has the secret: any holder of the secret can send events. A Verifier
// does not recognize copies: it verifies the same request as often as it arrives. An Endpoint does
// not reorder events that were sent out of order: see [InOrder]. Ids are remembered for the horizon
// of the inbox's ring standard_keys, which is at least Config.Retention. A copy that arrives later
// is a new event.
//
// Numbers in brackets, for example (W5), name rules of docs/guarantees.md: what each prevents, and
// the tests that fail without it.
package webhook
