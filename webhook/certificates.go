package webhook

import (
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"net/url"
	"regexp"
	"slices"
	"sync"
	"time"
)

const (
	// certificateFor is how long a certificate is used before it is fetched again.
	certificateFor = 24 * time.Hour
	// failureFor is how long a failure is remembered, so that requests that name a certificate
	// without end do not fetch it without end.
	failureFor = 30 * time.Second
	// maxCertificates is how many are remembered, failures included.
	maxCertificates = 64
	// maxChain is how many certificates a file may hold.
	maxChain = 8
)

// certificates fetches, verifies and remembers the certificates with which a sender signs (W18). It
// is safe for concurrent use.
//
// A request names its certificate, and that name is not verified yet. So the name counts only if it
// is an address of the sender's (match), one fetch serves all requests that wait for it, failures
// are remembered, and fetches have a bound in each minute. Requests whose certificate is known
// never wait for any of that.
type certificates struct {
	fetch *fetcher
	// match reports whether an address is one of the sender's certificates.
	match func(*url.URL) bool
	// names returns the names that a certificate from a host may have.
	names func(host string) []string
	// roots are what chains must end in; nil: the system's.
	roots *x509.CertPool
	// issuers matches the hosts from which a missing issuer is fetched (RFC 5280 section 4.2.2.1).
	// It may come over plain HTTP, because it counts only if it leads to a root.
	issuers *regexp.Regexp

	clock func() time.Time
	budget

	lock  sync.Mutex
	known map[string]*certificate
}

// certificate is one that is being fetched, or was.
type certificate struct {
	done        chan struct{} // closed once the rest is set
	key         *rsa.PublicKey
	begin, end  time.Time // when the whole chain is valid
	err         error     // an *Error
	fetched     time.Time
	lastRequest time.Time

	// before is the good one that this one replaces, and which serves until done, or nil.
	before *certificate
}

// loaded reports whether it is not being fetched any more.
func (c *certificate) loaded() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

func (c *certificate) outdated(now time.Time) bool {
	if !c.loaded() {
		return false
	}
	keep := certificateFor
	if c.err != nil {
		keep = failureFor
	}
	return now.Sub(c.fetched) >= keep
}

// checkURL reports whether a request may name this address for its certificate. Everything of it
// that could lead elsewhere is refused.
func (c *certificates) checkURL(field, address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" || u.User != nil || u.Port() != "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || u.Opaque != "" || u.RawPath != "" ||
		u.String() != address || !c.match(u) {
		return nil, Malformed(field, "is not an address of the sender's certificates")
	}
	return u, nil
}

// keys returns the keys that may have made the signatures: those of the named certificate, if it is
// valid at a time.
func (c *certificates) keys(ctx context.Context, at time.Time, s Signed) ([]Key, error) {
	found, err := c.find(ctx, at, s.certificateURL)
	if err != nil {
		return nil, err
	}
	if at.Before(found.begin) || at.After(found.end) {
		return nil, &Error{Check: ErrSignature, Field: "certificate", Reason: "is not valid now"}
	}
	return []Key{{algorithm: RSASHA256, rsa: found.key}, {algorithm: RSASHA1, rsa: found.key}}, nil
}

// find returns a known certificate, or fetches it. While one is fetched again, the old one serves,
// so that only requests with a new certificate wait. The fetch does not end with the request that
// began it, because others may wait for it.
func (c *certificates) find(ctx context.Context, at time.Time, address *url.URL) (*certificate, error) {
	c.lock.Lock()
	now, name := c.clock(), address.String()
	found := c.known[name]
	if found == nil || found.outdated(now) {
		old := found
		if old != nil && old.err != nil {
			old = nil
		}
		if !c.take(now) {
			c.lock.Unlock()
			if old != nil {
				return old, nil
			}
			return nil, unavailable("too many certificates were asked for within a minute", nil)
		}
		found = &certificate{done: make(chan struct{}), before: old}
		if old != nil {
			old.before = nil
		}
		if c.known == nil {
			c.known = map[string]*certificate{}
		}
		delete(c.known, name)
		c.makeRoom()
		c.known[name] = found
		go c.load(context.WithoutCancel(ctx), found, old, at, now, address)
	}
	found.lastRequest = now
	old := found.before
	c.lock.Unlock()
	switch {
	case found.loaded():
		return found, found.err
	case old != nil:
		return old, nil
	}
	select {
	case <-found.done:
		return found, found.err
	case <-ctx.Done():
		return nil, unavailable("the certificate did not come in time", ctx.Err())
	}
}

