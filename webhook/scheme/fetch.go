package scheme

import (
	"net/http"
	"net/netip"
	"time"
)

// Fetch configures fetching certificates from a sender's host, and confirming subscriptions there
// (W18). It never follows redirects. The zero value of a field is the default that its comment
// names.
type Fetch struct {
	// Timeout bounds one fetch, from connecting to the last byte: 100 ms to 10 s. A request that
	// waits for it gets 503 once its own time is over. Defaults to 3 s.
	Timeout time.Duration

	// AllowPrivate and AllowNetworks allow addresses outside the public Internet, as the fields of
	// httpsink.Config do, for example of a proxy. Default to none.
	AllowPrivate  bool
	AllowNetworks []netip.Prefix

	// Transport holds settings for connecting: a proxy, certificates, a dialer of your own. It is
	// cloned. Set a proxy with [http.ProxyURL]: Fetch checks the proxy's address, and the proxy
	// decides which addresses it reaches. InsecureSkipVerify and DialTLSContext are refused,
	// because TLS proves the origin of the certificates. Defaults to a plain transport without a
	// proxy.
	Transport *http.Transport
}
