package inbox

import "github.com/onlyonce/onlyonce/dedupe"

// Compared returns the fingerprint of the part of a message that its program has chosen to be
// compared. An empty part compares nothing: the id decides alone.
func Compared(part []byte) dedupe.Fingerprint {
	if len(part) == 0 {
		return dedupe.NoFingerprint
	}
	return dedupe.FingerprintOf(part)
}
