// Package sns verifies webhooks of Amazon SNS.
//
// Numbers in brackets, for example (W18), name rules of docs/rules: what each prevents, and
// the tests that fail without it.
package sns

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/webhook/internal/certificates"
	"github.com/onlyonce/onlyonce/webhook/internal/received"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// Provider is HTTP subscriptions of Amazon SNS:
// https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message.html. A message is
// JSON, signed with the key of a certificate whose address it holds: with SHA-1 (SignatureVersion
// 1, the default of a topic) or SHA-256 (2). There are no secrets. ID is MessageId, Type the member
// Type, and the handler finds the published text in the body's member Message. Raw message delivery
// (RawMessageDelivery) is refused, because its messages are not signed.
//
// Any AWS account can have its own topic send messages that are just as validly signed, so only
// those of Topics count.
//
// SNS signs some members of the JSON and not the whole body. webhook.Event.Body is JSON of these,
// with the signature's own, so that nothing unsigned reaches a handler: no MessageAttributes and no
// UnsubscribeURL. Put what the handler needs into the message.
//
// A SubscriptionConfirmation for one of Topics is a probe: the endpoint confirms the subscription
// by fetching its SubscribeURL before it answers 200. If that fails, it answers 503, and SNS sends
// the probe again. An UnsubscribeConfirmation is an event; the endpoint does not fetch its
// SubscribeURL.
//
// The Verifier fetches certificates and SubscribeURLs from hosts sns.<region>.amazonaws.com (in
// China .amazonaws.com.cn) over HTTPS only; see [scheme.Fetch] and rule W18. The certificate must
// be RSA, valid at the time, have the name that SNS uses in that region, and lead to a root: SNS
// sends it alone, so the Verifier fetches its issuer from Amazon's crt.<name>.amazontrust.com. It
// fetches the certificate again every 24 hours.
//
// SNS delivers a message for an hour, with the time of its publication, so a time up to 65 minutes
// ago counts, and one up to 5 minutes ahead.
type Provider struct {
	// Topics are the ARNs of the topics whose messages are accepted and whose subscriptions are
	// confirmed: 1 to 64, for example "arn:aws:sns:eu-west-1:123456789012:orders". Required.
	Topics []string

	// Version2Only refuses SignatureVersion 1, whose SHA-1 lets a topic's publishers make two
	// messages with one signature. First set the topic's attribute SignatureVersion to 2. Defaults
	// to false.
	Version2Only bool

	// UnsignedAttributes keeps the member MessageAttributes in the body. Whoever has recorded a
	// message can send it with other attributes, also before SNS delivers it: compare them with
	// the message before you act on them. Defaults to false.
	UnsignedAttributes bool

	// CertURLs are the addresses of the certificates with which SNS signs now, one for each region
	// of Topics: the member SigningCertURL of any message. The Verifier fetches an unlisted
	// certificate when the first message names it, but then strangers who know a topic's ARN can
	// delay that with made-up addresses (W18). At most 64. Defaults to none.
	CertURLs []string

	// Roots are the authorities that certificates must lead to. Defaults to the system's.
	Roots *x509.CertPool

	// Fetch configures the fetching of certificates and the confirming of subscriptions. Defaults
	// to its own defaults.
	Fetch scheme.Fetch
}

var (
	topicARN = regexp.MustCompile(`^arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,256}(\.fifo)?$`)
	host     = regexp.MustCompile(`^sns\.([a-z0-9-]{3,30})\.amazonaws\.com(\.cn)?$`)
	certPath = regexp.MustCompile(`^/SimpleNotificationService-[A-Za-z0-9]{1,64}\.pem$`)
	issuers  = regexp.MustCompile(`^crt\.[a-z0-9]{1,20}\.amazontrust\.com$`)
)

// signedMembers are the members that are signed, in order. Members of types that lack them are left
// out.
var signedMembers = map[string][]string{
	"Notification":             {"Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"},
	"SubscriptionConfirmation": {"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"},
	"UnsubscribeConfirmation":  {"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"},
}

// signatureMembers are of the signature itself.
var signatureMembers = []string{"SignatureVersion", "Signature", "SigningCertURL"}