// makeRoom forgets certificates until there is room for one: failures first, and then the one that
// no request has named for longest.
func (c *certificates) makeRoom() {
	for len(c.known) >= maxCertificates {
		var oldest string
		for name, one := range c.known {
			if other := c.known[oldest]; other == nil || one.goesBefore(other) {
				oldest = name
			}
		}
		delete(c.known, oldest)
	}
}

// goesBefore reports whether it makes room rather than another one.
func (c *certificate) goesBefore(other *certificate) bool {
	failed, otherFailed := c.loaded() && c.err != nil, other.loaded() && other.err != nil
	return failed && !otherFailed || failed == otherFailed && c.lastRequest.Before(other.lastRequest)
}

// load fetches and verifies a certificate. If that cannot be done now, the old one, if there is
// one, is used for another while: its own end is compared with each request.
func (c *certificates) load(ctx context.Context, e, old *certificate, at, now time.Time, address *url.URL) {
	defer close(e.done)
	e.fetched = now
	if e.err = c.loadInto(ctx, e, at, address); old != nil && errors.Is(e.err, ErrUnavailable) {
		e.key, e.begin, e.end, e.err = old.key, old.begin, old.end, nil
		e.fetched = e.fetched.Add(failureFor - certificateFor)
	}
}

func (c *certificates) loadInto(ctx context.Context, e *certificate, at time.Time, address *url.URL) error {
	file, server, err := c.fetch.get(ctx, address)
	if err != nil {
		return unavailable("the certificate could not be fetched", err)
	}
	leaf, more, err := parseCertificates(file)
	if err != nil {
		return &Error{Check: ErrSignature, Field: "certificate", Reason: err.Error()}
	}
	if err := c.checkLeaf(leaf, address.Hostname()); err != nil {
		return err
	}
	e.key, _ = leaf.PublicKey.(*rsa.PublicKey)
	e.begin, e.end, err = c.chain(ctx, leaf, slices.Concat(more, server), at)
	return err
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

// checkLeaf checks whose certificate it is, and its key.
func (c *certificates) checkLeaf(leaf *x509.Certificate, host string) error {
	bad := func(reason string) error { return &Error{Check: ErrSignature, Field: "certificate", Reason: reason} }
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
	if !slices.ContainsFunc(c.names(host), func(name string) bool { return slices.Contains(has, name) }) {
		return bad("has another name than the sender's")
	}
	return nil
}

// chain returns when a chain from the certificate to a root is valid. If an issuer is missing, it
// is fetched from where the certificate says, once.
func (c *certificates) chain(ctx context.Context, leaf *x509.Certificate, more []*x509.Certificate, at time.Time) (begin, end time.Time, err error) {
	between := x509.NewCertPool()
	for _, one := range more {
		between.AddCert(one)
	}
	options := x509.VerifyOptions{Roots: c.roots, Intermediates: between, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
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
		return begin, end, &Error{Check: ErrSignature, Field: "certificate", Reason: "has no chain to a root that is valid now", Cause: err}
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
func (c *certificates) issuer(ctx context.Context, leaf *x509.Certificate) (*x509.Certificate, error) {
	for _, address := range leaf.IssuingCertificateURL {
		u, err := url.Parse(address)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.Port() != "" || !c.issuers.MatchString(u.Hostname()) {
			continue
		}
		file, _, err := c.fetch.get(ctx, u)
		if err != nil {
			return nil, unavailable("the certificate's issuer could not be fetched", err)
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

// rsaSignature decodes a signature by a certificate's key.
func rsaSignature(field, text string, a Algorithm) (Signature, error) {
	value, canonical := Base64.Decode(text)
	if !canonical || len(text) > base64.StdEncoding.EncodedLen(1024) {
		return Signature{}, Malformed(field, "is not in the canonical encoding")
	}
	return Signature{Algorithm: a, Value: value}, nil
}
