package webhook_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/webhook"
	"github.com/onlyonce/onlyonce/webhook/paypal"
	"github.com/onlyonce/onlyonce/webhook/scheme"
	"github.com/onlyonce/onlyonce/webhook/sns"
)

const (
	payPalWebhook = "4JH86294D6297924G"
	payPalName    = "messageverificationcerts.paypal.com"
	payPalFile    = "api.paypal.com/v1/notifications/certs/CERT-360caa42-fca2a594-a5cafa77"
	payPalBody    = `{"id":"WH-0G2756385H040842W-5Y612302CV158622M","event_type":"PAYMENT.SALE.COMPLETED",` +
		`"resource":{"id":"4EU7004268015634R"}}`
	transmission = "dfb3be50-fd74-11e4-8bf3-77339302725b"
)

// payPal is a host of PayPal's with a good certificate, and a Verifier of its transmissions.
func payPal(t testing.TB, change ...func(*webhook.Config, *paypal.Provider)) (*senderHost, *webhook.Verifier) {
	t.Helper()
	h := newSenderHost(t)
	h.put(payPalFile, pemFile(h.signing(payPalName), h.middle.Raw))
	p := paypal.Provider{WebhookID: payPalWebhook, Roots: h.roots, Fetch: h.fetch()}
	cfg := webhook.Config{}
	for _, f := range change {
		f(&cfg, &p)
	}
	cfg.Provider = p
	v, err := webhook.NewVerifier(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return h, v
}

// payPalRequest is a transmission as PayPal documents it.
func payPalRequest(t testing.TB, key *rsa.PrivateKey, at time.Time, body string) http.Header {
	t.Helper()
	written := at.UTC().Format(time.RFC3339)
	sum := sha256.Sum256(fmt.Appendf(nil, "%s|%s|%s|%d", transmission, written, payPalWebhook, crc32.ChecksumIEEE([]byte(body))))
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return headers("Paypal-Transmission-Id", transmission, "Paypal-Transmission-Time", written, "Paypal-Auth-Algo", "SHA256withRSA",
		"Paypal-Cert-Url", "https://"+payPalFile, "Paypal-Transmission-Sig", b64(signature))
}

func TestPayPal(t *testing.T) {
	t.Parallel()
	h, v := payPal(t)
	at := time.Now().Truncate(time.Second)
	good := payPalRequest(t, h.key, at, payPalBody)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			e, err := v.Verify(good, []byte(payPalBody))
			if err != nil {
				t.Error(err)
				return
			}
			named := e.ID == "WH-0G2756385H040842W-5Y612302CV158622M" && e.Type == "PAYMENT.SALE.COMPLETED"
			if !named || e.IDSigned || !e.Time.Equal(at) {
				t.Errorf("%+v", e)
			}
		})
	}
	all.Wait()
	if n := h.times(""); n != 1 {
		t.Errorf("%d fetches for 20 requests", n)
	}
	for i := range payPalBody {
		b := []byte(payPalBody)
		b[i] ^= 1
		refusesNow(t, v, good, string(b), webhook.ErrSignature)
	}
	for name, values := range map[string][]string{
		"Paypal-Transmission-Id":   {"", "x", transmission + "|x", transmission[:35]},
		"Paypal-Transmission-Time": {"", "x", "2015-05-18", at.Add(time.Second).UTC().Format(time.RFC3339), "2015-05-18T15:45:13Z|x"},
		"Paypal-Auth-Algo":         {"", "SHA1withRSA", "SHA256withECDSA", "none"},
		"Paypal-Transmission-Sig": {
			"",
			"x",
			"AAAA",
			good.Get("Paypal-Transmission-Sig") + "=",
			b64(make([]byte, 256)),
			b64(make([]byte, 2000)),
		},
	} {
		for _, value := range values {
			bad := good.Clone()
			bad.Set(name, value)
			refusesNow(t, v, bad, payPalBody, webhook.ErrMalformed, webhook.ErrSignature)
		}
		bad := good.Clone()
		bad.Add(name, bad.Get(name))
		refusesNow(t, v, bad, payPalBody, webhook.ErrMalformed)
	}
	_, other := payPal(t, func(_ *webhook.Config, p *paypal.Provider) {
		p.WebhookID = "ANOTHER"
		p.Roots = h.roots
		p.Fetch = h.fetch()
	})
	refusesNow(t, other, good, payPalBody, webhook.ErrSignature) // another application's
}

