package webhook_test

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/webhook"
	"github.com/onlyonce/onlyonce/webhook/meta"
	"github.com/onlyonce/onlyonce/webhook/paypal"
	"github.com/onlyonce/onlyonce/webhook/sns"
	"github.com/onlyonce/onlyonce/webhook/twilio"
)

// libraryVectors are requests that a sender's own library was given; test/vectors makes them.
type libraryVectors struct {
	Sender, Library, Version, URL, Topic, Certificate, Root string

	CertificateURL string `json:"certificate_url"`
	WebhookID      string `json:"webhook_id"`
	At             int64
	Vectors        []libraryVector
}

type libraryVector struct {
	Name, Secret, Query, Body string
	Body64                    []byte
	Headers                   map[string]string
	Accepts                   bool
}

// differences are the requests of which our verdict is not the library's, each with the reason. The
// first part of a name is the sender's.
var differences = map[string]string{
	// No library's reason is a genuine request.
	"standardwebhooks: joined by a comma and a space": malformedList,
	"standardwebhooks: two spaces between":            malformedList,
	"standardwebhooks: words behind the signature":    malformedList,
	"standardwebhooks: time with a sign":              oneWriting,
	"standardwebhooks: time with zeros":               oneWriting,
	"standardwebhooks: time with a fraction":          oneWriting,
	"standardwebhooks: time with a word":              oneWriting,
	"standardwebhooks: id with a dot":                 "the dot ends the id in the signed bytes",
	"standardwebhooks: id with a space":               "ids are visible characters, because they are keys",
	"standardwebhooks: id of 300 characters":          "ids have at most 255 characters",
	"standardwebhooks: secret of 16 bytes":            "the specification demands 24 bytes",
	"standardwebhooks: secret with its version":       "Supabase shows secrets so, and its users cut it off",
	"standardwebhooks: body: no UTF-8":                decodedFirst,
	"svix: both families":                             "Svix sends one family; with two, readers disagree about the id",
	"stripe: name without a value":                    malformedList,
	"stripe: two times":                               "readers could disagree about which one counts",
	"stripe: time with a sign":                        oneWriting,
	"stripe: time with zeros":                         oneWriting,
	"stripe: 17 signatures":                           "each signature costs a comparison (W4)",
	"github: body: empty":                             "GitHub sends none; it is signed",
	"github: body: no UTF-8":                          decodedFirst,
	"meta: body: no UTF-8":                            decodedFirst,
	"meta: without its tag":                           oneWriting,
	"shopify: body: empty":                            "the signature is right, and the topic may say all",
	"shopify: body: no UTF-8":                         decodedFirst,
	"shopify: without X-Shopify-Shop-Domain":          notNeeded,
	"shopify: without X-Shopify-API-Version":          notNeeded,
	"slack: body: slash command":                      "it is no event: it has no id, and its sender expects a text",
	"slack: body: empty":                              "it is no event",
	"slack: more behind the signature":                oneWriting,
	"slack: 301 s ahead": "Slack demands a difference of at most five minutes; " +
		"slack_sdk for Python refuses it too",
	"slack: time with a sign":               oneWriting,
	"slack: time with zeros":                oneWriting,
	"slack: time that is none":              "Bolt compares a number with text, and so checks no time",
	"twilio: two hashes":                    "readers could disagree about which one counts",
	"sns: end of a subscription":            "AWS documents Token as signed; sns-validator leaves it out",
	"sns: unpadded signature":               oneWriting,
	"sns: lines in the signature":           oneWriting,
	"sns: another topic":                    "any account's topic is signed as well (W20)",
	"sns: member's line's end":              "a line's end delimits the members in what is signed (W4)",
	"sns: two hours ago":                    "SNS delivers for an hour; the library checks no time",
	"sns: an hour ahead":                    "the library checks no time",
	"sns: a member twice":                   "readers could disagree about which one counts",
	"paypal: body: empty":                   "it is no event: it has no id",
	"paypal: body: no UTF-8":                decodedFirst,
	"paypal: lines in the signature":        oneWriting,
	"paypal: SHA-1":                         "PayPal signs with SHA-256; the header would choose the weaker one",
	"paypal: four days ago":                 "PayPal delivers for three days; the library checks no time",
	"paypal: an hour ahead":                 "the library checks no time",
	"paypal: certificate from another host": "the address is the request's own: the library fetches from anywhere (W18)",
	"paypal: id with a delimiter":           "the delimiter ends the id in the signed bytes",
}