// Scheme implements webhook.Provider.
func (s Provider) Scheme() (*scheme.Scheme, error) {
	if len(s.Topics) == 0 || len(s.Topics) > 64 {
		return nil, fmt.Errorf("sns.Provider.Topics: must list 1 to 64 topics, not %d: SNS signs the "+
			"messages of all topics, also of other accounts", len(s.Topics))
	}
	for _, topic := range s.Topics {
		if !topicARN.MatchString(topic) {
			return nil, fmt.Errorf("sns.Provider.Topics: %q is not the ARN of a topic", topic)
		}
	}
	fetch, err := certificates.NewFetcher(s.Fetch)
	if err != nil {
		return nil, fmt.Errorf("sns.Provider.%w", err)
	}
	s.Topics = slices.Clone(s.Topics)
	c, err := certificates.New(certificates.Config{
		Fetch: fetch, Roots: s.Roots, Issuers: issuers, Names: certNames,
		Match: func(u *url.URL) bool { return host.MatchString(u.Host) && certPath.MatchString(u.Path) },
	}, s.CertURLs)
	if err != nil {
		return nil, fmt.Errorf("sns.Provider.CertURLs: %w", err)
	}
	confirmations := &budget{}
	return &scheme.Scheme{
		Name: "sns", Past: 65 * time.Minute, Future: 5 * time.Minute, IDSigned: true,
		Answer: 15 * time.Second, Redeliveries: time.Hour,
		Certificates: c,
		Read: func(f scheme.Fields) (scheme.Signed, error) {
			// The header is not signed. It refuses most requests of others before their bodies are
			// read.
			_, err := f.One("X-Amz-Sns-Message-Type")
			return scheme.Signed{}, err
		},
		ReadBody: func(_ scheme.Fields, body []byte, signed *scheme.Signed) error {
			return s.readBody(body, c, signed)
		},
		Event: func(_ scheme.Fields, e *scheme.Event) error {
			m, err := readMessage(e.Body)
			if err != nil {
				return err
			}
			e.ID = m["MessageId"]
			e.Type = m["Type"]
			e.Body = s.signedPart(m, e.Body)
			if e.Type == "SubscriptionConfirmation" {
				e.Probe = true
				_, err = subscribeURL(m)
			}
			return err
		},
		Confirm: func(ctx context.Context, e *scheme.Event) error {
			m, err := readMessage(e.Body)
			if err != nil || m["Type"] != "SubscriptionConfirmation" {
				return err
			}
			address, err := subscribeURL(m)
			if err != nil {
				return err
			}
			if !confirmations.take(time.Now()) {
				return received.Unavailable("too many subscriptions were confirmed within a minute", nil)
			}
			if _, _, err := fetch.Get(ctx, address); err != nil {
				return received.Unavailable("the subscription could not be confirmed", err)
			}
			return nil
		},
	}, nil
}

// certNames returns the names of SNS's certificates that come from a host.
func certNames(from string) []string {
	names := []string{"sns.amazonaws.com"}
	found := host.FindStringSubmatch(from)
	if found == nil {
		return names
	}
	region := found[1]
	switch {
	case found[2] != "":
		return []string{"sns-" + region + ".amazonaws.com.cn"}
	case strings.HasPrefix(region, "us-gov-"):
		return []string{"sns-us-gov-west-1.amazonaws.com", "sns-us-gov-east-1.amazonaws.com"}
	}
	return append(names, "sns-signing."+region+".amazonaws.com")
}

