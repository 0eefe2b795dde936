// Package dialguard keeps a program's own requests on the public Internet: the relay's calls, and
// what a webhook's verification fetches. It decides by the address that is being dialled, so that
// the owner of a name cannot lead a request into the program's own network.
package dialguard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"strings"
	"syscall"
	"time"
)

// ErrAddress is wrapped by the error of a connection that was refused for its address. No byte was
// sent.
var ErrAddress = errors.New("httpsink: address refused")

// AddressError names the refused address and the kind of address it is.
type AddressError struct {
	addr string
	kind string
}

func (e *AddressError) Error() string {
	return fmt.Sprintf("address %s refused: %s, and allowed by neither AllowPrivate nor AllowNetworks", e.addr, e.kind)
}

func (e *AddressError) Unwrap() error { return ErrAddress }

// specialNetworks lists networks in which no remote on the Internet has an address: IANA's
// registries of special-purpose addresses (RFC 6890 and its updates), multicast, and the addresses
// at which clouds hand out credentials. The first match counts. own marks addresses of our own
// hosts and networks, which Guard.AllowPrivate allows.
var specialNetworks = []struct {
	prefix netip.Prefix
	kind   string
	own    bool
}{
	{netip.MustParsePrefix("169.254.169.254/32"), "a cloud's metadata service", false},
	// Credentials of ECS tasks.
	{netip.MustParsePrefix("169.254.170.2/32"), "a cloud's metadata service", false},
	// Alibaba, inside the shared space.
	{netip.MustParsePrefix("100.100.100.200/32"), "a cloud's metadata service", false},
	// Azure, among public addresses.
	{netip.MustParsePrefix("168.63.129.16/32"), "a cloud's metadata service", false},
	// AWS, among unique local addresses.
	{netip.MustParsePrefix("fd00:ec2::/32"), "a cloud's metadata service", false},
	// Google, Oracle, Scaleway, Akamai and Alibaba, likewise.
	{netip.MustParsePrefix("fd20:ce::254/128"), "a cloud's metadata service", false},
	{netip.MustParsePrefix("fd00:c1::a9fe:a9fe/128"), "a cloud's metadata service", false},
	{netip.MustParsePrefix("fd00:42::42/128"), "a cloud's metadata service", false},
	{netip.MustParsePrefix("fd00:a9fe:a9fe::1/128"), "a cloud's metadata service", false},
	{netip.MustParsePrefix("fd00:100::100:200/128"), "a cloud's metadata service", false},

	{netip.MustParsePrefix("127.0.0.0/8"), "loopback", true},
	{netip.MustParsePrefix("10.0.0.0/8"), "a private network", true},
	{netip.MustParsePrefix("172.16.0.0/12"), "a private network", true},
	{netip.MustParsePrefix("192.168.0.0/16"), "a private network", true},
	{netip.MustParsePrefix("100.64.0.0/10"), "a carrier's shared space", true},
	// Linux connects 0.0.0.0 to loopback.
	{netip.MustParsePrefix("0.0.0.0/8"), "no address of a host", false},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local", false},
	{netip.MustParsePrefix("192.0.0.0/24"), "reserved for protocols", false},
	{netip.MustParsePrefix("192.0.2.0/24"), "reserved for documentation", false},
	{netip.MustParsePrefix("198.51.100.0/24"), "reserved for documentation", false},
	{netip.MustParsePrefix("203.0.113.0/24"), "reserved for documentation", false},
	{netip.MustParsePrefix("192.88.99.0/24"), "a relay to IPv6", false},
	{netip.MustParsePrefix("198.18.0.0/15"), "reserved for benchmarks", false},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast", false},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved or broadcast", false},

	{netip.MustParsePrefix("::1/128"), "loopback", true},
	{netip.MustParsePrefix("fc00::/7"), "a private network", true},
	{netip.MustParsePrefix("::/96"), "unspecified, or IPv4 inside IPv6", false},
	{netip.MustParsePrefix("::ffff:0:0:0/96"), "IPv4 translated to IPv6", false},
	{netip.MustParsePrefix("64:ff9b::/96"), "IPv4 translated to IPv6 (NAT64)", false},
	{netip.MustParsePrefix("64:ff9b:1::/48"), "IPv4 translated to IPv6 (NAT64)", false},
	{netip.MustParsePrefix("2002::/16"), "IPv4 inside IPv6 (6to4)", false},
	{netip.MustParsePrefix("2001::/23"), "reserved for protocols (Teredo and others)", false},
	{netip.MustParsePrefix("2001:db8::/32"), "reserved for documentation", false},
	{netip.MustParsePrefix("3fff::/20"), "reserved for documentation", false},
	{netip.MustParsePrefix("fe80::/10"), "link-local", false},
	{netip.MustParsePrefix("ff00::/8"), "multicast", false},
	{netip.MustParsePrefix("5f00::/16"), "reserved for segment routing", false},
}

