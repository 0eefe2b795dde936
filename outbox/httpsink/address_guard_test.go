package httpsink

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/dialguard"
	"github.com/onlyonce/onlyonce/outbox"
)

// hostile lists addresses that are not on the Internet, or that embed one that is not.
var hostile = []string{
	"127.0.0.1", "127.8.9.1", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
	"100.64.0.1", "100.127.255.255", "0.0.0.0", "0.1.2.3", "169.254.0.1", "169.254.169.254",
	"169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192", "192.0.2.1",
	"198.51.100.1", "203.0.113.1", "192.88.99.1", "198.18.0.1", "198.19.255.255", "224.0.0.1",
	"239.255.255.255", "240.0.0.1", "255.255.255.255", "::", "::1", "::7f00:1", "::808:808",
	"fc00::1", "fd12::1", "fd00:ec2::254", "fd20:ce::254", "fe80::1", "fec0::1", "ff02::1",
	"100::1", "5f00::1", "4000::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
	"::ffff:169.254.169.254", "::ffff:0:127.0.0.1", "::ffff:0:8.8.8.8", "64:ff9b::7f00:1",
	"64:ff9b::a9fe:a9fe", "64:ff9b::808:808", "64:ff9b:1::1", "2002:7f00:1::1", "2002:808:808::1",
	"2001::1", "2001:0:808:808::1", "2001:2::1", "2001:10::1", "2001:db8::1", "3fff::1",
}

var public = []string{
	"8.8.8.8", "1.1.1.1", "172.15.0.1", "172.32.0.1", "100.63.255.255", "100.128.0.1",
	"169.253.1.1", "192.0.1.1", "198.17.0.1", "198.20.0.1", "223.255.255.255", "::ffff:8.8.8.8",
	"2606:4700:4700::1111", "2a00:1450::1", "2001:4860:4860::8888",
}

func prefixes(all ...string) (out []netip.Prefix) {
	for _, p := range all {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// O11: private addresses are refused, also inside of IPv6 forms.
func TestGuardAddresses(t *testing.T) {
	strict := &dialguard.Guard{}
	for _, a := range hostile {
		if err := strict.CheckAddr(netip.MustParseAddr(a)); !errors.Is(err, ErrAddress) {
			t.Errorf("%s: %v", a, err)
		}
	}
	if err := strict.CheckAddr(netip.MustParseAddr("fe80::1%eth0")); !errors.Is(err, ErrAddress) {
		t.Errorf("with a zone: %v", err)
	}
	for _, a := range public {
		if err := strict.CheckAddr(netip.MustParseAddr(a)); err != nil {
			t.Error(err)
		}
	}
	for name, c := range map[string]struct {
		g     *dialguard.Guard
		yes   []string
		never []string
	}{
		"AllowPrivate": {&dialguard.Guard{AllowPrivate: true},
			[]string{"127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.0.1", "100.64.0.1", "::1", "fd12::1", "::ffff:10.0.0.1", "8.8.8.8"},
			[]string{
				"169.254.169.254", "169.254.1.1", "fd00:ec2::254", "fd20:ce::254",
				"fd00:c1::a9fe:a9fe", "fd00:42::42", "fd00:a9fe:a9fe::1", "fd00:100::100:200",
				"100.100.100.200", "fe80::1", "0.0.0.0", "::", "224.0.0.1", "64:ff9b::a00:1",
				"2002:a00:1::1", "::ffff:169.254.169.254",
			}},
		"one network": {&dialguard.Guard{AllowNetworks: prefixes("10.1.0.0/16")},
			[]string{"10.1.2.3", "::ffff:10.1.2.3", "8.8.8.8"}, []string{"10.2.0.1", "127.0.0.1", "64:ff9b::a01:203"}},
		"NAT64": {&dialguard.Guard{AllowNetworks: prefixes("64:ff9b::/96")},
			[]string{"64:ff9b::808:808"}, []string{"64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b::a00:1", "127.0.0.1"}},
		"6to4, Teredo": {&dialguard.Guard{AllowNetworks: prefixes("2002::/16", "2001::/32")},
			[]string{"2002:808:808::1", "2001:0:1:1:0:0:f7f7:f7f7"}, []string{"2002:7f00:1::1", "2001:0:1:1:0:0:80ff:fffe"}},
		"metadata, by name": {
			&dialguard.Guard{AllowNetworks: prefixes("169.254.169.254/32")},
			[]string{"169.254.169.254"},
			[]string{"169.254.169.253"},
		},
	} {
		for _, a := range c.yes {
			if err := c.g.CheckAddr(netip.MustParseAddr(a)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, a := range c.never {
			if c.g.CheckAddr(netip.MustParseAddr(a)) == nil {
				t.Errorf("%s allows %s", name, a)
			}
		}
	}
}

// New refuses base URLs that no resolver can correct (O11).
func TestGuardRefusesHostileURLs(t *testing.T) {
	var urls []string
	for _, a := range hostile {
		if strings.Contains(a, ":") {
			a = "[" + a + "]"
		}
		urls = append(urls, "http://"+a+"/", "https://"+a+":8443/v1")
	}
	urls = append(
		urls, "http://[fe80::1%25eth0]/", "http://localhost/", "http://LocalHost:80/",
		"http://localhost./", "http://api.localhost/", "http://127.1/", "http://2130706433/",
		"http://0x7f000001/", "http://0x7f.1/", "http://017700000001/", "http://0177.0.0.1/",
		"http://127.0.0.1./", "http://1.2.3.4.5/", "http://0/",
	)
	for _, u := range urls {
		_, err := New(Config{Name: "x", BaseURL: u, KeyWindow: outbox.Forever})
		if err == nil || !strings.Contains(err.Error(), "BaseURL: its host cannot be called") {
			t.Errorf("%s: %v", u, err)
		}
	}
	for _, u := range []string{
		"https://api.example.com/",
		"https://8.8.8.8/",
		"https://[2606:4700:4700::1111]/",
		"https://localhost.example/",
		"https://1e100.net./",
		"https://0xdeadbeef.example/",
	} {
		if _, err := New(Config{Name: "x", BaseURL: u, KeyWindow: outbox.Forever}); err != nil {
			t.Error(err)
		}
	}
	if _, err := New(Config{
		Name:          "x",
		BaseURL:       "http://localhost:1/",
		KeyWindow:     outbox.Forever,
		AllowNetworks: prefixes("::1/128"),
	}); err != nil {
		t.Error(err)
	}
}

// nameserver answers a resolver's questions for addresses, over a connection in memory. It gives
// the answers in order and then repeats the last one.
type nameserver struct {
	answers []string
	asked   atomic.Int64
}

func (n *nameserver) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		mine, theirs := net.Pipe()
		go n.serve(theirs)
		return mine, nil
	}}
}

func (n *nameserver) serve(c net.Conn) {
	defer c.Close()
	for {
		// A stream: each message is preceded by its length (RFC 1035 section 4.2.2)
		size := make([]byte, 2)
		if _, err := io.ReadFull(c, size); err != nil {
			return
		}
		q := make([]byte, binary.BigEndian.Uint16(size))
		if _, err := io.ReadFull(c, q); err != nil {
			return
		}
		end := 12
		for q[end] != 0 {
			end += int(q[end]) + 1
		}
		end += 5
		qtype := binary.BigEndian.Uint16(q[end-4:])
		r := append([]byte{q[0], q[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, q[12:end]...)
		i := min(int(n.asked.Load()), len(n.answers)-1)
		addr := netip.MustParseAddr(n.answers[i])
		if addr.Is4() == (qtype == 1) && (qtype == 1 || qtype == 28) {
			n.asked.Add(1)
			b := addr.AsSlice()
			r[7] = 1
			r = append(r, 0xc0, 12, byte(qtype>>8), byte(qtype), 0, 1, 0, 0, 0, 0, 0, byte(len(b)))
			r = append(r, b...)
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(r))), r...)); err != nil {
			return
		}
	}
}

