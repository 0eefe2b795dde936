package scheme

import (
	"net/http"
	"net/netip"
	"time"
)

// Fetch says how certificates are fetched from a sender's host, and subscriptions confirmed there
// (W18). Redirects are never followed. The zero value of a field is the default that its comment
// names.
type Fetch struct {
	// Timeout bounds one fetch, from connecting to the last byte: 100 ms to 10 s. A request that
	// waits for it is answered 503 once its own time is over. Defaults to 3 s.
	Timeout time.Duration

	// AllowPrivate and AllowNetworks allow addresses outside the public Internet, as the fields of
	// httpsink.Config do, for example of a proxy. Default to none.
	AllowPrivate  bool
	AllowNetworks []netip.Prefix

	// Transport holds settings for connecting: a proxy, certificates, a dialer of your own. It is
	// cloned. A proxy is set by its address, with [http.ProxyURL]; its address is checked, and it
	// decides which addresses it reaches. InsecureSkipVerify and DialTLSContext are refused,
	// because TLS proves whose certificates these are. Defaults to a plain transport without a
	// proxy.
	Transport *http.Transport
}
