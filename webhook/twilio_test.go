package webhook_test

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/webhook"
	"github.com/onlyonce/onlyonce/webhook/twilio"
)

const (
	twilioURL   = "https://mycompany.com/myapp.php"
	twilioToken = "12345" // of Twilio's documentation, and of its libraries' tests
	formType    = "application/x-www-form-urlencoded"
)

// twilioForm is Twilio's published form, in an order that is not the signed one.
var twilioForm = url.Values{
	"To": {"+18005551212"}, "CallSid": {"CA1234567890ABCDE"}, "Digits": {"1234"}, "From": {"+14158675309"}, "Caller": {"+14158675309"},
}

func ofTwilio(t testing.TB, base, token string) *webhook.Verifier {
	t.Helper()
	v, err := webhook.NewShort(webhook.Config{Provider: twilio.Provider{URL: base}, Secrets: []string{token}})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// signTwilio is what Twilio documents: the URL, and the parameters in order of their names.
func signTwilio(token, address string, form url.Values) string {
	for _, name := range slices.Sorted(maps.Keys(form)) {
		address += name + form.Get(name)
	}
	return b64(mac(sha1.New, token, address))
}

func twilioRequest(signature, kind, query, body string) webhook.Request {
	h := headers("X-Twilio-Signature", signature)
	if kind != "" {
		h.Set("Content-Type", kind)
	}
	return webhook.Request{Header: h, Query: query, Body: []byte(body)}
}

// Requests that Twilio publishes: in its documentation, and in the tests of its libraries (W19).
func TestTwilioVectors(t *testing.T) {
	t.Parallel()
	const (
		body = `{"property": "value", "boolean": true}`
		sum  = "0a1ff7634d9ab3b95db5c9a2dfe9416e41502b283a80c7cf19632632f96e6620"
	)
	repeated := url.Values{"Sid": {"CA123"}, "SidAccount": {"AC123"}, "Digits": {"5678", "1234", "1234"}}
	for name, c := range map[string]struct{ signature, kind, query, body string }{
		"documentation":                   {"RSOYDt4T1cUTdK1PDd93/VVr8B8=", formType, "foo=1&bar=2", twilioForm.Encode()},
		"twilio-python, body's hash":      {"a9nBmqA0ju/hNViExpshrM61xv4=", "application/json", "foo=1&bar=2&bodySHA256=" + sum, body},
		"twilio-python, repeated a value": {"IK+Dwps556ElfBT0I3Rgjkr1wJU=", formType + "; charset=UTF-8", "foo=1&bar=2", repeated.Encode()},
	} {
		r := twilioRequest(c.signature, c.kind, c.query, c.body)
		e, err := ofTwilio(t, twilioURL, twilioToken).VerifyRequest(t.Context(), r)
		good := err == nil &&
			!e.IDSigned &&
			strings.HasPrefix(e.ID, "delivery:") &&
			string(e.Body) == c.body
		if !good { // none has a sid of a message
			t.Errorf("%s: %v %+v", name, err, e)
		}
	}
}

// W19: a form that differs in any parameter, its name or its value, or in the URL, was not signed.
func TestW19EveryParameterCounts(t *testing.T) {
	t.Parallel()
	v := ofTwilio(t, twilioURL, twilioToken)
	const query = "foo=1&bar=2"
	good := signTwilio(twilioToken, twilioURL+"?"+query, twilioForm)
	try := func(what string, want error, r webhook.Request) {
		t.Helper()
		if e, err := v.VerifyRequest(context.Background(), r); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: %v %+v", what, err, e)
		}
	}
	try("as signed", nil, twilioRequest(good, formType, query, twilioForm.Encode()))
	for name := range twilioForm {
		for what, change := range map[string]func(url.Values){
			"another value": func(f url.Values) { f.Set(name, f.Get(name)+"1") },
			"empty":         func(f url.Values) { f.Set(name, "") },
			"missing":       func(f url.Values) { f.Del(name) },
			"twice":         func(f url.Values) { f.Add(name, "another") },
			"another name":  func(f url.Values) { f.Set(name+"2", f.Get(name)); f.Del(name) },
			"one more":      func(f url.Values) { f.Set("A"+name, "") },
		} {
			form := maps.Clone(twilioForm)
			form[name] = slices.Clone(form[name])
			change(form)
			try(name+" "+what, webhook.ErrSignature, twilioRequest(good, formType, query, form.Encode()))
		}
	}
	for _, q := range []string{
		"",
		"foo=1",
		"bar=2&foo=1",
		"foo=1&bar=2&x=1",
		"foo=1&bar=3",
		"FOO=1&bar=2",
		"foo=%32&bar=2",
		"foo=1&bar=2&bar=2",
	} {
		try("query "+q, webhook.ErrSignature, twilioRequest(good, formType, q, twilioForm.Encode()))
	}
	try("a query of any length", webhook.ErrMalformed, twilioRequest(good, formType, "a="+strings.Repeat("b", 5000), twilioForm.Encode()))
	try("a query that cannot be parsed", webhook.ErrMalformed, twilioRequest(good, formType, "a=%zz", twilioForm.Encode()))
	try("a body that is no form", webhook.ErrMalformed, twilioRequest(good, formType, query, "a=%zz"))
	try("another secret",
		webhook.ErrSignature,
		twilioRequest(signTwilio("54321", twilioURL+"?"+query, twilioForm), formType, query, twilioForm.Encode()))
	try("SHA-256", webhook.ErrMalformed, twilioRequest(b64(mac256(twilioToken, twilioURL)), formType, "", ""))
}

