package webhook_test

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/webhook"
	"github.com/onlyonce/onlyonce/webhook/sns"
)

const (
	snsTopic  = "arn:aws:sns:eu-west-1:123456789012:MyTopic"
	snsFile   = "sns.eu-west-1.amazonaws.com/SimpleNotificationService-f3ecfb7224c7233fe7bb5f59f96de52f.pem"
	snsHeader = "X-Amz-Sns-Message-Type"
)

// snsMessage is Amazon's published example of a notification, at a time.
func snsMessage(at time.Time) map[string]string {
	return map[string]string{
		"Type":             "Notification",
		"MessageId":        "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
		"TopicArn":         snsTopic,
		"Subject":          "My First Message",
		"Message":          "Hello world!",
		"Timestamp":        at.UTC().Format("2006-01-02T15:04:05.000Z"),
		"SignatureVersion": "2",
		"SigningCertURL":   "https://" + snsFile,
	}
}

// snsConfirmation is Amazon's published example of a subscription's confirmation.
func snsConfirmation(at time.Time) map[string]string {
	m := snsMessage(at)
	delete(m, "Subject")
	m["Type"], m["Token"] = "SubscriptionConfirmation", "2336412f37fb687f5d51e6e2425c464de12884"
	m["Message"] = "You have chosen to subscribe to the topic " + snsTopic +
		".\nTo confirm the subscription, visit the SubscribeURL included in this message."
	m["SubscribeURL"] = "https://sns.eu-west-1.amazonaws.com/?Action=ConfirmSubscription&TopicArn=" + snsTopic + "&Token=" + m["Token"]
	return m
}

// snsText is what Amazon documents as the string to sign.
func snsText(m map[string]string) (text string) {
	names := []string{"Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"}
	if m["Type"] != "Notification" {
		names = []string{"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"}
	}
	for _, name := range names {
		if value, has := m[name]; has {
			text += name + "\n" + value + "\n"
		}
	}
	return text
}

// snsBody signs a text, and writes it into a message.
func snsBody(t testing.TB, key *rsa.PrivateKey, m map[string]string, text string) string {
	t.Helper()
	kind := crypto.SHA256
	sum256 := sha256.Sum256([]byte(text))
	sum1 := sha1.Sum([]byte(text))
	sum := sum256[:]
	if m["SignatureVersion"] == "1" {
		kind = crypto.SHA1
		sum = sum1[:]
	}
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, kind, sum)
	if err != nil {
		t.Fatal(err)
	}
	m = maps.Clone(m)
	if m["Signature"] == "" {
		m["Signature"] = b64(signature)
	}
	body, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

var snsHeaders = headers(snsHeader, "Notification")

func overSNS(t testing.TB, change ...func(*sns.Provider)) (*senderHost, *webhook.Verifier) {
	t.Helper()
	h := newSenderHost(t)
	const issuer = "crt.r2m01.amazontrust.com/r2m01.cer"
	h.put(issuer, h.middle.Raw)
	h.put(
		snsFile,
		pemFile(h.signing("sns.amazonaws.com", func(c *x509.Certificate) { c.IssuingCertificateURL = []string{"http://" + issuer} })),
	)
	p := sns.Provider{Topics: []string{snsTopic, snsTopic + ".fifo"}, Roots: h.roots, Fetch: h.fetch()}
	for _, f := range change {
		f(&p)
	}
	v, err := webhook.NewVerifier(webhook.Config{Provider: p})
	if err != nil {
		t.Fatal(err)
	}
	return h, v
}