// W4: the parts of what PayPal signs end at a bar, which no part may hold. Otherwise another
// transmission's id and time would have the same signature.
func TestPayPalDelimiter(t *testing.T) {
	t.Parallel()
	h, v := payPal(t)
	written := time.Now().UTC().Format(time.RFC3339)
	text := fmt.Appendf(nil, "a|b|%s|%s|%d", written, payPalWebhook, crc32.ChecksumIEEE([]byte(payPalBody)))
	sum := sha256.Sum256(text)
	signature, err := rsa.SignPKCS1v15(rand.Reader, h.key, crypto.SHA256, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	bad := payPalRequest(t, h.key, time.Now(), payPalBody)
	bad.Set("Paypal-Transmission-Id", "a|b")
	bad.Set("Paypal-Transmission-Time", written)
	bad.Set("Paypal-Transmission-Sig", b64(signature))
	refusesNow(t, v, bad, payPalBody, webhook.ErrMalformed)
}

// refusesNow is refuses at the present time.
func refusesNow(t testing.TB, v *webhook.Verifier, h http.Header, body string, checks ...error) {
	t.Helper()
	e, err := v.Verify(h, []byte(body))
	if err == nil {
		t.Fatalf("accepted: %v %.60q: %+v", h, body, e)
	}
	for _, check := range checks {
		if errors.Is(err, check) {
			quiet(t, err, h, body, payPalWebhook)
			return
		}
	}
	t.Errorf("%v, want %v: %.300v", err, checks, h)
}

func TestPayPalFaults(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]webhook.Config{
		"paypal.Provider.WebhookID": {Provider: paypal.Provider{WebhookID: "a|b"}},
		"Secrets: must be empty":    {Provider: paypal.Provider{WebhookID: "A"}, Secrets: []string{"0123456789abcdef"}},
		"paypal.Provider.Fetch.Timeout: is 11s": {Provider: paypal.Provider{
			WebhookID: "A",
			Fetch:     scheme.Fetch{Timeout: 11 * time.Second},
		}},
		"paypal.Provider.Fetch.Transport: Prox": {Provider: paypal.Provider{
			WebhookID: "A",
			Fetch:     scheme.Fetch{Transport: http.DefaultTransport.(*http.Transport)},
		}},
		"paypal.Provider.Fetch.Transport: Dial": {Provider: paypal.Provider{WebhookID: "A", Fetch: scheme.Fetch{Transport: insecure()}}},
		"paypal.Provider.Fetch.AllowNetworks":   {Provider: paypal.Provider{WebhookID: "A", Fetch: scheme.Fetch{AllowNetworks: noNetwork}}},
	} {
		if _, err := webhook.NewVerifier(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("nothing says %q: %v", want, err)
		}
	}
}

// insecure is a transport that believes every server.
func insecure() *http.Transport {
	return &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // is refused
}

// noNetwork is a prefix that is no network.
var noNetwork = []netip.Prefix{{}}

