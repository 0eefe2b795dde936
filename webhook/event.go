package webhook

import (
	"net/http"
	"time"
)

// Event is a request that was verified. Only a [Verifier] makes one that means something.
type Event struct {
	// Provider is the name of the scheme: "stripe".
	Provider string

	// ID is the same on each delivery of one event, and is what copies are told by: 1 to 255 visible ASCII characters.
	// Empty only if Probe is set.
	ID string

	// IDSigned says that the signature covers ID. Where it does not (GitHub, Shopify), whoever recorded one request can
	// send it again under another ID, so an ID alone does not tell copies there (W7).
	IDSigned bool

	// Type is what happened, in the provider's words: "invoice.paid", "push", "orders/create". Empty where the provider does not say.
	Type string

	// Time is when the request was signed: of this delivery, not of the event. Zero where no time is signed.
	Time time.Time

	// Probe says that the provider asks whether somebody is here, and tells nothing (W13): GitHub's ping, Slack's
	// url_verification. It is to be answered, and not to be handled.
	Probe bool

	// Challenge is what the answer to a probe must hold. Empty: nothing.
	Challenge string

	// Header has the headers that are worth keeping (W14): Content-Type, those of the provider, and VerifierConfig.KeepHeaders.
	// Printable ASCII; without signatures and credentials, whatever was configured.
	Header http.Header

	// Body is the bytes that were signed: the slice that was given to Verify.
	Body []byte
}