func TestSNS(t *testing.T) {
	t.Parallel()
	h, v := overSNS(t)
	at := time.Now().Truncate(time.Millisecond)
	for name, change := range map[string]func(map[string]string){
		"version 2":          func(map[string]string) {},
		"version 1":          func(m map[string]string) { m["SignatureVersion"] = "1" },
		"without a subject":  func(m map[string]string) { delete(m, "Subject") },
		"subject of nothing": func(m map[string]string) { m["Subject"] = "" },
		"lines and quotes":   func(m map[string]string) { m["Message"] = "a\n\"b\"\n\u2028\\é" },
		"other members":      func(m map[string]string) { m["UnsubscribeURL"] = "https://x.example" },
	} {
		m := snsMessage(at)
		change(m)
		body := snsBody(t, h.key, m, snsText(m))
		e, err := v.Verify(snsHeaders, []byte(body))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		named := e.ID == m["MessageId"] && e.IDSigned && e.Type == "Notification"
		if !named || e.Probe || !e.Time.Equal(at) {
			t.Errorf("%s: %+v", name, e)
		}
		var got map[string]string
		if err := json.Unmarshal(e.Body, &got); err != nil {
			t.Fatal(err)
		}
		delete(m, "UnsubscribeURL")
		delete(got, "Signature")
		if !maps.Equal(got, m) {
			t.Errorf("%s: the body is %s", name, e.Body)
		}
		for _, member := range []string{"Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"} {
			bad := maps.Clone(m)
			bad[member] += "0"
			refusesNow(t, v, snsHeaders, snsBody(t, h.key, bad, snsText(m)), webhook.ErrSignature, webhook.ErrMalformed)
		}
	}
	if n := h.times(snsFile); n != 1 {
		t.Errorf("the certificate was fetched %d times", n)
	}
	null := strings.Replace(
		snsBody(t, h.key, snsMessage(at), snsText(func() map[string]string { m := snsMessage(at); delete(m, "Subject"); return m }())),
		`"My First Message"`,
		"null",
		1,
	)
	if _, err := v.Verify(snsHeaders, []byte(null)); err != nil {
		t.Errorf("a Subject that is null: %v", err)
	}
	m := snsMessage(at)
	good := snsBody(t, h.key, m, snsText(m))
	for what, body := range map[string]string{
		"a member twice":  `{"Message":"x",` + good[1:],
		"no object":       "[" + good + "]",
		"a number":        strings.Replace(good, `"Hello world!"`, "7", 1),
		"raw delivery":    "Hello world!",
		"a member's case": strings.Replace(good, `"MessageId"`, `"messageid"`, 1),
	} {
		if _, err := v.Verify(snsHeaders, []byte(body)); !errors.Is(err, webhook.ErrMalformed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for name, value := range map[string]string{
		"SignatureVersion": "3",
		"Signature":        "%%",
		"Type":             "Other",
		"Timestamp":        "yesterday",
		"MessageId":        "a b",
		"Subject":          "a\nb",
	} {
		bad := maps.Clone(m)
		bad[name] = value
		if _, err := v.Verify(snsHeaders, []byte(snsBody(t, h.key, bad, snsText(bad)))); !errors.Is(err, webhook.ErrMalformed) {
			t.Errorf("%s %q: %v", name, value, err)
		}
	}
	if _, err := v.Verify(nil, []byte(good)); !errors.Is(err, webhook.ErrMalformed) {
		t.Errorf("without %s: %v", snsHeader, err)
	}
	_, strict := overSNS(t, func(p *sns.Provider) {
		p.Version2Only = true
		p.Roots = h.roots
		p.Fetch = h.fetch()
	})
	m["SignatureVersion"] = "1"
	refusesNow(t, strict, snsHeaders, snsBody(t, h.key, m, snsText(m)), webhook.ErrMalformed)
	m["SignatureVersion"] = "2"
	if _, err := strict.Verify(snsHeaders, []byte(snsBody(t, h.key, m, snsText(m)))); err != nil {
		t.Error(err)
	}
}

// W3: what SNS does not sign reaches no handler, so all bodies under one signature are one event:
// whoever has recorded a message cannot send another in its place.
func TestW3OnlySignedMembers(t *testing.T) {
	t.Parallel()
	h, v := overSNS(t)
	m := snsMessage(time.Now())
	signed := snsBody(t, h.key, m, snsText(m))
	genuine, err := v.Verify(snsHeaders, []byte(signed))
	if err != nil {
		t.Fatal(err)
	}
	attributes := `{"kind": {"Type": "String", "Value": "order.refunded"}}`
	rendered := func(more string) []byte { return []byte(" {" + more + ", " + signed[1:] + "\n") }
	for _, more := range []string{
		`"MessageAttributes": ` + attributes,
		`"UnsubscribeURL": "https://x.example"`,
		`"Token": "x"`,
		`"SubscribeURL": "https://x.example"`,
		`"message": "x"`,
	} {
		e, err := v.Verify(snsHeaders, rendered(more))
		if err != nil || string(e.Body) != string(genuine.Body) || e.ID != genuine.ID {
			t.Errorf("with %s: %v, the body is %s", more, err, e.Body)
		}
	}
	if again, err := v.Verify(snsHeaders, genuine.Body); err != nil || string(again.Body) != string(genuine.Body) {
		t.Errorf("what is stored does not verify: %v", err)
	}
	_, open := overSNS(t, func(p *sns.Provider) {
		p.UnsignedAttributes = true
		p.Roots = h.roots
		p.Fetch = h.fetch()
	})
	e, err := open.Verify(snsHeaders, rendered(`"MessageAttributes": `+attributes+`, "UnsubscribeURL": "x"`))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(e.Body, &got); err != nil {
		t.Fatal(err)
	}
	if kept, _ := json.Marshal(got["MessageAttributes"]); string(kept) != `{"kind":{"Type":"String","Value":"order.refunded"}}` ||
		got["UnsubscribeURL"] != nil {
		t.Errorf("with UnsignedAttributes: %s", e.Body)
	}
}

// W4: publishers choose the Message, but not how what is signed is read.
func TestW4PublishedTextIsNoMember(t *testing.T) {
	t.Parallel()
	h, v := overSNS(t)
	at := time.Now()
	m := snsMessage(at)
	m["Message"] = "x\nMessageId\nforged\nSubject\ny"
	delete(m, "Subject")
	text := snsText(m)
	if _, err := v.Verify(snsHeaders, []byte(snsBody(t, h.key, m, text))); err != nil {
		t.Fatal(err)
	}
	// The same text, read as the publisher would like it: "forged" is the message's id.
	for _, other := range []map[string]string{
		{"Message": "x", "MessageId": "forged", "Subject": "y\nMessageId\n" + m["MessageId"]},
		{"Message": "x", "MessageId": "forged\nSubject\ny\nMessageId\n" + m["MessageId"]},
	} {
		forged := snsMessage(at)
		delete(forged, "Subject")
		maps.Copy(forged, other)
		if snsText(forged) != text {
			t.Fatal("the test does not forge what it should")
		}
		refusesNow(t, v, snsHeaders, snsBody(t, h.key, forged, text), webhook.ErrMalformed)
	}
}

// W5: a message that was recorded more than 65 minutes ago is stale.
func TestW5OldMessages(t *testing.T) {
	t.Parallel()
	h, v := overSNS(t)
	at := time.Now().Truncate(time.Second)
	for off, want := range map[time.Duration]error{
		-65 * time.Minute:             nil,
		-65*time.Minute - time.Second: webhook.ErrStale,
		5 * time.Minute:               nil,
		5*time.Minute + time.Second:   webhook.ErrStale,
	} {
		for _, m := range []map[string]string{snsMessage(at.Add(off)), snsConfirmation(at.Add(off))} {
			if _, err := v.VerifyAt(at, snsHeaders, []byte(snsBody(t, h.key, m, snsText(m)))); !errors.Is(err, want) ||
				(err == nil) != (want == nil) {
				t.Errorf("%s %v off: %v", m["Type"], off, err)
			}
		}
	}
}

// W20: SNS signs the messages of everybody's topics. Those of others are refused, and nothing is
// fetched for them.
func TestW20OtherTopics(t *testing.T) {
	t.Parallel()
	h, v := overSNS(t)
	for _, topic := range []string{
		"",
		"arn:aws:sns:eu-west-1:999999999999:MyTopic",
		"arn:aws:sns:us-east-1:123456789012:MyTopic",
		snsTopic + "2",
		strings.ToLower(snsTopic),
		strings.TrimSuffix(snsTopic, "c"),
	} {
		for _, m := range []map[string]string{snsMessage(time.Now()), snsConfirmation(time.Now())} {
			m["TopicArn"] = topic
			if m["Token"] != "" {
				m["SubscribeURL"] = strings.Replace(m["SubscribeURL"], snsTopic, topic, 1)
			}
			refusesNow(t, v, snsHeaders, snsBody(t, h.key, m, snsText(m)), webhook.ErrSignature)
		}
	}
	if n := h.times(""); n != 0 {
		t.Errorf("%d fetches", n)
	}
	for _, topics := range [][]string{nil, {"MyTopic"}, {"arn:aws:sqs:eu-west-1:123456789012:q"}, {snsTopic, "*"}, {"arn:aws:sns:*:*:*"}} {
		if _, err := (sns.Provider{Topics: topics}).Scheme(); err == nil || !strings.Contains(err.Error(), "sns.Provider.Topics") {
			t.Errorf("%q: %v", topics, err)
		}
	}
}

// W20: a confirmation is fetched from SNS, once it is signed, for this topic and to confirm.
// Nothing else is.
func TestW20SubscribeURLs(t *testing.T) {
	t.Parallel()
	h, v := overSNS(t)
	const token = "2336412f37fb687f5d51e6e2425c464de12884"
	query := "?Action=ConfirmSubscription&TopicArn=" + snsTopic + "&Token=" + token
	for _, address := range []string{
		"",
		"x",
		"http://sns.eu-west-1.amazonaws.com/" + query,
		"https://evil.example/" + query,
		"https://sns.eu-west-1.amazonaws.com.evil.example/" + query,
		"https://sns.eu-west-1.amazonaws.com:8443/" + query,
		"https://user@sns.eu-west-1.amazonaws.com/" + query,
		"https://sns.eu-west-1.amazonaws.com/other" + query,
		"https://sns.eu-west-1.amazonaws.com@evil.example/" + query,
		"https://sns.eu-west-1.amazonaws.com/" + query + "#x",
		"https://127.0.0.1/" + query,
		"https://sqs.eu-west-1.amazonaws.com/" + query,
		"https://bucket.sns.eu-west-1.amazonaws.com/" + query,
		"https://sns.eu-west-1.amazonaws.com/" + strings.Replace(query, "ConfirmSubscription", "Unsubscribe", 1),
		"https://sns.eu-west-1.amazonaws.com/" + strings.Replace(query, "MyTopic", "Other", 1),
		"https://sns.eu-west-1.amazonaws.com/" + query + "1",
		"https://sns.eu-west-1.amazonaws.com/" + query + "&Action=Unsubscribe",
		"https://sns.eu-west-1.amazonaws.com/" + query + "&%zz",
	} {
		m := snsConfirmation(time.Now())
		m["SubscribeURL"] = address
		refusesNow(t, v, snsHeaders, snsBody(t, h.key, m, snsText(m)), webhook.ErrMalformed)
	}
	if n := h.times(""); n != 0 {
		t.Errorf("%d fetches", n)
	}
}

// W20: an endpoint confirms a subscription to its topic before it answers, and fetches nothing for
// a confirmation that is not signed. If the fetch fails, SNS is asked to come again.
func TestW20Confirmation(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h, _ := overSNS(t)
	e := r.serve(sample{}, func(c *webhook.Config) {
		c.Provider = sns.Provider{Topics: []string{snsTopic}, Roots: h.roots, Fetch: h.fetch()}
		c.Secrets = nil
	})
	const at = "sns.eu-west-1.amazonaws.com/"
	var asked url.Values
	h.handle(at, func(w http.ResponseWriter, req *http.Request) { asked = req.URL.Query() })
	m := snsConfirmation(time.Now())
	text := snsText(m)
	good := snsBody(t, h.key, m, text)
	r.asks(false, func() {
		forged := maps.Clone(m)
		forged["Signature"] = b64(make([]byte, 256))
		e.do(e.request(snsHeaders, snsBody(t, h.key, forged, text))).want(t, 401, false)
		old := snsConfirmation(time.Now().Add(-2 * time.Hour))
		e.do(e.request(snsHeaders, snsBody(t, h.key, old, snsText(old)))).want(t, 401, false)
		if n := h.times(at); n != 0 {
			t.Errorf("%d fetches for confirmations that do not count", n)
		}
		e.do(e.request(snsHeaders, good)).want(t, 200, false)
		if n := h.times(at); n != 1 {
			t.Errorf("%d fetches", n)
		}
		ofTopic := asked.Get("TopicArn") == snsTopic && asked.Get("Token") == m["Token"]
		if !ofTopic || asked.Get("Action") != "ConfirmSubscription" {
			t.Errorf("fetched with %v", asked)
		}
		h.handle(at, func(w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, "https://"+snsFile, http.StatusFound)
		})
		e.do(e.request(snsHeaders, good)).want(t, 503, false)
		h.handle(at, func(w http.ResponseWriter, req *http.Request) { w.WriteHeader(http.StatusForbidden) })
		e.do(e.request(snsHeaders, good)).want(t, 503, false)
		h.handle(at, func(w http.ResponseWriter, req *http.Request) {})
		for range 40 { // a recorded confirmation, sent again
			e.do(e.request(snsHeaders, good))
		}
		if n := h.times(at); n != 32 {
			t.Errorf("%d confirmations within a minute", n)
		}
	})
	over := snsConfirmation(time.Now())
	over["Type"] = "UnsubscribeConfirmation"
	e.do(e.request(snsHeaders, snsBody(t, h.key, over, snsText(over)))).want(t, 200, false)
	if n := r.count("onlyonce.event_log"); n != 1 {
		t.Errorf("%d events are stored", n)
	}
	if n := h.times(at); n != 32 {
		t.Error("an UnsubscribeConfirmation was fetched: it subscribes again")
	}
}

// W18: each region's certificates have their own names, which count for that region's host only.
func TestW18NamesOfRegions(t *testing.T) {
	t.Parallel()
	for host, names := range map[string]map[string]bool{
		"sns.eu-west-1.amazonaws.com": {
			"sns.amazonaws.com":                    true,
			"sns-signing.eu-west-1.amazonaws.com":  true,
			"sns-signing.af-south-1.amazonaws.com": false,
			"sns.eu-west-1.amazonaws.com":          false,
			"amazonaws.com":                        false,
		},
		"sns.us-gov-east-1.amazonaws.com": {"sns-us-gov-west-1.amazonaws.com": true, "sns.amazonaws.com": false},
		"sns.cn-north-1.amazonaws.com.cn": {
			"sns-cn-north-1.amazonaws.com.cn":     true,
			"sns.amazonaws.com":                   false,
			"sns-cn-northwest-1.amazonaws.com.cn": false,
		},
	} {
		for name, want := range names {
			h, v := overSNS(t)
			file := host + "/SimpleNotificationService-1.pem"
			h.put(file, pemFile(h.signing(name), h.middle.Raw))
			m := snsMessage(time.Now())
			m["SigningCertURL"] = "https://" + file
			_, err := v.Verify(snsHeaders, []byte(snsBody(t, h.key, m, snsText(m))))
			if (err == nil) != want || err != nil && !errors.Is(err, webhook.ErrSignature) {
				t.Errorf("%q from %s: %v", name, host, err)
			}
		}
	}
}

// W18: a SigningCertURL is SNS's own, or nothing is asked for.
func TestW18SigningCertURLs(t *testing.T) {
	t.Parallel()
	h, v := overSNS(t)
	const file = "/SimpleNotificationService-f3ecfb7224c7233fe7bb5f59f96de52f.pem"
	for _, address := range []string{
		"",
		"http://sns.eu-west-1.amazonaws.com" + file,
		"https://sns.eu-west-1.amazonaws.com.evil.example" + file,
		"https://sns.amazonaws.com" + file,
		"https://sns.eu.west.amazonaws.com" + file,
		"https://snsxeu-west-1.amazonaws.com" + file,
		"https://sns.eu-west-1.amazonaws.com.cn.evil" + file,
		"https://s3.amazonaws.com/sns.eu-west-1.amazonaws.com" + file,
		"https://sns.eu-west-1.amazonaws.com/evil.pem",
		"https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-.pem",
		"https://sns.eu-west-1.amazonaws.com/a" + file,
		"https://sns.eu-west-1.amazonaws.com" + file + "?x",
		"https://sns.eu-west-1.amazonaws.com" + file + "/x",
		"https://sns.eu-west-1.amazonaws.com/?Action=GetTopicAttributes&x=" + file,
		"https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-%2e.pem",
	} {
		m := snsMessage(time.Now())
		m["SigningCertURL"] = address
		refusesNow(t, v, snsHeaders, snsBody(t, h.key, m, snsText(m)), webhook.ErrMalformed)
	}
	if n := h.times(""); n != 0 {
		t.Errorf("%d fetches", n)
	}
}
