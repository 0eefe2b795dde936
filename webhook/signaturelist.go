package webhook

import (
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/webhook/internal/received"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// eachPair parses a list of name=value, for example Stripe's. It is bounded, and each member must
// be a pair.
func eachPair(field, list, separator string, each func(name, value string) error) error {
	if strings.Count(list, separator) > received.MaxSignatures { // one more than the signatures: the time
		return scheme.Malformed(field, "has more than 16 signatures")
	}
	for member := range strings.SplitSeq(list, separator) {
		name, value, ok := strings.Cut(member, "=")
		if !ok || !isWord(name) {
			return scheme.Malformed(field, "is not a list of name=value")
		}
		if err := each(name, value); err != nil {
			return err
		}
	}
	return nil
}

// signatureList collects the signatures of a list. If one has a known version but cannot be
// decoded, it is skipped, as the providers' own libraries do. It is an error only if there is no
// other.
type signatureList struct {
	field       string
	found       []scheme.Signature
	undecodable bool
}

func (g *signatureList) add(a scheme.Algorithm, e scheme.Encoding, text string) {
	value, canonical := e.Decode(text)
	if !canonical || len(value) != a.Size() {
		g.undecodable = true
		return
	}
	g.found = append(g.found, scheme.Signature{Algorithm: a, Value: value})
}

func (g *signatureList) signatures() ([]scheme.Signature, error) {
	if len(g.found) == 0 && g.undecodable {
		return nil, scheme.Malformed(g.field, "has no signature in the canonical encoding")
	}
	return g.found, nil
}

// pairNames says what the members of a list are.
type pairNames struct {
	separator       string
	time, signature string // if time is empty, there is no time
}

// timedPairs parses a list of pairs with exactly one time, and signatures. It skips other names
// (W4).
func timedPairs(
	field, list string,
	names pairNames,
	a scheme.Algorithm,
	enc scheme.Encoding,
	unit time.Duration,
) (written string, at time.Time, found []scheme.Signature, err error) {
	g := signatureList{field: field}
	err = eachPair(field, list, names.separator, func(name, value string) (err error) {
		switch name {
		case names.time:
			if written != "" {
				return scheme.Malformed(field, "has more than one time")
			}
			written = value
			at, err = received.UnixTime(field, value, unit)
			return err
		case names.signature:
			g.add(a, enc, value)
		}
		return nil
	})
	if err == nil && written == "" && names.time != "" {
		err = scheme.Malformed(field, "has no time")
	}
	if err == nil {
		found, err = g.signatures()
	}
	if err != nil {
		return "", time.Time{}, nil, err
	}
	return written, at, found, nil
}

// isWord reports whether s can be a name or a version. It rejects lists that a proxy has joined out
// of several lines, with a comma and a space.
func isWord(s string) bool {
	return s != "" && strings.Trim(s, "_-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") == ""
}