// named returns a sink for a name that resolves as the name server says.
func named(t *testing.T, base string, n *nameserver, change ...func(*Config)) *Sink {
	t.Helper()
	cfg := Config{Name: "x", BaseURL: base, KeyWindow: outbox.Forever, Timeout: 5 * time.Second}
	for _, f := range change {
		f(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.transport, err = gatedTransport(cfg.Transport, &dialguard.Guard{
		AllowPrivate:   cfg.AllowPrivate,
		AllowNetworks:  cfg.AllowNetworks,
		ConnectTimeout: cfg.Timeout,
		Resolver:       n.resolver(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func send(t *testing.T, s *Sink) outbox.Result {
	return s.Send(t.Context(), &outbox.Attempt{
		Key:    "51825619-b4aa-834b-8c96-7435425d5a3b",
		Method: "POST",
		Target: "/charges",
		Body:   []byte("body"),
	})
}

// A harmless name resolves to a hostile address. The call is refused before connect(), put off
// because the DNS may be corrected, and the error names the address (O11).
func TestGuardRefusesHostileAnswers(t *testing.T) {
	for _, a := range hostile {
		r := send(t, named(t, "http://api.example.com:9/", &nameserver{answers: []string{a}}))
		if r.Outcome != outbox.Postponed || !errors.Is(r.Err, ErrAddress) || !strings.HasPrefix(r.Reason, "no call was made: address ") {
			t.Errorf("%s: %+v", a, r)
		}
	}
	// A host whose wide digits become an address on the way to the dialer.
	if r := send(t, named(t, "http://１２７.０.０.１/", &nameserver{answers: []string{"127.0.0.1"}})); r.Outcome != outbox.Postponed ||
		!errors.Is(r.Err, ErrAddress) {
		t.Errorf("wide digits: %+v", r)
	}
}

// The DNS answer changes after the first lookup, but there is no gap between check and connection.
// The first answer is an allowed server. The second is one on the same port that must never be
// reached (O11).
func TestGuardRebinding(t *testing.T) {
	var inside atomic.Int64
	secret := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { inside.Add(1) }))
	defer secret.Close()
	_, port, _ := net.SplitHostPort(secret.Listener.Addr().String())
	l, err := net.Listen("tcp", "127.0.0.2:"+port)
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("no second loopback address:", err)
		}
		t.Skip("no second loopback address:", err)
	}
	allowed := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	go func() { _ = allowed.Serve(l) }()
	defer allowed.Close()

	s := named(t, "http://api.example.com:"+port+"/", &nameserver{answers: []string{"127.0.0.2", "127.0.0.1"}}, func(c *Config) {
		c.AllowNetworks = prefixes("127.0.0.2/32")
	})
	if r := send(t, s); r.Outcome != outbox.Delivered {
		t.Fatalf("%+v", r)
	}
	s.Close() // the next attempt connects anew
	if r := send(t, s); r.Outcome != outbox.Postponed || !errors.Is(r.Err, ErrAddress) {
		t.Errorf("%+v", r)
	}
	if n := inside.Load(); n != 0 {
		t.Errorf("%d requests got inside", n)
	}
}

// The addresses that a user's own dialer and a proxy lead to are checked (O11).
func TestGuardDialersAndProxies(t *testing.T) {
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	defer server.Close()
	to := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", server.Listener.Addr().String())
	}
	pipe := func(context.Context, string, string) (net.Conn, error) {
		mine, theirs := net.Pipe()
		go func() {
			_, _ = io.ReadFull(theirs, make([]byte, 1))
			_ = theirs.Close()
		}()
		return mine, nil
	}
	at, _ := url.Parse(server.URL)
	for name, transport := range map[string]*http.Transport{
		"DialContext": {DialContext: to}, "no IP address": {DialContext: pipe}, "Proxy": {Proxy: http.ProxyURL(at)},
	} {
		n := &nameserver{answers: []string{"8.8.8.8"}}
		before := requests.Load()
		s := named(t, "http://api.example.com/", n, func(c *Config) { c.Transport = transport })
		if r := send(t, s); r.Outcome != outbox.Postponed || !errors.Is(r.Err, ErrAddress) || requests.Load() != before {
			t.Errorf("%s: %+v", name, r)
		}
		s = named(t, "http://api.example.com/", n, func(c *Config) {
			c.Transport = transport
			c.AllowPrivate = true
		})
		if r := send(t, s); errors.Is(r.Err, ErrAddress) || name != "no IP address" && r.Outcome != outbox.Delivered {
			t.Errorf("%s, allowed: %+v", name, r)
		}
	}
	s := named(
		t,
		"https://api.example.com/",
		&nameserver{answers: []string{"8.8.8.8"}},
		func(c *Config) { c.Transport = &http.Transport{DialTLSContext: to} },
	)
	if r := send(t, s); r.Outcome != outbox.Postponed || !errors.Is(r.Err, ErrAddress) {
		t.Errorf("DialTLSContext: %+v", r)
	}
}

// The environment's proxy is not used, whether it was asked for implicitly or not at all.
func TestGuardNoProxyFromTheEnvironment(t *testing.T) {
	_, err := New(Config{
		Name:      "x",
		BaseURL:   "https://api.example.com",
		KeyWindow: outbox.Forever,
		Transport: http.DefaultTransport.(*http.Transport).Clone(),
	})
	if err == nil || !strings.Contains(err.Error(), "Transport: Proxy must not be http.ProxyFromEnvironment") {
		t.Error(err)
	}
	transport, err := gatedTransport(nil, &dialguard.Guard{})
	if err != nil || transport.Proxy != nil {
		t.Error("a proxy", err)
	}
}

func TestGuardHosts(t *testing.T) {
	allow := []string{"api.example.com", "*.hooks.example"}
	for host, want := range map[string]bool{
		"api.example.com":              true,
		"API.example.com":              true,
		"api.example.com.":             true,
		"a.hooks.example":              true,
		"a.b.hooks.example":            true,
		"hooks.example":                false,
		".hooks.example":               false,
		"xhooks.example":               false,
		"example.com":                  false,
		"api.example.com.evil.example": false,
		"evil-api.example.com":         false,
	} {
		if got := dialguard.HostMatches(host, allow); got != want {
			t.Errorf("%s: %v", host, got)
		}
	}
	_, err := New(Config{Name: "x", BaseURL: "https://evil.example/", KeyWindow: outbox.Forever, AllowHosts: allow})
	if err == nil || !strings.Contains(err.Error(), `"evil.example" is not among AllowHosts`) {
		t.Error(err)
	}
	_, err = New(Config{
		Name:          "x",
		BaseURL:       "https://a.example/",
		KeyWindow:     outbox.Forever,
		AllowHosts:    []string{"", "*", "*.*.x", "http://x", "..x"},
		AllowNetworks: []netip.Prefix{{}, netip.MustParsePrefix("::ffff:10.0.0.0/104")},
	})
	for _, want := range []string{
		"AllowHosts[0]",
		"AllowHosts[1]",
		"AllowHosts[2]",
		"AllowHosts[3]",
		"AllowHosts[4]",
		"AllowNetworks[0]",
		"AllowNetworks[1]",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("nothing says %s: %v", want, err)
		}
	}
}