// globalUnicast holds all other addresses of IPv6 hosts.
var globalUnicast = netip.MustParsePrefix("2000::/3")

// Guard decides which addresses are connected to. It checks the address that is being dialled,
// after the name was resolved. A check of the name beforehand would not help if the next DNS answer
// differs ("rebinding"). It must not be changed while it is in use (O11, W18).
type Guard struct {
	// AllowPrivate allows loopback, private networks and a carrier's shared space.
	AllowPrivate bool
	// AllowNetworks are allowed in addition, of whatever kind.
	AllowNetworks []netip.Prefix
	// ConnectTimeout bounds connecting, including the lookup of names.
	ConnectTimeout time.Duration
	// Resolver looks names up. Defaults to Go's own.
	Resolver *net.Resolver
}

// CheckAddr returns an *AddressError unless the guard allows the address.
func (g *Guard) CheckAddr(addr netip.Addr) error {
	// ::ffff:127.0.0.1 is 127.0.0.1 for the kernel. A zone only names the interface.
	a := addr.WithZone("").Unmap()
	kind := g.refusalReason(a)
	// Allowing a translator's prefix does not allow the loopback address that it may embed.
	if inner, ok := embeddedIPv4(a); ok && kind == "" {
		kind = g.refusalReason(inner)
	}
	if kind != "" {
		return &AddressError{addr: addr.String(), kind: kind}
	}
	return nil
}

// refusalReason returns the kind of address for which an address is refused, or "" if it is
// allowed.
func (g *Guard) refusalReason(a netip.Addr) string {
	for _, n := range g.AllowNetworks {
		if n.Contains(a) {
			return ""
		}
	}
	for _, network := range specialNetworks {
		if network.prefix.Contains(a) {
			if network.own && g.AllowPrivate {
				return ""
			}
			return network.kind
		}
	}
	if a.Is6() && !globalUnicast.Contains(a) {
		return "no global unicast address"
	}
	return ""
}

// embeddedIPv4 returns the IPv4 address to which a translator or tunnel would forward.
func embeddedIPv4(a netip.Addr) (netip.Addr, bool) {
	if !a.Is6() {
		return netip.Addr{}, false
	}
	b := a.As16()
	switch {
	case inNetwork(a, "64:ff9b::/96"), inNetwork(a, "::ffff:0:0:0/96"),
		inNetwork(a, "::/96") && !inNetwork(a, "::/127"):
		// RFC 6052, 2765, 4291; not :: and ::1
		return netip.AddrFrom4([4]byte(b[12:])), true
	case inNetwork(a, "2002::/16"): // RFC 3056
		return netip.AddrFrom4([4]byte(b[2:6])), true
	case inNetwork(a, "2001::/32"): // RFC 4380: the client's address, inverted
		return netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}), true
	}
	return netip.Addr{}, false
}

func inNetwork(a netip.Addr, prefix string) bool { return netip.MustParsePrefix(prefix).Contains(a) }

// CheckHost checks a URL's host as it is written, so that faults are reported early that no
// resolver can correct.
func (g *Guard) CheckHost(host string) error {
	if a, err := netip.ParseAddr(host); err == nil {
		return g.CheckAddr(a)
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	last := name[strings.LastIndexByte(name, '.')+1:]
	// Resolvers of the C library read 127.1, 2130706433 and 0x7f.1 as 127.0.0.1. Go's resolver asks
	// the DNS for them.
	if strings.Trim(last, "0123456789") == "" ||
		strings.HasPrefix(last, "0x") && strings.Trim(last[2:], "0123456789abcdef") == "" {
		return fmt.Errorf("%q ends in a number and is no IPv4 address", host)
	}
	if last == "localhost" { // RFC 6761 section 6.3: always loopback
		if err := g.CheckAddr(netip.AddrFrom4([4]byte{127, 0, 0, 1})); err != nil &&
			g.CheckAddr(netip.IPv6Loopback()) != nil {
			return err
		}
	}
	return nil
}

// checkDial is called by the dialer between socket() and connect(), with the address that connect()
// gets.
func (g *Guard) checkDial(_ context.Context, _, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return &AddressError{addr: "of an unknown kind", kind: "no IP address"}
	}
	return g.CheckAddr(ap.Addr())
}