// readMessage returns the members of a message that count. In what is signed, a line's end delimits
// the members, and only Message may hold one. So no text that is published can pass for other
// members: read from its end, what is signed has one meaning.
func readMessage(body []byte) (map[string]string, error) {
	names := slices.Concat(
		[]string{"Message", "MessageId", "Subject", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"},
		signatureMembers,
	)
	raw := received.Members(body, names...)
	m := map[string]string{}
	for name, value := range raw {
		var text string
		if name == "Subject" && string(value) == "null" {
			continue
		}
		if len(value) == 0 || value[0] != '"' || json.Unmarshal(value, &text) != nil {
			return nil, scheme.Malformed("body's member "+name, "must occur exactly once, as a string")
		}
		if name != "Message" && strings.Contains(text, "\n") {
			return nil, scheme.Malformed("body's member "+name, "has a line's end, which delimits the signed text")
		}
		m[name] = text
	}
	signed := signedMembers[m["Type"]]
	if signed == nil {
		return nil, scheme.Malformed("body's member Type", "is none of SNS's")
	}
	for _, name := range slices.Concat(signatureMembers, signed) {
		if _, has := m[name]; !has && name != "Subject" {
			return nil, scheme.Malformed("body's member "+name, "is missing")
		}
	}
	if !received.ValidID(m["MessageId"]) {
		return nil, scheme.Malformed("body's member MessageId", "is not 1 to 255 visible ASCII characters")
	}
	return m, nil
}

// readBody finds the signature, what it signs, and where its certificate is. A message of another
// topic is refused before anything is fetched for it.
func (s Provider) readBody(body []byte, c *certificates.Store, signed *scheme.Signed) error {
	m, err := readMessage(body)
	if err != nil {
		return err
	}
	if !slices.Contains(s.Topics, m["TopicArn"]) {
		return received.Forged("body's member TopicArn", "is none of Topics", nil)
	}
	a := scheme.RSASHA256
	switch version := m["SignatureVersion"]; {
	case version == "1" && !s.Version2Only:
		a = scheme.RSASHA1
	case version != "2":
		return scheme.Malformed("body's member SignatureVersion", "is not one that the configuration accepts")
	}
	one, err := certificates.Signature("body's member Signature", m["Signature"], a)
	if err != nil {
		return err
	}
	signed.Signatures = []scheme.Signature{one}
	if signed.Certificate, err = c.CheckURL("body's member SigningCertURL", m["SigningCertURL"]); err != nil {
		return err
	}
	if signed.Time, err = time.Parse(time.RFC3339, m["Timestamp"]); err != nil {
		return scheme.Malformed("body's member Timestamp", "is not a time of RFC 3339")
	}
	if m["Type"] == "SubscriptionConfirmation" {
		if _, err := subscribeURL(m); err != nil {
			return err
		}
	}
	var text strings.Builder
	for _, name := range signedMembers[m["Type"]] {
		if value, has := m[name]; has {
			text.WriteString(name + "\n" + value + "\n")
		}
	}
	signed.Messages = [][]byte{[]byte(text.String())}
	return nil
}

// signedPart returns a message's JSON without what is not signed (W3).
func (s Provider) signedPart(m map[string]string, body []byte) []byte {
	var out bytes.Buffer
	_ = out.WriteByte('{')
	text := json.NewEncoder(&out)
	text.SetEscapeHTML(false)
	for _, name := range slices.Concat(signedMembers[m["Type"]], signatureMembers) {
		if value, has := m[name]; has {
			_, _ = fmt.Fprintf(&out, "%q:", name)
			_ = text.Encode(value)
			out.Bytes()[out.Len()-1] = ',' // in place of Encode's line end
		}
	}
	attributes := received.Members(body, "MessageAttributes")["MessageAttributes"]
	if s.UnsignedAttributes && len(attributes) > 0 {
		_, _ = fmt.Fprintf(&out, "%q:%s,", "MessageAttributes", attributes)
	}
	out.Bytes()[out.Len()-1] = '}'
	return out.Bytes()
}

// subscribeURL returns the address that confirms a subscription, if it is one of SNS's and does
// this and nothing else (W20).
func subscribeURL(m map[string]string) (*url.URL, error) {
	const field, reason = "body's member SubscribeURL", "is not an address at which SNS confirms this " +
		"topic's subscription"
	u, err := url.Parse(m["SubscribeURL"])
	if err != nil || u.Scheme != "https" || !host.MatchString(u.Host) {
		return nil, scheme.Malformed(field, reason)
	}
	root := u.Path == "/" || u.Path == ""
	if u.User != nil || !root || u.Fragment != "" {
		return nil, scheme.Malformed(field, reason)
	}
	query, err := url.ParseQuery(u.RawQuery)
	want := url.Values{"Action": {"ConfirmSubscription"}, "TopicArn": {m["TopicArn"]}, "Token": {m["Token"]}}
	for name, values := range want {
		if err != nil || !slices.Equal(query[name], values) {
			return nil, scheme.Malformed(field, reason)
		}
	}
	return u, nil
}

// maxConfirmations is how many subscriptions are confirmed in a minute. A recorded confirmation can
// be sent again.
const maxConfirmations = 32

// budget bounds the confirmations of a minute.
type budget struct {
	mu    sync.Mutex
	begun time.Time
	n     int
}

// take reports whether another one may begin at a time.
func (b *budget) take(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Sub(b.begun) >= time.Minute {
		b.begun = now
		b.n = 0
	}
	b.n++
	return b.n <= maxConfirmations
}
