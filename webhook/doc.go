// Package webhook receives webhooks. So far it verifies them: that a request was signed by its sender, lately, and what
// the event is called by which its copies are told. The handler that stores and applies each event once is built on this.
//
//	v, err := webhook.New(webhook.Config{
//		Provider: webhook.Stripe{},
//		Secrets:  []string{current, previous}, // previous while it is being replaced
//	})
//	...
//	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
//	...
//	event, err := v.Verify(r.Header, body)
//	var refused *webhook.Error
//	if errors.As(err, &refused) {
//		http.Error(w, http.StatusText(refused.Status()), refused.Status())
//		return
//	}
//	... // event.ID names the event, event.Body is what was signed
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
// # What it says
//
// An [*Error] tells the check and the header, for logs. It quotes nothing that was received and nothing of a secret. The sender
// learns a status: 413, 400, or 401 for a bad signature and a stale one alike.
//
// # What it does not do
//
// It does not tell who else knows the secret: whoever does, may send. It does not order events, and it does not tell copies:
// the same request is verified as often as it comes.
package webhook
