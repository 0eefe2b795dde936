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

// AgeCertificates makes the certificates that a Verifier knows as old as they would be after d.
func AgeCertificates(v *Verifier, d time.Duration) {
	c := v.scheme.certificates
	c.lock.Lock()
	defer c.lock.Unlock()
	c.clock = func() time.Time { return time.Now().Add(d) }
}
