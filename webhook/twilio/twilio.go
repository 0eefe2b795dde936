// Package twilio verifies webhooks of Twilio.
package twilio

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"maps"
	"mime"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/webhook/internal/received"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// Provider is https://www.twilio.com/docs/usage/webhooks/webhooks-security: X-Twilio-Signature, an
// HMAC with SHA-1 over the endpoint's public URL and the parameters of the form. The secret is the
// account's auth token, or that of a SharedKey: then X-Twilio-Webhooks-Signature-Settings may name
// HMAC_SHA256 as the algorithm. For a body other than a form, for example JSON, Twilio adds its
// SHA-256 to the URL as the parameter bodySHA256.
//
// A query counts as it came, and also with its apostrophes escaped, or decoded and encoded anew,
// because Twilio's products differ in what they sign. Twilio's own libraries try the same.
//
// Twilio does not sign an id. A message's form has its MessageSid, and a call's progress its
// CallSid and SequenceNumber: such a body names itself, ID is a hash of the signed bytes, and each
// delivery of the same parameters is a copy. Others, for example a step of TwiML that is taken
// again, get an id for each delivery: see webhook.Config.SameBodies. Type is empty. Twilio signs no
// time: a recorded request stays valid forever. The signed bytes do not delimit names from values,
// so an attacker who has recorded a request could send the same characters as other parameters. So
// webhook.Event.IDSigned is false: one body is handled for each text that is signed, and others are
// set aside (W7), within webhook.Config.BodyWindow.
//
// Events do not contain the query's parameters: put those that the handler needs into the form, or
// into the URL's path. An answer's body is empty, so this is for status callbacks and messages, not
// for calls that expect TwiML.
type Provider struct {
	// URL is the public URL that Twilio has for this endpoint, for example
	// "https://hooks.example.com/twilio": https or http, a host, and a path. It is configuration
	// because the request itself does not contain it: a proxy changes scheme, host and port, and a
	// sender could choose them. It must not have a query, which comes from each request. Like
	// Twilio's own libraries, the Verifier tries the URL with its port and without. Required.
	URL string
}

// Scheme implements webhook.Provider.
func (t Provider) Scheme() (*scheme.Scheme, error) {
	bases, err := t.bases()
	if err != nil {
		return nil, err
	}
	const header, settings = "X-Twilio-Signature", "X-Twilio-Webhooks-Signature-Settings"
	return &scheme.Scheme{
		Name: "twilio", Names: names,
		Answer:           15 * time.Second,
		SignatureHeaders: []string{header},
		Keys:             keys,
		Read: func(f scheme.Fields) (scheme.Signed, error) {
			if _, err := f.Query(); err != nil {
				return scheme.Signed{}, err
			}
			a, err := algorithm(f, settings)
			if err != nil {
				return scheme.Signed{}, err
			}
			s, err := f.Signature(header, "", a, scheme.Base64)
			return scheme.Signed{Signatures: []scheme.Signature{s}}, err
		},
		ReadBody: func(f scheme.Fields, body []byte, s *scheme.Signed) error {
			query, form, err := signedText(f, body)
			for _, base := range bases {
				for _, written := range writings(query) {
					s.Messages = append(s.Messages, slices.Concat([]byte(base), []byte(written), form))
				}
			}
			return err
		},
		Event: func(f scheme.Fields, e *scheme.Event) error {
			query, form, err := signedText(f, e.Body)
			e.Content = append([]byte(encodedAnew(query)), form...)
			return err
		},
	}, nil
}

// names reports whether a form names itself.
func names(_ string, body []byte) (by string, named bool) {
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return "", false
	}
	return "", form.Get("MessageSid") != "" || form.Get("CallSid") != "" && form.Get("SequenceNumber") != ""
}

// keys returns the keys of a secret: the header with the settings says which of them made a
// signature.
func keys(secret string) (all []scheme.Key, err error) {
	for _, a := range []scheme.Algorithm{scheme.HMACSHA1, scheme.HMACSHA256} {
		key, err := scheme.RawKey(a)(secret)
		if err != nil {
			return nil, err
		}
		all = append(all, key)
	}
	return all, nil
}

// algorithm returns the algorithm of the signature: the one that the settings name, for example
// "key=webhooks_sharedkey_1,algorithm=HMAC_SHA256", and otherwise SHA-1.
func algorithm(f scheme.Fields, settings string) (scheme.Algorithm, error) {
	if !f.Has(settings) {
		return scheme.HMACSHA1, nil
	}
	list, err := f.One(settings)
	if err != nil {
		return 0, err
	}
	for part := range strings.SplitSeq(list, ",") {
		name, value, _ := strings.Cut(part, "=")
		if strings.TrimSpace(name) != "algorithm" {
			continue
		}
		switch strings.TrimSpace(value) {
		case "HMAC_SHA1":
			return scheme.HMACSHA1, nil
		case "HMAC_SHA256":
			return scheme.HMACSHA256, nil
		}
		return 0, scheme.Malformed(settings, "names an algorithm that is neither HMAC_SHA1 nor HMAC_SHA256")
	}
	return scheme.HMACSHA1, nil
}