// W18: the certificate of a request is at an address of the sender's. No other is asked for
// anything.
func TestW18CertificateFromElsewhere(t *testing.T) {
	t.Parallel()
	h, v := payPal(t)
	good := payPalRequest(t, h.key, time.Now(), payPalBody)
	const path = "/v1/notifications/certs/CERT-360caa42"
	for _, address := range []string{
		"",
		"x",
		path,
		"http://api.paypal.com" + path,
		"https://api.paypal.com.evil.example" + path,
		"https://evil.example" + path,
		"https://evil.example/api.paypal.com" + path,
		"https://api.paypal.com@evil.example" + path,
		"https://user@api.paypal.com" + path,
		"https://api.paypal.com:8443" + path,
		"https://api.paypal.com:443" + path,
		"https://api.sandbox.paypal.com" + path,
		"https://www.paypal.com" + path,
		"https://api.paypal.com/redirect" + path,
		"https://api.paypal.com/v1/notifications/certs/../x",
		"https://api.paypal.com/v1/notifications/certs/",
		"https://api.paypal.com/v1/notifications/certs/a/b",
		"https://api.paypal.com/v1/notifications/certs/%2e%2e",
		"https://api.paypal.com/v1/notifications%2fcerts/a",
		"https://api.paypal.com" + path + "?x=1",
		"https://api.paypal.com" + path + "?",
		"https://api.paypal.com" + path + "#x",
		"https://api.paypal.com" + path + "#",
		"https://api.paypal.com\\@evil.example" + path,
		"file:///etc/passwd",
		"https:api.paypal.com" + path,
		"//api.paypal.com" + path,
		"https://127.0.0.1" + path,
		"https://[::1]" + path,
		"https://169.254.169.254" + path,
		"HTTPS://api.paypal.com" + path,
	} {
		bad := good.Clone()
		bad.Set("Paypal-Cert-Url", address)
		refusesNow(t, v, bad, payPalBody, webhook.ErrMalformed)
	}
	if n := h.times(""); n != 0 {
		t.Errorf("%d fetches", n)
	}
}

// W18: a certificate from the right address counts if it is the sender's, valid, of a good key, and
// leads to a root.
func TestW18CertificatesThatDoNotCount(t *testing.T) {
	t.Parallel()
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	for name, certify := range map[string]func(h *senderHost) []byte{
		"expired": func(h *senderHost) []byte {
			return pemFile(h.signing(payPalName, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), h.middle.Raw)
		},
		"not valid yet": func(h *senderHost) []byte {
			return pemFile(h.signing(payPalName, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }), h.middle.Raw)
		},
		"another name": func(h *senderHost) []byte { return pemFile(h.signing("www.paypal.com"), h.middle.Raw) },
		"the right name beside another that counts": func(h *senderHost) []byte {
			return pemFile(h.signing(payPalName, func(c *x509.Certificate) { c.DNSNames = []string{"evil.example"} }), h.middle.Raw)
		},
		"no issuer": func(h *senderHost) []byte { return pemFile(h.signing(payPalName)) },
		"another authority": func(h *senderHost) []byte {
			other := newSenderHost(h.t)
			return pemFile(other.signing(payPalName), other.middle.Raw, other.root.Raw)
		},
		"issued by itself": func(h *senderHost) []byte {
			c := &x509.Certificate{DNSNames: []string{payPalName}}
			return pemFile(h.sign(c, c, h.key, h.key.Public()))
		},
		"issued by a certificate that issues nothing": func(h *senderHost) []byte {
			by, err := x509.ParseCertificate(h.signing("leaf.example"))
			if err != nil {
				h.t.Fatal(err)
			}
			return pemFile(h.sign(&x509.Certificate{DNSNames: []string{payPalName}}, by, h.key, h.key.Public()), by.Raw, h.middle.Raw)
		},
		"an authority's": func(h *senderHost) []byte {
			return pemFile(h.signing(payPalName, func(c *x509.Certificate) {
				c.IsCA = true
				c.BasicConstraintsValid = true
			}), h.middle.Raw)
		},
		"short key": func(h *senderHost) []byte {
			h.key = short
			return pemFile(h.sign(&x509.Certificate{DNSNames: []string{payPalName}}, h.middle, h.middleKey, short.Public()), h.middle.Raw)
		},
		"another kind of key": func(h *senderHost) []byte {
			return pemFile(
				h.sign(&x509.Certificate{DNSNames: []string{payPalName}}, h.middle, h.middleKey, newECKey(h.t).Public()),
				h.middle.Raw,
			)
		},
		"no PEM": func(*senderHost) []byte { return []byte("<html>") },
		"empty":  func(*senderHost) []byte { return nil },
		"a key": func(*senderHost) []byte {
			return []byte("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")
		},
		"too many": func(h *senderHost) []byte {
			return pemFile(
				h.signing(payPalName),
				h.middle.Raw,
				h.middle.Raw,
				h.middle.Raw,
				h.middle.Raw,
				h.middle.Raw,
				h.middle.Raw,
				h.middle.Raw,
				h.middle.Raw,
			)
		},
		"signature of another key": func(h *senderHost) []byte {
			h.key = short
			return pemFile(
				h.sign(&x509.Certificate{DNSNames: []string{payPalName}}, h.middle, h.middleKey, signingKey().Public()),
				h.middle.Raw,
			)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, v := payPal(t)
			h.put(payPalFile, certify(h))
			_, err := v.Verify(payPalRequest(t, h.key, time.Now(), payPalBody), []byte(payPalBody))
			var refused *webhook.Error
			if !errors.As(err, &refused) ||
				!errors.Is(err, webhook.ErrSignature) ||
				(refused.Field == "certificate") != (name != "signature of another key") {
				t.Errorf("%v", err)
			}
		})
	}
}