// W19: a body is a form, of which each parameter is signed, or it is what the signed hash says. A
// signature without parameters and without a hash is none for a body.
func TestW19NoBodyIsUnsigned(t *testing.T) {
	t.Parallel()
	v := ofTwilio(t, twilioURL, twilioToken)
	const body = `{"paid":true}`
	sum := sha256.Sum256([]byte(body))
	hash := hex.EncodeToString(sum[:])
	bare := signTwilio(twilioToken, twilioURL, nil) // of a request without a body
	if _, err := v.VerifyRequest(t.Context(), twilioRequest(bare, "", "", "")); err != nil {
		t.Errorf("without a body: %v", err)
	}
	for _, kind := range []string{
		"",
		"application/json",
		"text/plain",
		"multipart/form-data; boundary=x",
		"application/x-www-form-urlencoded2",
		";",
		formType + ", application/json",
	} {
		if _, err := v.VerifyRequest(t.Context(), twilioRequest(bare, kind, "", body)); !errors.Is(err, webhook.ErrMalformed) {
			t.Errorf("a body of type %q that nothing signs: %v", kind, err)
		}
	}
	if _, err := v.VerifyRequest(t.Context(), twilioRequest(bare, formType, "", body)); !errors.Is(err, webhook.ErrSignature) {
		t.Errorf("a form that nothing signs: %v", err)
	}
	two := twilioRequest(bare, formType, "", body)
	two.Header.Add("Content-Type", "application/json")
	if _, err := v.VerifyRequest(t.Context(), two); !errors.Is(err, webhook.ErrMalformed) {
		t.Errorf("two types: %v", err)
	}
	for query, want := range map[string]error{
		"bodySHA256=" + hash:                                            nil,
		"a=1&body%53HA256=" + hash:                                      nil, // signed as it is written
		"bodySHA256=" + strings.ToUpper(hash):                           webhook.ErrMalformed,
		"bodySHA256=" + hash[:62]:                                       webhook.ErrMalformed,
		"bodySHA256=":                                                   webhook.ErrMalformed,
		"bodySHA256=" + hash + "&bodySHA256=" + hash:                    webhook.ErrMalformed,
		"bodySHA256=" + strings.Repeat("0", 64):                         webhook.ErrSignature,
		"bodysha256=" + hash:                                            webhook.ErrMalformed,
		"bodySHA256=" + hash + "&bodySHA256=" + strings.Repeat("0", 64): webhook.ErrMalformed,
	} {
		r := twilioRequest(signTwilio(twilioToken, twilioURL+"?"+query, nil), "application/json", query, body)
		if _, err := v.VerifyRequest(t.Context(), r); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: %v, want %v", query, err, want)
		}
		r.Header.Set("X-Twilio-Signature", bare)
		if _, err := v.VerifyRequest(t.Context(), r); err == nil {
			t.Errorf("%s counts though the signature does not cover it", query)
		}
	}
}

