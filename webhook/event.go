package webhook

import (
	"net/http"
	"time"
)

// Event is a request that was verified. Get it from a [Verifier] or from [EventOf]; one that you
// fill in yourself proves nothing.
type Event struct {
	// Provider is the name of the scheme, for example "stripe".
	Provider string

	// Endpoint is the name of the [Endpoint] that received it, so that one handler can serve
	// several. It is empty if the event comes from a [Verifier].
	Endpoint string

	// ID is the same on each delivery of one event: copies are recognized by it. 1 to 255 visible
	// ASCII characters. It is empty only if Probe is set.
	ID string

	// IDSigned says that the signature covers ID. If it is false (GitHub, Shopify), an attacker who
	// has recorded one request can send it again under another ID, so that comparing IDs does not
	// find all copies (W7).
	IDSigned bool

	// Type is what happened, in the provider's words, for example "invoice.paid", "push" or
	// "orders/create". It is empty if the provider does not say.
	Type string

	// Time is when the request was signed: this delivery, not the event. It is zero if the provider
	// signs no time.
	Time time.Time

	// Probe says that the provider only checks whether the endpoint answers (W13): GitHub's ping,
	// or Slack's url_verification. Answer it and do not handle it: it carries no event.
	Probe bool

	// Challenge is what the answer to a probe must hold. It is empty if the provider asks for
	// nothing.
	Challenge string

	// Header has the headers that are kept (W14): Content-Type, those of the provider, and
	// VerifierConfig.KeepHeaders. Values are printable ASCII. Signatures and credentials are never
	// among them, whatever was configured.
	Header http.Header

	// Body is the bytes that were signed: the slice that was passed to Verify.
	Body []byte

	// signed is a hash of what was signed, if that is neither the whole body nor the id (PayPal).
	signed []byte
}