// W18: what does not come, or not as it should, is a reason to try again later, and is not tried
// again for each request.
func TestW18Fetches(t *testing.T) {
	t.Parallel()
	const elsewhere = "api.paypal.com/elsewhere"
	never := make(chan struct{})
	t.Cleanup(func() { close(never) })
	good := func(h *senderHost) []byte { return pemFile(h.signing(payPalName), h.middle.Raw) }
	for name, serve := range map[string]func(h *senderHost) http.HandlerFunc{
		"redirect": func(h *senderHost) http.HandlerFunc {
			h.put(elsewhere, good(h))
			return func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "https://"+elsewhere, http.StatusFound)
			}
		},
		"redirect with a body": func(h *senderHost) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "https://"+elsewhere)
				w.WriteHeader(http.StatusMovedPermanently)
				_, _ = w.Write(good(h))
			}
		},
		"not found, with a body": func(h *senderHost) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusNotFound)
				_, _ = w.Write(good(h))
			}
		},
		"huge": func(h *senderHost) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write(good(h))
				_, _ = w.Write(bytes.Repeat([]byte("\n"), 64<<10))
			}
		},
		"huge headers": func(h *senderHost) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("X", strings.Repeat("x", 100<<10))
				_, _ = w.Write(good(h))
			}
		},
		"never answers": func(*senderHost) http.HandlerFunc {
			return func(_ http.ResponseWriter, r *http.Request) {
				select {
				case <-never:
				case <-r.Context().Done():
				}
			}
		},
		"never ends": func(h *senderHost) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				_, _ = w.Write(good(h))
				_ = http.NewResponseController(w).Flush()
				select {
				case <-never:
				case <-r.Context().Done():
				}
			}
		},
		"breaks off": func(*senderHost) http.HandlerFunc {
			return func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, v := payPal(t, func(_ *webhook.Config, p *paypal.Provider) { p.Fetch.Timeout = time.Second })
			h.handle(payPalFile, serve(h))
			request := payPalRequest(t, h.key, time.Now(), payPalBody)
			webhook.HoldCertificates(v, 0)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			for range 3 {
				_, err := v.VerifyRequest(ctx, webhook.Request{Header: request, Body: []byte(payPalBody)})
				var refused *webhook.Error
				unavailable := errors.As(err, &refused) && errors.Is(err, webhook.ErrUnavailable)
				if ctx.Err() != nil || !unavailable || refused.Status() != 503 {
					t.Fatalf("%v", err)
				}
			}
			n, other := h.times(payPalFile), h.times(elsewhere)
			if n != 1 || other != 0 {
				t.Errorf("%d fetches, and %d from where it leads", n, other)
			}
			h.put(payPalFile, good(h))
			webhook.HoldCertificates(v, 3*time.Second)
			if _, err := v.Verify(request, []byte(payPalBody)); err != nil {
				t.Errorf("after 3 s: %v", err)
			}
		})
	}
}