// W19: the URL is the configuration's. What a request says of itself does not matter, and the port
// is tried as Twilio's libraries try it.
func TestW19URLIsConfiguration(t *testing.T) {
	t.Parallel()
	for base, signed := range map[string]map[string]bool{
		"https://a.example/t": {
			"https://a.example/t":     true,
			"https://a.example:443/t": true,
			"http://a.example/t":      false,
			"https://b.example/t":     false,
			"https://a.example/":      false,
			"https://a.example:80/t":  false,
		},
		"https://a.example:8443/t": {"https://a.example:8443/t": true, "https://a.example/t": true, "https://a.example:443/t": false},
		"http://u:p@a.example":     {"http://u:p@a.example": true, "http://u:p@a.example:80": true, "http://a.example": false},
		"https://[::1]:8443/a/":    {"https://[::1]:8443/a/": true, "https://[::1]/a/": true, "https://[::1]/a": false},
	} {
		v := ofTwilio(t, base, twilioToken)
		for address, want := range signed {
			r := twilioRequest(signTwilio(twilioToken, address, twilioForm), formType, "", twilioForm.Encode())
			for _, name := range []string{"Host", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Original-Url"} {
				r.Header.Set(name, "https://b.example/t")
			}
			if _, err := v.VerifyRequest(t.Context(), r); (err == nil) != want {
				t.Errorf("%s, signed as %s: %v", base, address, err)
			}
		}
	}
	for _, base := range []string{
		"", "a.example/t", "/t", "ftp://a.example/t", "https:///t", "https://a.example/t?x=1",
		"https://a.example/t?", "https://a.example/t#f", "https://a.example/t#",
		"https://a.example/é",
	} {
		if _, err := (twilio.Provider{URL: base}).Scheme(); err == nil || !strings.Contains(err.Error(), "twilio.Provider.URL: must be") {
			t.Errorf("%q: %v", base, err)
		}
	}
}

// W7: nothing delimits a form's names from its values in what Twilio signs. The same characters as
// other parameters have the same signature, and are a copy, because the id is made of the signed
// characters.
func TestW7OtherParametersOfTheSameCharacters(t *testing.T) {
	t.Parallel()
	const secret = "0123456789abcdef0123456789abcdef"
	r := newRig(t)
	e := r.serve(sample{provider: twilio.Provider{URL: "https://a.example/t"}, secret: secret})
	form := url.Values{"Body": {"Hello"}, "MessageSid": {"SM1"}}
	h := headers("X-Twilio-Signature", signTwilio(secret, "https://a.example/t?a=1", form), "Content-Type", formType)
	send := func(body string) answer {
		req := e.request(h, body)
		req.URL.RawQuery = "a=1"
		return e.do(req)
	}
	send(form.Encode()).want(t, http.StatusOK, false)
	send("MessageSid=SM1&Body=Hello").want(t, http.StatusOK, true)
	send("BodyHello=&MessageSidSM1=").want(t, http.StatusOK, true)
	send("Body=HelloMessageSidSM1").want(t, http.StatusOK, true)
	send("Body=Hello&MessageSid=SM2").want(t, http.StatusUnauthorized, false)
	if n := r.count("onlyonce.event_log"); n != 1 {
		t.Errorf("%d events are stored", n)
	}
}
