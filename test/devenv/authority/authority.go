// Package authority gives tests a CA of their own, which issues certificates and signs tokens.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority is a CA of a test's own.
type Authority struct {
	t    testing.TB
	Cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
}

// New makes an authority whose files are in a folder of the test.
func New(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t, dir: t.TempDir()}
	a.Cert, a.key, _ = a.Issue("ca", 1)
	return a
}

// File returns the path of one of its files.
func (a *Authority) File(name string) string { return filepath.Join(a.dir, name) }

// Issue writes name.crt and name.key, which replace those of an earlier serial number.
func (a *Authority) Issue(name string, serial int64) (*x509.Certificate, *ecdsa.PrivateKey, tls.Certificate) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(serial),
		Subject:               pkix.Name{CommonName: name},
		IsCA:                  a.Cert == nil,
		BasicConstraintsValid: true,
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	parent := a.Cert
	signer := a.key
	if parent == nil {
		parent = template
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for ending, block := range map[string]*pem.Block{
		".crt": {Type: "CERTIFICATE", Bytes: der},
		".key": {Type: "PRIVATE KEY", Bytes: pkcs8},
	} {
		if err := os.WriteFile(a.File(name+ending), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return leaf, key, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// Sign returns a token that the authority has signed (RFC 7519, ES256).
func (a *Authority) Sign(claims string) string {
	a.t.Helper()
	part := func(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
	text := part([]byte(`{"alg":"ES256","kid":"ca"}`)) + "." + part([]byte(claims))
	hash := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, a.key, hash[:])
	if err != nil {
		a.t.Fatal(err)
	}
	return text + "." + part(append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...))
}

// Keys writes the public key with which brokers verify the tokens (RFC 7517), and returns the file.
func (a *Authority) Keys() string {
	a.t.Helper()
	point, err := a.key.PublicKey.Bytes() // 4, x and y
	if err != nil {
		a.t.Fatal(err)
	}
	part := base64.RawURLEncoding.EncodeToString
	text := fmt.Sprintf(`{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","use":"sig","kid":"ca","x":%q,"y":%q}]}`,
		part(point[1:33]), part(point[33:]))
	if err := os.WriteFile(a.File("keys.json"), []byte(text), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return a.File("keys.json")
}