// escaped is what browsers' URLs escape in a query.
var escaped = strings.NewReplacer("'", "%27", `"`, "%22", "<", "%3C", ">", "%3E")

// writings returns the query as it came and its other writings, each once. Twilio's products differ
// in which of them they sign, and a proxy may turn one into another. All have the same parameters,
// and the last gives the event's id. A query of plain parameters has only one.
func writings(query string) []string {
	all := []string{query, escaped.Replace(query), encodedAnew(query)}
	slices.Sort(all)
	return slices.Compact(all)
}

// leftAlone turns what url.QueryEscape writes into what Node's querystring does.
var leftAlone = strings.NewReplacer("+", "%20", "%21", "!", "%27", "'", "%28", "(", "%29", ")", "%2A", "*")

// encodedAnew returns a query, with its question mark, whose parameters are decoded and encoded as
// Node's querystring does it: the values of a name stand together. The query can be parsed.
func encodedAnew(query string) string {
	var names []string
	values := map[string][]string{}
	for pair := range strings.SplitSeq(strings.TrimPrefix(query, "?"), "&") {
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		name, _ = url.QueryUnescape(name)
		value, _ = url.QueryUnescape(value)
		if values[name] == nil {
			names = append(names, name)
		}
		values[name] = append(values[name], value)
	}
	var all []string
	for _, name := range names {
		for _, value := range values[name] {
			all = append(all, leftAlone.Replace(url.QueryEscape(name)+"="+url.QueryEscape(value)))
		}
	}
	if len(all) == 0 {
		return ""
	}
	return "?" + strings.Join(all, "&")
}

// bases returns the URL with its port and without. Twilio's products differ in which of them they
// sign.
func (t Provider) bases() ([]string, error) {
	u, err := url.Parse(t.URL)
	ports := map[string]string{"https": "443", "http": "80"}
	bare := !strings.ContainsAny(t.URL, "?#") && received.Printable(t.URL)
	usable := err == nil && ports[u.Scheme] != "" && u.Hostname() != ""
	if !usable || !bare {
		return nil, errors.New("twilio.Provider.URL: must be the endpoint's public URL, https or http, " +
			"without a query and a fragment")
	}
	_, rest, _ := strings.Cut(t.URL, "://")
	authority := rest
	path := ""
	if at := strings.IndexByte(rest, '/'); at >= 0 {
		authority = rest[:at]
		path = rest[at:]
	}
	port := cmp.Or(u.Port(), ports[u.Scheme])
	server := u.Scheme + "://" + strings.TrimSuffix(authority, ":"+u.Port())
	return []string{server + path, server + ":" + port + path}, nil
}

// signedText returns what is signed after the URL's path: the query as it came, with its question
// mark, and the form's parameters or nothing. Each body is signed in one of two ways: as a form, of
// which each parameter is signed, or by its hash in the query. There is no third way. Otherwise an
// attacker could send a body of another type under the signature of an empty request (W19).
func signedText(f scheme.Fields, body []byte) (raw string, parameters []byte, err error) {
	if raw, err = f.Query(); err != nil {
		return "", nil, err
	}
	query, err := received.ParseQuery(raw)
	if err != nil {
		return "", nil, err
	}
	if raw != "" {
		raw = "?" + raw
	}
	const hash = "bodySHA256"
	switch all := query[hash]; {
	case len(all) == 1:
		sum, canonical := scheme.Hex.Decode(all[0])
		if !canonical || len(sum) != sha256.Size {
			return "", nil, scheme.Malformed(hash, "is not a SHA-256 in hexadecimal digits")
		}
		if is := sha256.Sum256(body); !bytes.Equal(is[:], sum) {
			return "", nil, received.Forged(hash, "", nil)
		}
		return raw, nil, nil
	case len(all) > 1:
		return "", nil, scheme.Malformed(hash, "occurs more than once")
	}
	if len(body) > 0 {
		kind, _, err := mime.ParseMediaType(f.Header.Get("Content-Type"))
		if err != nil || kind != "application/x-www-form-urlencoded" || len(f.Header["Content-Type"]) > 1 {
			return "", nil, scheme.Malformed("Content-Type",
				"must be application/x-www-form-urlencoded, unless the URL has the parameter bodySHA256")
		}
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return "", nil, scheme.Malformed("body", "is not a form")
	}
	var signed bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(form)) {
		values := slices.Clone(form[name])
		slices.Sort(values)
		for _, value := range slices.Compact(values) { // each value once, as Twilio's libraries do
			signed.WriteString(name)
			signed.WriteString(value)
		}
	}
	return raw, signed.Bytes(), nil
}