// DialFunc is the type of http.Transport.DialContext.
type DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// Dialer returns a DialFunc that connects to checked addresses only, with given, or with a plain
// dialer if that is nil. A user's own dialer does not say in advance which
// address it connects to, so its connections are checked before anything is written. A
// connection without an IP address (a Unix socket) leads to this host.
func (g *Guard) Dialer(given DialFunc) DialFunc {
	if given == nil {
		given = (&net.Dialer{ControlContext: g.checkDial, Resolver: g.Resolver}).DialContext
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, g.ConnectTimeout)
		defer cancel()
		c, err := given(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if err := g.checkRemote(c); err != nil {
			_ = c.Close()
			return nil, err
		}
		return c, nil
	}
}

// Transport clones a transport and guards its connections. The clone uses HTTP/1.1 only, takes
// answers as they come (compressed ones would grow), and reads at most maxHeader bytes of an
// answer's headers unless t says otherwise. It returns an error for settings with which the
// environment or a caller without a context would decide where requests go.
func (g *Guard) Transport(t *http.Transport, maxHeader int64) (*http.Transport, error) {
	if t.Dial != nil || t.DialTLS != nil { //nolint:staticcheck // refused because it is deprecated
		return nil, errors.New("Dial and DialTLS are not supported: use DialContext and DialTLSContext")
	}
	if isProxyFromEnvironment(t.Proxy) {
		return nil, errors.New("Proxy must not be http.ProxyFromEnvironment, which decides from outside " +
			"where calls go: name the proxy, with http.ProxyURL, or set nil")
	}
	t = t.Clone()
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	t.ForceAttemptHTTP2 = false
	t.TLSNextProto = nil
	if t.TLSClientConfig != nil {
		// A transport that has been used offers h2 in its configuration, and a server would accept
		// the offer.
		t.TLSClientConfig.NextProtos = []string{"http/1.1"}
	}
	t.DisableCompression = true
	t.MaxResponseHeaderBytes = cmp.Or(t.MaxResponseHeaderBytes, maxHeader)
	t.DialContext = g.Dialer(t.DialContext)
	if t.DialTLSContext != nil {
		t.DialTLSContext = g.Dialer(t.DialTLSContext)
	}
	return t, nil
}

// isProxyFromEnvironment reports whether the proxy function is http.ProxyFromEnvironment. Functions
// cannot be compared, but the addresses of their code can.
func isProxyFromEnvironment(proxy func(*http.Request) (*url.URL, error)) bool {
	return proxy != nil && reflect.ValueOf(proxy).Pointer() == reflect.ValueOf(http.ProxyFromEnvironment).Pointer()
}

// checkRemote checks the remote address of a connection.
func (g *Guard) checkRemote(c net.Conn) error {
	tcp, ok := c.RemoteAddr().(*net.TCPAddr)
	switch {
	case ok:
		return g.CheckAddr(tcp.AddrPort().Addr())
	case g.AllowPrivate:
		return nil
	}
	return &AddressError{addr: fmt.Sprintf("of type %T", c.RemoteAddr()), kind: "no IP address"}
}

// CheckNetwork checks an element of Guard.AllowNetworks.
func CheckNetwork(n netip.Prefix) error {
	if !n.IsValid() || n.Addr().Is4In6() {
		return fmt.Errorf("%v is not a network (write those of IPv4 as 10.0.0.0/8)", n)
	}
	return nil
}

// HostMatches reports whether a host matches one of the patterns: a name, or *. and a name for
// everything below it. Without patterns every host matches.
func HostMatches(host string, patterns []string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	for _, p := range patterns {
		p = strings.ToLower(strings.TrimSuffix(p, "."))
		below, wild := strings.CutPrefix(p, "*")
		matches := wild && len(host) > len(below) && strings.HasSuffix(host, below)
		if host == p || matches {
			return true
		}
	}
	return len(patterns) == 0
}