// W18: fetches reach the public Internet only, and hosts that TLS vouches for.
func TestW18WhereFetchesLead(t *testing.T) {
	t.Parallel()
	h, v := payPal(t, func(_ *webhook.Config, p *paypal.Provider) { p.Fetch.AllowPrivate = false })
	if _, err := v.Verify(payPalRequest(t, h.key, time.Now(), payPalBody), []byte(payPalBody)); !errors.Is(err, httpsink.ErrAddress) {
		t.Errorf("a private address: %v", err)
	}
	other := newSenderHost(t)
	h2, v := payPal(t, func(_ *webhook.Config, p *paypal.Provider) {
		p.Fetch.Transport = p.Fetch.Transport.Clone()
		p.Fetch.Transport.TLSClientConfig.RootCAs = other.roots
	})
	if _, err := v.Verify(payPalRequest(t, h2.key, time.Now(), payPalBody), []byte(payPalBody)); !errors.Is(err, webhook.ErrUnavailable) {
		t.Errorf("a server of another authority: %v", err)
	}
	if h.times("")+h2.times("") != 0 {
		t.Error("a request was sent")
	}
}

// W18: a missing issuer is fetched from the authorities that the sender has, and from no others.
func TestW18Issuers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		address string
		issuer  func(h *senderHost) []byte
		want    error
	}{
		"DER": {"http://cacerts.digicert.com/middle.crt", func(h *senderHost) []byte { return h.middle.Raw }, nil},
		"PEM": {"http://cacerts.digicert.com/middle.pem", func(h *senderHost) []byte { return pemFile(h.middle.Raw) }, nil},
		"another one": {
			"http://cacerts.digicert.com/middle.crt",
			func(h *senderHost) []byte { return newSenderHost(h.t).middle.Raw },
			webhook.ErrSignature,
		},
		"no certificate": {
			"http://cacerts.digicert.com/middle.crt",
			func(*senderHost) []byte { return []byte("x") },
			webhook.ErrSignature,
		},
		"not there": {"http://cacerts.digicert.com/other.crt", nil, webhook.ErrUnavailable},
		"another host": {
			"http://cacerts.evil.example/middle.crt",
			func(h *senderHost) []byte { return h.middle.Raw },
			webhook.ErrSignature,
		},
		"another port": {
			"http://cacerts.digicert.com:80/middle.crt",
			func(h *senderHost) []byte { return h.middle.Raw },
			webhook.ErrSignature,
		},
		"another network": {
			"ldap://cacerts.digicert.com/middle.crt",
			func(h *senderHost) []byte { return h.middle.Raw },
			webhook.ErrSignature,
		},
	} {
		h, v := payPal(t)
		file := c.address[strings.Index(c.address, "//")+2:]
		if c.issuer != nil {
			h.put(file, c.issuer(h))
		}
		h.put(payPalFile, pemFile(h.signing(payPalName, func(x *x509.Certificate) { x.IssuingCertificateURL = []string{c.address} })))
		_, err := v.Verify(payPalRequest(t, h.key, time.Now(), payPalBody), []byte(payPalBody))
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if asked := h.times(""); strings.HasPrefix(name, "another ") && name != "another one" && asked != 1 {
			t.Errorf("%s: %d fetches", name, asked)
		}
	}
}

// stranger names a certificate that PayPal does not have, in an unsigned request.
func stranger(t *testing.T, v *webhook.Verifier, good http.Header, n int) {
	t.Helper()
	bad := good.Clone()
	bad.Set("Paypal-Cert-Url", fmt.Sprintf("https://api.paypal.com/v1/notifications/certs/CERT-%d", n))
	refusesNow(t, v, bad, payPalBody, webhook.ErrUnavailable)
}

