// Package certificates fetches, verifies and keeps the certificates with which senders sign
// webhooks.
package certificates

import (
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/webhook/internal/received"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

const (
	// certificateFor is how long a certificate is used before it is fetched again.
	certificateFor = 24 * time.Hour
	// fetchPause is the least time from the end of a fetch that failed to the next one. All
	// addresses that are unknown have one fetch at a time, and this pause, together.
	fetchPause = 2 * time.Second
	// maxCertificates is how many good certificates are kept besides those of the configuration.
	maxCertificates = 64
	// maxConfigured is how many addresses a configuration may list.
	maxConfigured = 64
	// maxChain is how many certificates a file may hold.
	maxChain = 8
)

// Store fetches, verifies and keeps the certificates with which a sender signs (W18). It is
// safe for concurrent use.
//
// A request names its certificate, and that name is not verified yet. So the name counts only if it
// is an address of the sender's (Match), and one fetch serves all requests that wait for it. The
// addresses of the configuration, and those whose certificate was good once, are fetched whenever
// that is due. All others together get one fetch at a time, so that strangers who make up addresses
// cannot have more, and take nothing from the known ones.
type Store struct {
	Config

	clock func() time.Time

	lock  sync.Mutex
	known map[string]*certificate // by address: of the configuration, or good once
	other *certificate            // the unknown one that was fetched last, or nil
}

// Config describes a sender's certificates.
type Config struct {
	Fetch *Fetcher
	// Match reports whether an address is one of the sender's certificates.
	Match func(*url.URL) bool
	// Names returns the names that a certificate from a host may have.
	Names func(host string) []string
	// Roots are what chains must end in; nil: the system's.
	Roots *x509.CertPool
	// Issuers matches the hosts from which a missing issuer is fetched (RFC 5280 section 4.2.2.1).
	// It may come over plain HTTP, because it counts only if it leads to a root.
	Issuers *regexp.Regexp
}

// certificate is one that is being fetched, or was. Store.lock guards it.
type certificate struct {
	validity
	address    string
	configured bool
	fetching   chan struct{} // closed at the end of its fetch; nil if there is none
	err        error         // a Refusal, of the last fetch; nil while an older result serves
	due        time.Time     // of the next fetch
	lastNamed  time.Time
}

// validity is a certificate's key, and when the whole chain is valid. The key is nil until a fetch
// has brought a good certificate.
type validity struct {
	key        *rsa.PublicKey
	begin, end time.Time
}

// New returns a Store to which addresses are known before any request names them.
func New(cfg Config, addresses []string) (*Store, error) {
	c := &Store{Config: cfg, clock: time.Now}
	if len(addresses) > maxConfigured {
		return nil, fmt.Errorf("must list at most %d addresses, has %d", maxConfigured, len(addresses))
	}
	c.known = map[string]*certificate{}
	for _, address := range addresses {
		if _, err := c.CheckURL("", address); err != nil {
			return nil, fmt.Errorf("%q is not an address of the sender's certificates", address)
		}
		c.known[address] = &certificate{address: address, configured: true}
	}
	return c, nil
}

// CheckURL reports whether a request may name this address for its certificate. Everything of it
// that could lead elsewhere is refused (W18).
func (c *Store) CheckURL(field, address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil || u.String() != address {
		return nil, received.Malformed(field, "is not an address of the sender's certificates")
	}
	if !plain(u) || !c.Match(u) {
		return nil, received.Malformed(field, "is not an address of the sender's certificates")
	}
	return u, nil
}

// plain reports whether an address is https, a host and a path, and nothing else.
func plain(u *url.URL) bool {
	return *u == url.URL{Scheme: "https", Host: u.Hostname(), Path: u.Path}
}

// Keys returns the keys that may have made the signatures: those of the named certificate, if it is
// valid at a time.
func (c *Store) Keys(ctx context.Context, at time.Time, s scheme.Signed) ([]scheme.Key, error) {
	found, err := c.find(ctx, at, s.Certificate)
	if err != nil {
		return nil, err
	}
	if at.Before(found.begin) || at.After(found.end) {
		return nil, received.Forged("certificate", "is not valid now", nil)
	}
	return []scheme.Key{scheme.RSAKey(scheme.RSASHA256, found.key), scheme.RSAKey(scheme.RSASHA1, found.key)}, nil
}

// find returns a known certificate, or fetches it. While one is fetched again, the old one serves,
// so that only requests with a new certificate wait. The fetch does not end with the request that
// began it, because others may wait for it.
func (c *Store) find(ctx context.Context, at time.Time, address *url.URL) (validity, error) {
	c.lock.Lock()
	now := c.clock()
	name := address.String()
	one := c.known[name]
	if one == nil {
		if c.other == nil || c.other.address != name {
			if c.other != nil && c.other.busy(now) {
				c.lock.Unlock()
				return validity{}, received.Unavailable("its certificate is not known, and another unknown one "+
					"was just fetched: CertURLs can name it", nil)
			}
			c.other = &certificate{address: name}
		}
		one = c.other
	}
	one.lastNamed = now
	if one.fetching == nil && !now.Before(one.due) {
		one.fetching = make(chan struct{})
		go c.load(context.WithoutCancel(ctx), one, at, address)
	}
	found := one.validity
	err := one.err
	fetching := one.fetching
	c.lock.Unlock()
	if fetching == nil || found.key != nil {
		return found, err
	}
	select {
	case <-fetching:
	case <-ctx.Done():
		return validity{}, received.Unavailable("the certificate did not come in time", ctx.Err())
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	return one.validity, one.err
}

// busy reports whether the certificate is being fetched, or was a short time ago.
func (one *certificate) busy(now time.Time) bool { return one.fetching != nil || now.Before(one.due) }

// load fetches and verifies a certificate. If that cannot be done now, the old one, if there is
// one, is used on: its own end is compared with each request.
func (c *Store) load(ctx context.Context, one *certificate, at time.Time, address *url.URL) {
	found, err := c.fetchValid(ctx, at, address)
	c.lock.Lock()
	defer c.lock.Unlock()
	now := c.clock()
	close(one.fetching)
	one.fetching = nil
	one.due = now.Add(fetchPause)
	switch {
	case err == nil:
		one.validity = found
		one.err = nil
		one.due = now.Add(certificateFor)
		c.keep(one)
	case one.key == nil || !unavailable(err):
		one.validity = validity{}
		one.err = err
	}
}

// unavailable reports whether a fetch failed, and not its result.
func unavailable(err error) bool {
	var r *received.Refusal
	return errors.As(err, &r) && r.Check == received.IsUnavailable
}

// keep makes a good certificate a known one. If there are too many, it forgets the one that no
// request has named for longest.
func (c *Store) keep(one *certificate) {
	if c.known[one.address] == nil {
		c.other = nil
	}
	c.known[one.address] = one
	var oldest *certificate
	learned := 0
	for _, k := range c.known {
		if k.configured {
			continue
		}
		learned++
		if oldest == nil || k.lastNamed.Before(oldest.lastNamed) {
			oldest = k
		}
	}
	if learned > maxCertificates {
		delete(c.known, oldest.address)
	}
}

// fetchValid fetches a certificate and verifies it.
func (c *Store) fetchValid(ctx context.Context, at time.Time, address *url.URL) (v validity, err error) {
	file, server, err := c.Fetch.Get(ctx, address)
	if err != nil {
		return v, received.Unavailable("the certificate could not be fetched", err)
	}
	leaf, more, err := parseCertificates(file)
	if err != nil {
		return v, received.Forged("certificate", err.Error(), nil)
	}
	if err := c.checkLeaf(leaf, address.Hostname()); err != nil {
		return v, err
	}
	v.key, _ = leaf.PublicKey.(*rsa.PublicKey)
	v.begin, v.end, err = c.chain(ctx, leaf, slices.Concat(more, server), at)
	return v, err
}

// parseCertificates parses a PEM file: the certificate that signs, and those that lead to a root.
func parseCertificates(file []byte) (leaf *x509.Certificate, more []*x509.Certificate, err error) {
	var all []*x509.Certificate
	for {
		var block *pem.Block
		if block, file = pem.Decode(file); block == nil {
			break
		}
		one, err := x509.ParseCertificate(block.Bytes)
		if err != nil || block.Type != "CERTIFICATE" {
			return nil, nil, errors.New("is not a PEM file of certificates")
		}
		if all = append(all, one); len(all) > maxChain {
			return nil, nil, errors.New("is in a file with more than 8 certificates")
		}
	}
	if len(all) == 0 {
		return nil, nil, errors.New("is not a PEM file of certificates")
	}
	return all[0], all[1:], nil
}

// checkLeaf checks whose certificate it is, and its key (W18).
func (c *Store) checkLeaf(leaf *x509.Certificate, host string) error {
	bad := func(reason string) error { return received.Forged("certificate", reason, nil) }
	key, ok := leaf.PublicKey.(*rsa.PublicKey)
	switch {
	case !ok || key.N.BitLen() < 2048 || key.N.BitLen() > 8192:
		return bad("does not have an RSA key of 2048 to 8192 bits")
	case leaf.IsCA:
		return bad("is an authority's, and does not sign messages")
	}
	has := slices.Clone(leaf.DNSNames)
	if len(has) == 0 {
		has = []string{leaf.Subject.CommonName}
	}
	if !slices.ContainsFunc(c.Names(host), func(name string) bool { return slices.Contains(has, name) }) {
		return bad("has another name than the sender's")
	}
	return nil
}

// chain returns when a chain from the certificate to a root is valid. If an issuer is missing, it
// is fetched from where the certificate says, once.
func (c *Store) chain(
	ctx context.Context,
	leaf *x509.Certificate,
	more []*x509.Certificate,
	at time.Time,
) (begin, end time.Time, err error) {
	between := x509.NewCertPool()
	for _, one := range more {
		between.AddCert(one)
	}
	options := x509.VerifyOptions{
		Roots:         c.Roots,
		Intermediates: between,
		CurrentTime:   at,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	}
	chains, err := leaf.Verify(options)
	if errors.As(err, &x509.UnknownAuthorityError{}) {
		issuer, fetchErr := c.issuer(ctx, leaf)
		if fetchErr != nil {
			return begin, end, fetchErr
		}
		if issuer != nil {
			between.AddCert(issuer)
			chains, err = leaf.Verify(options)
		}
	}
	if err != nil {
		return begin, end, received.Forged("certificate", "has no chain to a root that is valid now", err)
	}
	for i, one := range chains[0] {
		if i == 0 || one.NotBefore.After(begin) {
			begin = one.NotBefore
		}
		if i == 0 || one.NotAfter.Before(end) {
			end = one.NotAfter
		}
	}
	return begin, end, nil
}

// issuer fetches the certificate's issuer, or returns nil if the certificate does not say where it
// is, or names a host that is not one of the sender's authorities.
func (c *Store) issuer(ctx context.Context, leaf *x509.Certificate) (*x509.Certificate, error) {
	for _, address := range leaf.IssuingCertificateURL {
		u, err := url.Parse(address)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" {
			continue
		}
		if u.User != nil || u.Port() != "" || !c.Issuers.MatchString(u.Hostname()) {
			continue
		}
		file, _, err := c.Fetch.Get(ctx, u)
		if err != nil {
			return nil, received.Unavailable("the certificate's issuer could not be fetched", err)
		}
		if one, err := x509.ParseCertificate(file); err == nil {
			return one, nil
		}
		if one, _, err := parseCertificates(file); err == nil {
			return one, nil
		}
	}
	return nil, nil
}

// Signature decodes a signature by a certificate's key.
func Signature(field, text string, a scheme.Algorithm) (scheme.Signature, error) {
	value, canonical := scheme.Base64.Decode(text)
	if !canonical || len(text) > base64.StdEncoding.EncodedLen(1024) {
		return scheme.Signature{}, received.Malformed(field, "is not in the canonical encoding")
	}
	return scheme.Signature{Algorithm: a, Value: value}, nil
}

// SetClock sets the clock by which certificates are fetched, for tests.
func (c *Store) SetClock(clock func() time.Time) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.clock = clock
}

// Known returns how many certificates are kept, for tests.
func (c *Store) Known() int {
	c.lock.Lock()
	defer c.lock.Unlock()
	return len(c.known)
}