const (
	oneWriting    = "each thing has one writing (W4), so that a copy is known by its headers too"
	malformedList = "a proxy has joined lines, or it is no list of the sender's"
	decodedFirst  = "the library decodes the body before it verifies it, and so verifies other bytes (W3)"
	notNeeded     = "it is not signed, and nothing here depends on it"
)

// Each request that a sender's library accepts is accepted, and no other, but for the differences
// above.
func TestLibraryVectors(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/vectors/*.json")
	if err != nil || len(files) != 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	used := map[string]bool{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var all libraryVectors
		if err := json.Unmarshal(raw, &all); err != nil {
			t.Fatal(err)
		}
		for _, v := range all.Vectors {
			key := all.Sender + ": " + v.Name
			if _, has := differences[key]; !has && all.Sender == "svix" {
				key = "standardwebhooks: " + v.Name
			}
			err := v.verify(t, all.provider(t), time.Unix(all.At, 0))
			_, differs := differences[key]
			used[key] = used[key] || differs
			if ours := err == nil; ours == v.Accepts == differs {
				t.Errorf("%s: %s %s accepts it: %t, ours: %v", key, all.Library, all.Version, v.Accepts, err)
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(differences)) {
		if !used[key] {
			t.Errorf("%s: no such vector", key)
		}
	}
}

func (v *libraryVector) verify(t *testing.T, p webhook.Provider, at time.Time) error {
	t.Helper()
	cfg := webhook.Config{Provider: p}
	if v.Secret != "" {
		cfg.Secrets = []string{v.Secret}
	}
	verifier, err := webhook.NewVerifier(cfg)
	if err != nil {
		return err
	}
	r := webhook.Request{Header: http.Header{}, Query: v.Query, Body: []byte(v.Body), Time: at}
	if v.Body64 != nil {
		r.Body = v.Body64
	}
	for name, value := range v.Headers {
		if r.Header.Get(name) != "" {
			t.Fatalf("%s: %s twice", v.Name, name)
		}
		r.Header.Set(name, value)
	}
	e, err := verifier.VerifyRequest(t.Context(), r)
	if err == nil && !e.Probe && e.ID == "" {
		return errors.New("no id")
	}
	return err
}

// provider returns a provider of the sender's, which remembers no certificate.
func (all *libraryVectors) provider(t *testing.T) webhook.Provider {
	t.Helper()
	switch all.Sender {
	case "standardwebhooks", "svix":
		return webhook.Standard{}
	case "stripe":
		return webhook.Stripe{}
	case "github":
		return webhook.GitHub{}
	case "meta":
		return meta.Provider{VerifyToken: metaToken}
	case "shopify":
		return webhook.Shopify{}
	case "slack":
		return webhook.Slack{}
	case "twilio":
		return twilio.Provider{URL: all.URL}
	}
	h := newSenderHost(t)
	h.put(strings.TrimPrefix(all.CertificateURL, "https://"), []byte(all.Certificate))
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(all.Root)) {
		t.Fatal("no root")
	}
	if all.Sender == "sns" {
		return sns.Provider{Topics: []string{all.Topic}, Roots: roots, Fetch: h.fetch()}
	}
	return paypal.Provider{WebhookID: all.WebhookID, Roots: roots, Fetch: h.fetch()}
}
