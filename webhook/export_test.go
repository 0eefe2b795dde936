package webhook

import (
	"time"

	"github.com/onlyonce/onlyonce/webhook/internal/certificates"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// NewShort is NewVerifier for secrets of any length: those of published vectors.
func NewShort(cfg Config) (*Verifier, error) { return newVerifier(&cfg, 0) }

// The parsers, for the fuzz targets.

func StandardSignatures(list string) ([]scheme.Signature, error) {
	found, err := standardSignatures("f", list)
	return found, refused(err)
}

func StripePairs(list string) (string, time.Time, []scheme.Signature, error) {
	written, at, found, err := timedPairs("f", list, pairNames{",", "t", "v1"}, scheme.HMACSHA256, scheme.Hex, time.Second)
	return written, at, found, refused(err)
}

func refused(err error) error {
	if err == nil {
		return nil
	}
	return refusal("test", err)
}

// AgeCertificates sets the clock by which a Verifier fetches certificates to d from now.
func AgeCertificates(v *Verifier, d time.Duration) {
	store(v).SetClock(func() time.Time { return time.Now().Add(d) })
}

// HoldCertificates does the same, and the clock stands still there.
func HoldCertificates(v *Verifier, d time.Duration) {
	at := time.Now().Add(d)
	store(v).SetClock(func() time.Time { return at })
}

// KnownCertificates returns how many certificates a Verifier keeps.
func KnownCertificates(v *Verifier) int { return store(v).Known() }

func store(v *Verifier) *certificates.Store {
	return v.scheme.Certificates.(*certificates.Store) //nolint:forcetypeassert // of PayPal and SNS
}