// W18: strangers whose unsigned requests name certificates that do not exist, 32 of them at the
// beginning of each minute, keep no event out whose certificate the configuration names, not even
// of a process that has just begun.
func TestW18StrangersBesideConfiguredCertificates(t *testing.T) {
	t.Parallel()
	h, v := payPal(t, func(_ *webhook.Config, p *paypal.Provider) { p.CertURLs = []string{"https://" + payPalFile} })
	h2, v2 := overSNS(t, func(p *sns.Provider) { p.CertURLs = []string{"https://" + snsFile} })
	request := payPalRequest(t, h.key, time.Now(), payPalBody)
	message := snsMessage(time.Now())
	event := snsBody(t, h2.key, message, snsText(message))
	made := maps.Clone(message)
	n := 0
	for minute := range 10 {
		webhook.HoldCertificates(v, time.Duration(minute)*61*time.Second)
		webhook.HoldCertificates(v2, time.Duration(minute)*61*time.Second)
		for range 32 {
			n++
			stranger(t, v, request, n)
			made["SigningCertURL"] = fmt.Sprintf("https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-%d.pem", n)
			refusesNow(t, v2, snsHeaders, snsBody(t, h2.key, made, "x"), webhook.ErrUnavailable)
		}
		for range 3 {
			if _, err := v.Verify(request, []byte(payPalBody)); err != nil {
				t.Fatalf("PayPal, minute %d: %v", minute, err)
			}
			if _, err := v2.Verify(snsHeaders, []byte(event)); err != nil {
				t.Fatalf("SNS, minute %d: %v", minute, err)
			}
		}
	}
	a, b := h.times(payPalFile), h2.times(snsFile)
	if a != 1 || b != 1 {
		t.Errorf("the certificates were fetched %d and %d times", a, b)
	}
	a, b = h.times(""), h2.times("")
	if a != 11 || b != 12 { // one of each minute's strangers; SNS's issuer
		t.Errorf("%d and %d fetches", a, b)
	}
	for _, address := range []string{"", "https://evil.example/x", "https://" + snsFile, "https://" + payPalFile + "?"} {
		if _, err := (paypal.Provider{WebhookID: "A", CertURLs: []string{address}}).Scheme(); err == nil ||
			!strings.Contains(err.Error(), "paypal.Provider.CertURLs") {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// W18: all unknown certificates have one fetch at a time, and a pause after one that failed; then a
// genuine one that is not configured is fetched as well as another. Once it is known no
// stranger gets in its way, and none makes it forgotten. It does not outlive itself.
func TestW18StrangersBesideLearnedCertificates(t *testing.T) {
	t.Parallel()
	h, v := payPal(t)
	request := payPalRequest(t, h.key, time.Now(), payPalBody)
	verify := func() error {
		_, err := v.Verify(request, []byte(payPalBody))
		return err
	}
	webhook.HoldCertificates(v, 0)
	for n := range 3 {
		stranger(t, v, request, n)
	}
	if n := h.times(""); n != 1 {
		t.Errorf("%d fetches at once", n)
	}
	if err := verify(); !errors.Is(err, webhook.ErrUnavailable) || !strings.Contains(err.Error(), "CertURLs") {
		t.Errorf("within the pause: %v", err)
	}
	webhook.HoldCertificates(v, 2*time.Second)
	if err := verify(); err != nil {
		t.Fatalf("after it: %v", err)
	}
	var all sync.WaitGroup
	goOn := make(chan struct{})
	for n := range 100 { // as many as it would take to forget it, of a host that is slow to say no
		webhook.HoldCertificates(v, time.Duration(n+1)*2*time.Minute)
		file := fmt.Sprintf("api.paypal.com/v1/notifications/certs/CERT-slow-%d", n)
		h.handle(file, func(w http.ResponseWriter, r *http.Request) { <-goOn; http.NotFound(w, r) })
		bad := request.Clone()
		bad.Set("Paypal-Cert-Url", "https://"+file)
		all.Go(func() { refusesNow(t, v, bad, payPalBody, webhook.ErrUnavailable) })
		if err := verify(); err != nil {
			t.Fatalf("beside %d strangers: %v", n+1, err)
		}
	}
	close(goOn)
	all.Wait()
	for n := range 70 { // the sender's own are kept, but not without end
		file := fmt.Sprintf("api.paypal.com/v1/notifications/certs/CERT-good-%d", n)
		h.put(file, pemFile(h.signing(payPalName), h.middle.Raw))
		webhook.HoldCertificates(v, 4*time.Hour+time.Duration(n)*time.Second)
		bad := request.Clone()
		bad.Set("Paypal-Cert-Url", "https://"+file)
		if _, err := v.Verify(bad, []byte(payPalBody)); err != nil {
			t.Fatal(err)
		}
		if err := verify(); err != nil {
			t.Fatal(err)
		}
	}
	n, kept := h.times(payPalFile), webhook.KnownCertificates(v)
	if n != 1 || kept != 64 {
		t.Errorf("the genuine certificate was fetched %d times; %d are kept", n, kept)
	}
	later := time.Now().Add(101 * time.Hour) // the certificate is valid for 100
	_, err := v.VerifyAt(later, payPalRequest(t, h.key, later, payPalBody), []byte(payPalBody))
	if !errors.Is(err, webhook.ErrSignature) {
		t.Errorf("a known certificate that has expired: %v", err)
	}
}

// W18: a certificate is fetched again after a day. The old one serves meanwhile, and for as long as
// its host does not answer; what the host answers counts.
func TestW18KnownCertificateServesMeanwhile(t *testing.T) {
	t.Parallel()
	h, v := payPal(t)
	request := payPalRequest(t, h.key, time.Now(), payPalBody)
	ctx, end := context.WithCancel(t.Context())
	verify := func() error {
		_, err := v.VerifyRequest(ctx, webhook.Request{Header: request, Body: []byte(payPalBody)})
		return err
	}
	fetched := func(times int) {
		t.Helper()
		pgtest.Until(t, patience, "it is fetched again", func() bool {
			if err := verify(); err != nil {
				t.Fatal(err)
			}
			return h.times(payPalFile) == times
		})
	}
	fetched(1)
	end() // from here on no request can wait
	goOn := make(chan struct{})
	h.handle(payPalFile, func(w http.ResponseWriter, r *http.Request) {
		<-goOn
		http.NotFound(w, r)
	})
	webhook.AgeCertificates(v, 25*time.Hour)
	fetched(2)
	close(goOn)
	webhook.AgeCertificates(v, 25*time.Hour+3*time.Second)
	fetched(3) // the host does not have it, and is asked again later
	h.put(payPalFile, pemFile(h.signing("another name"), h.middle.Raw))
	webhook.AgeCertificates(v, 25*time.Hour+6*time.Second)
	pgtest.Until(t, patience, "it does not count any more", func() bool { return errors.Is(verify(), webhook.ErrSignature) })
}

// A request that leaves does not take the fetch with it, for which others wait.
func TestW18FetchOutlivesItsRequest(t *testing.T) {
	t.Parallel()
	h, v := payPal(t, func(_ *webhook.Config, p *paypal.Provider) { p.Fetch.Timeout = 10 * time.Second })
	begun := make(chan struct{})
	goOn := make(chan struct{})
	h.handle(payPalFile, func(w http.ResponseWriter, _ *http.Request) {
		close(begun)
		<-goOn
		_, _ = w.Write(pemFile(h.signing(payPalName), h.middle.Raw))
	})
	request := webhook.Request{Header: payPalRequest(t, h.key, time.Now(), payPalBody), Body: []byte(payPalBody)}
	ctx, leave := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { _, err := v.VerifyRequest(ctx, request); first <- err }()
	pgtest.Receive(t, patience, "it has begun", begun)
	leave()
	if err := pgtest.Receive(t, patience, "first", first); !errors.Is(err, webhook.ErrUnavailable) {
		t.Errorf("the request that left: %v", err)
	}
	close(goOn)
	if _, err := v.VerifyRequest(t.Context(), request); err != nil {
		t.Errorf("the next: %v", err)
	}
}

// W5: an old transmission is stale, once its signature is right.
func TestW5OldTransmissions(t *testing.T) {
	t.Parallel()
	for tolerance, limits := range map[time.Duration][2]time.Duration{
		0:           {72*time.Hour + 5*time.Minute, 5 * time.Minute},
		time.Minute: {time.Minute, time.Minute},
	} {
		h, v := payPal(t, func(cfg *webhook.Config, _ *paypal.Provider) { cfg.Tolerance = tolerance })
		at := time.Now().Truncate(time.Second)
		for off, want := range map[time.Duration]error{
			-limits[0]:               nil,
			-limits[0] - time.Second: webhook.ErrStale,
			limits[1]:                nil,
			limits[1] + time.Second:  webhook.ErrStale,
			-1000 * time.Hour:        webhook.ErrStale,
		} {
			request := payPalRequest(t, h.key, at.Add(off), payPalBody)
			if _, err := v.VerifyAt(at, request, []byte(payPalBody)); !errors.Is(err, want) || (err == nil) != (want == nil) {
				t.Errorf("%v off: %v", off, err)
			}
			if _, err := v.VerifyAt(at, request, []byte(payPalBody+" ")); !errors.Is(err, webhook.ErrSignature) {
				t.Errorf("%v off, another body: %v", off, err)
			}
		}
	}
}

// sameCRC returns another body with the CRC-32 of a body. It replaces a run of zeros in other, of
// at least 40, by zeros and ones. A CRC is linear: each digit changes it by the same bits, whatever
// the others are.
func sameCRC(t testing.TB, body, other string) string {
	t.Helper()
	const digits = 40
	at := strings.Index(other, strings.Repeat("0", digits))
	if at < 0 {
		t.Fatal("there is no run of zeros")
	}
	b := []byte(other)
	start := crc32.ChecksumIEEE(b)
	type row struct {
		effect uint32
		which  uint64
	}
	var basis [32]row
	reduce := func(r row) row {
		for bit := 31; bit >= 0; bit-- {
			if r.effect>>bit&1 == 1 && basis[bit].effect != 0 {
				r.effect, r.which = r.effect^basis[bit].effect, r.which^basis[bit].which
			}
		}
		return r
	}
	for i := range digits {
		b[at+i] = '1'
		r := reduce(row{crc32.ChecksumIEEE(b) ^ start, 1 << i})
		b[at+i] = '0'
		for bit := 31; bit >= 0; bit-- {
			if r.effect>>bit&1 == 1 {
				basis[bit] = r
				break
			}
		}
	}
	found := reduce(row{crc32.ChecksumIEEE([]byte(body)) ^ start, 0})
	for i := range digits {
		if found.which>>i&1 == 1 {
			b[at+i] = '1'
		}
	}
	if crc32.ChecksumIEEE(b) != crc32.ChecksumIEEE([]byte(body)) {
		t.Fatal("the test did not find a body")
	}
	return string(b)
}

// W7: PayPal signs a CRC-32 of the body, so that a recorded transmission is signed for other bodies
// too. One body is applied for each transmission; another is set aside, under whatever id.
func TestW7OtherBodyOfATransmission(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := newSenderHost(t)
	h.put(payPalFile, pemFile(h.signing(payPalName), h.middle.Raw))
	e := r.serve(sample{}, func(c *webhook.Config) {
		c.Provider = paypal.Provider{WebhookID: payPalWebhook, Roots: h.roots, Fetch: h.fetch()}
		c.Secrets = nil
	})
	recorded := payPalRequest(t, h.key, time.Now(), payPalBody)
	forged := sameCRC(t, payPalBody, `{"id":"WH-made-up","event_type":"PAYMENT.SALE.COMPLETED","x":"`+strings.Repeat("0", 40)+`"}`)
	e.do(e.request(recorded, payPalBody)).want(t, 200, false)
	e.do(e.request(recorded, payPalBody)).want(t, 200, true)
	e.do(e.request(recorded, forged)).want(t, 200, true)
	if r.last() != webhook.SameBody {
		t.Errorf("the forged body is %s", r.last())
	}
	// Another body under the event's own id leaves the transmission to its first body.
	body := func(id, text string) string {
		return fmt.Sprintf(`{"id":%q,"event_type":"PAYMENT.SALE.COMPLETED","x":%q}`, id, text)
	}
	second := body("WH-second", "")
	recorded = payPalRequest(t, h.key, time.Now(), second)
	e.do(e.request(recorded, second)).want(t, 200, false)
	e.do(e.request(recorded, sameCRC(t, second, body("WH-second", strings.Repeat("0", 40))))).want(t, 200, true)
	if r.last() != webhook.Divergent {
		t.Errorf("another body under its id is %s", r.last())
	}
	e.do(e.request(recorded, sameCRC(t, second, body("WH-third", strings.Repeat("0", 40))))).want(t, 200, true)
	if n := r.count("onlyonce.event_log"); n != 2 {
		t.Errorf("%d events are stored", n)
	}
}
