package webhook

import (
	"errors"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/webhook/internal/received"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// Standard is Standard Webhooks 1.0 (https://www.standardwebhooks.com), which Svix and many others
// send.
//
// It takes two kinds of secret, which may be configured together: for v1 (HMAC-SHA256) a secret
// "whsec_" and base64 of 24 to 64 bytes, and for v1a (Ed25519) a public key "whpk_" and base64. In
// front of them may be "v1," or "v1a,", as Supabase shows its secrets. The headers are webhook-id,
// webhook-timestamp and webhook-signature, or Svix's svix-id and so on. The time may be 5 minutes
// off, both ways. Type is the body's member type, if it has one.
//
// An id is 1 to 255 visible ASCII characters without a dot. The dot ends the id in the signed
// bytes: if an id could contain one, the bytes of one signature could be read as another id, time
// and body. The specification's libraries accept such ids, and ids with spaces; this package
// refuses both as malformed.
type Standard struct{}

// The ends of a family's headers.
const (
	standardID        = "Id"
	standardTime      = "Timestamp"
	standardSignature = "Signature"
)

// Scheme implements Provider.
func (Standard) Scheme() (*scheme.Scheme, error) {
	return &scheme.Scheme{
		Name: "standard", Past: 5 * time.Minute, Future: 5 * time.Minute, IDSigned: true,
		// the specification's example of a schedule
		Answer: 15 * time.Second, Redeliveries: 75*time.Hour + 35*time.Minute,
		SignatureHeaders: []string{"Webhook-" + standardSignature, "Svix-" + standardSignature},
		Key:              standardKey,
		Read:             readStandard,
		Event: func(f scheme.Fields, e *scheme.Event) (err error) {
			e.Type = received.String(received.Members(e.Body, "type")["type"])
			e.ID, err = f.ID(standardFamily(f) + standardID)
			return err
		},
	}, nil
}

// standardKey parses a secret as senders show it: bare, or after the version of its signatures, as
// Supabase does.
func standardKey(secret string) (scheme.Key, error) {
	if strings.Contains(secret, "|") {
		return scheme.Key{}, errors.New(`has a "|": list each secret by itself in Secrets`)
	}
	for _, version := range []string{"v1,whsec_", "v1a,whpk_", "v1a,whsk_"} {
		if strings.HasPrefix(secret, version) {
			_, secret, _ = strings.Cut(secret, ",")
		}
	}
	if rest, ok := strings.CutPrefix(secret, "whpk_"); ok {
		public, ok := scheme.Base64.Decode(rest)
		if !ok {
			return scheme.Key{}, errors.New(`must be "whpk_" and the base64 of a public key`)
		}
		return scheme.PublicKey(public)
	}
	if strings.HasPrefix(secret, "whsk_") {
		return scheme.Key{}, errors.New(
			`is the sender's private key: configure the public one, which begins with "whpk_"`)
	}
	text := strings.TrimPrefix(secret, "whsec_")
	if short := len(text) % 4; short != 0 { // some senders leave the padding out
		text += strings.Repeat("=", 4-short)
	}
	raw, ok := scheme.Base64.Decode(text)
	if !ok || len(raw) < 24 || len(raw) > 64 {
		return scheme.Key{}, errors.New(`must be "whsec_" and the base64 of 24 to 64 bytes`)
	}
	return scheme.MACKey(scheme.HMACSHA256, raw)
}

func standardFamily(f scheme.Fields) string {
	for _, name := range []string{standardID, standardTime, standardSignature} {
		if f.Has("Svix-" + name) {
			return "Svix-"
		}
	}
	return "Webhook-"
}

func readStandard(f scheme.Fields) (scheme.Signed, error) {
	family := standardFamily(f)
	if family == "Svix-" {
		// A request with both sets of headers has two of each value, and readers could disagree
		// about which one counts.
		for _, name := range []string{standardID, standardTime, standardSignature} {
			if f.Has("Webhook-" + name) {
				return scheme.Signed{}, scheme.Malformed("Webhook-"+name,
					"must not be sent together with Svix's headers")
			}
		}
	}
	id, err := f.ID(family + standardID)
	if err != nil {
		return scheme.Signed{}, err
	}
	// Otherwise "a.1" at time 2 would have the same signature as "a" at time 1 with a body that
	// begins with "2.".
	if strings.Contains(id, ".") {
		return scheme.Signed{}, scheme.Malformed(family+standardID, "has a dot, which delimits the signed text")
	}
	written, at, err := f.Time(family+standardTime, time.Second)
	if err != nil {
		return scheme.Signed{}, err
	}
	list, err := f.One(family + standardSignature)
	if err != nil {
		return scheme.Signed{}, err
	}
	signatures, err := standardSignatures(family+standardSignature, list)
	return scheme.Signed{Before: id + "." + written + ".", Signatures: signatures, Time: at}, err
}

// standardSignatures parses "v1,base64 v1a,base64". It skips unknown versions (W4).
func standardSignatures(field, list string) ([]scheme.Signature, error) {
	if strings.Count(list, " ")+1 > received.MaxSignatures {
		return nil, scheme.Malformed(field, "has more than 16 signatures")
	}
	g := signatureList{field: field}
	for signature := range strings.SplitSeq(list, " ") {
		version, value, ok := strings.Cut(signature, ",")
		switch {
		case !ok || !isWord(version) || strings.Contains(value, ","):
			return nil, scheme.Malformed(field, "is not a list of version,signature")
		case version == "v1":
			g.add(scheme.HMACSHA256, scheme.Base64, value)
		case version == "v1a":
			g.add(scheme.Ed25519, scheme.Base64, value)
		}
	}
	return g.signatures()
}
