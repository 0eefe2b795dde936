// Package webhook receives webhooks: it verifies that a request was signed by its sender, lately, and applies each event once,
// however often it is delivered.
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
//   - A [Verifier] verifies a header and the bytes of a body, for example in a framework that has no
//     http.Handler, or for requests that were recorded.
//   - A [Source] reads stored events for a consumer of your own: one consumer for several endpoints, or
//     a worker process that has no secrets. The endpoint then has no Handler.
//
// # One request
//
//	the method, a bounded read, the signature, its time   nothing of the database is asked for before these hold
//	BEGIN
//	onlyonce.receive_webhook   claims the id; waits for an uncommitted copy; notes the body where the id is not signed
//	the event into the log, the handler's statements, the call that forwards it
//	onlyonce.seal              allows the COMMIT
//	COMMIT
//	200
//
// In mode Inbox the event is then in the endpoint's stream as it came, and the endpoint's consumer applies it. In mode Inline
// the handler, of the same type, has run in this transaction. The transaction is package internal/guard's: no COMMIT of a handler's own, no
// swallowed error.
//
// # Providers
//
//	            signed                   ID                        ID signed   time
//	Standard    id.time.body             webhook-id, svix-id       yes         5 min both ways
//	Stripe      time.body                body's id                 yes         300 s past
//	GitHub      body                     X-GitHub-Delivery         no          none
//	Shopify     body                     X-Shopify-Webhook-Id      no          none
//	Slack       v0:time:body             body's event_id           yes         5 min both ways
//	HMAC        as declared
//
// A [Provider] of your own is a [Scheme]: where the signatures stand, what they sign, how the event is called. The
// comparing, the order of the checks and all bounds are the Verifier's.
//
// # What it defends against
//
// Bytes that were changed on the way, or by the receiver: the MAC is over the body as it came, and nothing looks into the
// body before it is known to be right. JSON that was decoded and encoded again has another signature.
//
// Requests that are sent again later: the signed time is compared, after the signature. Where no time is signed (GitHub,
// Shopify), a recorded request is good forever; and where the id is not signed either, under any id. [Event].IDSigned tells, and the
// dedupe must then look at the body too.
//
// One signature for two requests. Fields in what is signed are delimited by bytes that they cannot have: a
// webhook-id with a dot is refused, for "a.1" at 2 and "a" at 1 with "2." in front of the body would be signed alike. Times have one
// writing, and so have signatures: lower-case hexadecimal, base64 with its padding, and no bits left over.
//
// Readers that disagree: a header that counts must stand in the request once, and so must a member of the body.
//
// Signatures without end: headers that count have at most 4096 bytes and 16 signatures, and there are at most 8 secrets.
//
// Copies at once: the claim waits at the primary key of the segment for whoever has claimed the id and not ended, because that one may roll back.
// It waits for two seconds at most: the sender's patience is short, and it comes again.
//
// A handler that fails after the id was noted: there is no such order of things. Both commit, or neither.
//
// An answer to COMMIT that never comes: nobody knows. The same is done again on another connection. Its claim waits for the old transaction, should
// the server still be at it, and then finds the event there or not. A table that is only looked at would prove nothing.
//
// A sender that hangs up: the work is not its request's any more once it has been verified, and goes on for as long as its sender would have
// waited.
//
// A sender that signs no ids: somebody who has recorded a request may send it under another id. So bodies are remembered for a while; what is
// dropped for its body alone is kept for an operator, because two events may say the same.
//
// # What it says
//
// An [*Error] tells the check and the header, for logs. It quotes nothing that was received and nothing of a secret. The sender
// learns a status: 413, 400, or 401 for a bad signature and a stale one alike.
//
// # What it does not do
//
// It does not tell who else knows the secret: whoever does, may send. A Verifier tells no copies: the same request is verified as often as
// it comes. An Endpoint does not order events that were sent out of order: see [InOrder]. Ids are remembered for the horizon of
// the inbox's ring standard_keys, Config.Retention at least; a copy that comes later is a new event.
package webhook
