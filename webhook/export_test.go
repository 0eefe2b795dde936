package webhook

import "time"

// NewShort is NewVerifier for secrets of any length: those of published vectors.
func NewShort(cfg VerifierConfig) (*Verifier, error) { return newVerifier(cfg, 0) }

// The parsers, for the fuzz targets.

func StandardSignatures(list string) ([]Signature, error) { return standardSignatures("f", list) }

func StripePairs(list string) (string, time.Time, []Signature, error) {
	return timedPairs("f", list, "t", "v1", HMACSHA256, Hex, time.Second)
}

func UnixTime(s string, unit time.Duration) (time.Time, error) { return unixTime("f", s, unit) }

func Members(body []byte, names ...string) (texts map[string]string, object bool) {
	found := jsonMembers(body, names...)
	texts = map[string]string{}
	for name, raw := range found {
		texts[name] = jsonString(raw)
	}
	return texts, found != nil
}

// AgeCertificates sets the clock by which a Verifier fetches certificates to d from now.
func AgeCertificates(v *Verifier, d time.Duration) {
	setClock(v, func() time.Time { return time.Now().Add(d) })
}

// HoldCertificates does the same, and the clock stands still there.
func HoldCertificates(v *Verifier, d time.Duration) {
	at := time.Now().Add(d)
	setClock(v, func() time.Time { return at })
}

func setClock(v *Verifier, clock func() time.Time) {
	c := v.scheme.certificates
	c.lock.Lock()
	defer c.lock.Unlock()
	c.clock = clock
}

// KnownCertificates returns how many certificates a Verifier keeps.
func KnownCertificates(v *Verifier) int {
	c := v.scheme.certificates
	c.lock.Lock()
	defer c.lock.Unlock()
	return len(c.known)
}
