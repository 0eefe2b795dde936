// Package paypal verifies webhooks of PayPal.
//
// Numbers in brackets, for example (W18), name rules of docs/rules: what each prevents, and
// the tests that fail without it.
package paypal

import (
	"crypto/x509"
	"fmt"
	"hash/crc32"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/webhook/internal/certificates"
	"github.com/onlyonce/onlyonce/webhook/internal/received"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// Provider is https://developer.paypal.com/api/rest/webhooks/rest/: a signature over the
// transmission's id and time, the webhook's id and the CRC-32 of the body, with the key of a
// certificate whose address is in the request. There are no secrets. ID and Type are the body's
// members id and event_type.
//
// A CRC-32 is no protection: for a recorded transmission anyone can make another body with the same
// one. So webhook.Event.IDSigned is false. A webhook.Endpoint applies one body for each
// transmission, and sets others aside (W7), for as long as the transmission's time counts. It
// cannot notice an attacker who holds a transmission back and sends another body first: read the
// resource from PayPal before you act on an amount.
//
// PayPal delivers for 3 days and does not say whether a repeated delivery has a new time, so a time
// up to 3 days ago counts. Set webhook.Config.Tolerance to less if you know better.
//
// The certificate must be RSA, valid at the time, have the name
// messageverificationcerts.paypal.com, and lead to a root. The Verifier fetches it by
// [scheme.Fetch] and rule W18, and again every 24 hours.
type Provider struct {
	// WebhookID is the webhook's id in PayPal's dashboard: letters and digits, at most 50. It keeps
	// out the transmissions of other applications. Required.
	WebhookID string

	// Sandbox accepts the sandbox's transmissions in place of the live ones. Defaults to false.
	Sandbox bool

	// CertURLs are the addresses of the certificates with which PayPal signs now: the header
	// Paypal-Cert-Url, which each event keeps. The Verifier fetches an unlisted certificate when
	// the first transmission names it, but then strangers can delay that with made-up addresses
	// (W18). At most 64. Defaults to none.
	CertURLs []string

	// Roots are the authorities that certificates must lead to. Defaults to the system's.
	Roots *x509.CertPool

	// Fetch configures the fetching of certificates. Defaults to its own defaults.
	Fetch scheme.Fetch
}

var (
	webhookID = regexp.MustCompile(`^[A-Za-z0-9]{1,50}$`)
	certPath  = regexp.MustCompile(`^/v1/notifications/certs/[A-Za-z0-9-]{1,100}$`)
	issuers   = regexp.MustCompile(`^cacerts\.digicert\.com$`)
)

// Scheme implements webhook.Provider.
func (p Provider) Scheme() (*scheme.Scheme, error) {
	if !webhookID.MatchString(p.WebhookID) {
		return nil, fmt.Errorf("paypal.Provider.WebhookID: %q must be the webhook's id, 1 to 50 letters and digits",
			p.WebhookID)
	}
	fetch, err := certificates.NewFetcher(p.Fetch)
	if err != nil {
		return nil, fmt.Errorf("paypal.Provider.%w", err)
	}
	domain := "paypal.com"
	if p.Sandbox {
		domain = "sandbox.paypal.com"
	}
	c, err := certificates.New(certificates.Config{
		Fetch: fetch, Roots: p.Roots, Issuers: issuers,
		Match: func(u *url.URL) bool {
			return (u.Host == "api."+domain || u.Host == "api-m."+domain) && certPath.MatchString(u.Path)
		},
		Names: func(string) []string { return []string{"messageverificationcerts." + domain} },
	}, p.CertURLs)
	if err != nil {
		return nil, fmt.Errorf("paypal.Provider.CertURLs: %w", err)
	}
	return &scheme.Scheme{
		Name: "paypal", Names: func(string, []byte) (by string, named bool) { return "", true }, // by the id
		Past: 72*time.Hour + 5*time.Minute, Future: 5 * time.Minute,
		Redeliveries:     72 * time.Hour,
		SignatureHeaders: []string{"Paypal-Transmission-Sig"},
		KeepHeaders:      []string{"Paypal-Transmission-Id", "Paypal-Cert-Url"},
		Certificates:     c,
		Read:             func(f scheme.Fields) (scheme.Signed, error) { return p.read(f, c) },
		ReadBody: func(_ scheme.Fields, body []byte, s *scheme.Signed) error {
			s.Messages = [][]byte{fmt.Appendf(nil, "%s%d", s.Before, crc32.ChecksumIEEE(body))}
			return nil
		},
		Event: func(_ scheme.Fields, e *scheme.Event) (err error) {
			found := received.Members(e.Body, "id", "event_type")
			e.Type = received.String(found["event_type"])
			e.ID, err = received.IDMember(found, "id")
			return err
		},
	}, nil
}

// read reads the headers. Its Before is what is signed before the body's CRC-32.
func (p Provider) read(f scheme.Fields, c *certificates.Store) (s scheme.Signed, err error) {
	const (
		idHeader   = "Paypal-Transmission-Id"
		timeHeader = "Paypal-Transmission-Time"
		algorithm  = "Paypal-Auth-Algo"
		address    = "Paypal-Cert-Url"
		signature  = "Paypal-Transmission-Sig"
	)
	id, err := f.ID(idHeader)
	if err != nil {
		return scheme.Signed{}, err
	}
	if strings.Contains(id, "|") {
		return scheme.Signed{}, scheme.Malformed(idHeader, "has a character that delimits the signed text")
	}
	written, err := f.One(timeHeader)
	if err != nil {
		return scheme.Signed{}, err
	}
	if s.Time, err = time.Parse(time.RFC3339, written); err != nil {
		return scheme.Signed{}, scheme.Malformed(timeHeader, "is not a time of RFC 3339")
	}
	if name, err := f.One(algorithm); err != nil {
		return scheme.Signed{}, err
	} else if name != "SHA256withRSA" {
		return scheme.Signed{}, scheme.Malformed(algorithm, "is not SHA256withRSA")
	}
	where, err := f.One(address)
	if err != nil {
		return scheme.Signed{}, err
	}
	if s.Certificate, err = c.CheckURL(address, where); err != nil {
		return scheme.Signed{}, err
	}
	text, err := f.One(signature)
	if err != nil {
		return scheme.Signed{}, err
	}
	one, err := certificates.Signature(signature, text, scheme.RSASHA256)
	s.Before = id + "|" + written + "|" + p.WebhookID + "|"
	s.Signatures = []scheme.Signature{one}
	return s, err
}
