package webhook_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// senderHost is the host of a sender that signs with certificates: an authority of the test's own,
// and servers on loopback that each name leads to, for HTTPS and, for issuers, HTTP.
type senderHost struct {
	t          testing.TB
	root       *x509.Certificate // leads to nothing but itself
	middle     *x509.Certificate // issued by root; issues the certificates that sign
	middleKey  crypto.Signer
	key        *rsa.PrivateKey // of the certificates that sign
	roots      *x509.CertPool
	transport  *http.Transport
	mu         sync.Mutex
	files      map[string]http.HandlerFunc // by host and path
	asked      map[string]int              // the same, also of files that are not there
	askedTotal int
}

// signingKey is made once, because that takes a while.
var signingKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

func newSenderHost(t testing.TB) *senderHost {
	t.Helper()
	h := &senderHost{t: t, key: signingKey(), roots: x509.NewCertPool(), files: map[string]http.HandlerFunc{}, asked: map[string]int{}}
	var rootKey crypto.Signer
	h.root, rootKey = h.authority("root", nil, nil)
	h.middle, h.middleKey = h.authority("middle", h.root, rootKey)
	h.roots.AddCert(h.root)

	tlsKey := newECKey(t)
	served := &x509.Certificate{
		Subject: pkix.Name{CommonName: "server"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{
			"sns.eu-west-1.amazonaws.com",
			"sns.us-gov-east-1.amazonaws.com",
			"sns.cn-north-1.amazonaws.com.cn",
			"api.paypal.com",
			"api.sandbox.paypal.com",
		},
	}
	der := h.sign(served, h.root, rootKey, tlsKey.Public())
	secure := httptest.NewUnstartedServer(h)
	secure.TLS = &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: tlsKey}},
	}
	secure.StartTLS()
	plain := httptest.NewServer(h)
	t.Cleanup(func() { secure.CloseClientConnections(); secure.Close(); plain.Close() })
	h.transport = &http.Transport{
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: h.roots},
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			to := secure.Listener.Addr()
			if strings.HasSuffix(addr, ":80") {
				to = plain.Listener.Addr()
			}
			return (&net.Dialer{}).DialContext(ctx, network, to.String())
		},
	}
	return h
}

// ServeHTTP serves the files of all hosts.
func (h *senderHost) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := r.Host + r.URL.Path
	h.mu.Lock()
	h.asked[name]++
	h.askedTotal++
	serve := h.files[name]
	h.mu.Unlock()
	if serve == nil {
		http.NotFound(w, r)
		return
	}
	serve(w, r)
}

// put makes a file of bytes.
func (h *senderHost) put(name string, file []byte) {
	h.handle(name, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(file) })
}

func (h *senderHost) handle(name string, serve http.HandlerFunc) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.files[name] = serve
}

// times returns how often a file was asked for; "" means all.
func (h *senderHost) times(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if name == "" {
		return h.askedTotal
	}
	return h.asked[name]
}

func (h *senderHost) fetch() scheme.Fetch {
	return scheme.Fetch{AllowPrivate: true, Transport: h.transport}
}

func newECKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// authority makes a certificate that may issue others; it is its own issuer if by is nil.
func (h *senderHost) authority(name string, by *x509.Certificate, byKey crypto.Signer) (*x509.Certificate, crypto.Signer) {
	h.t.Helper()
	key := newECKey(h.t)
	c := &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	if by == nil {
		by = c
		byKey = key
	}
	made, err := x509.ParseCertificate(h.sign(c, by, byKey, key.Public()))
	if err != nil {
		h.t.Fatal(err)
	}
	return made, key
}

// sign issues a certificate, valid for an hour around now unless it says otherwise.
func (h *senderHost) sign(c, by *x509.Certificate, byKey crypto.Signer, public crypto.PublicKey) []byte {
	h.t.Helper()
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	if c.NotBefore.IsZero() {
		c.NotBefore = time.Now().Add(-100 * time.Hour)
	}
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(100 * time.Hour)
	}
	der, err := x509.CreateCertificate(rand.Reader, c, by, public, byKey)
	if err != nil {
		h.t.Fatal(err)
	}
	return der
}

// signing is a certificate that signs, with the name of its subject.
func (h *senderHost) signing(name string, change ...func(*x509.Certificate)) []byte {
	h.t.Helper()
	c := &x509.Certificate{Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}}
	for _, f := range change {
		f(c)
	}
	return h.sign(c, h.middle, h.middleKey, h.key.Public())
}

// pemFile is certificates as PEM.
func pemFile(all ...[]byte) (file []byte) {
	for _, der := range all {
		file = append(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return file
}
