package webhooks

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/url"
	"slices"
	"testing"

	"github.com/twilio/twilio-go/client"
	"pgregory.net/rapid"

	"github.com/onlyonce/onlyonce/webhook"
	"github.com/onlyonce/onlyonce/webhook/twilio"
)

const (
	twilioToken = "0123456789abcdef0123456789abcdef"
	twilioURL   = "https://hooks.example.com/twilio"
)

// signTwilio is what https://www.twilio.com/docs/usage/webhooks/webhooks-security describes.
// Twilio's library verifies and does not sign.
func signTwilio(pieces ...string) string {
	m := hmac.New(sha1.New, []byte(twilioToken))
	for _, p := range pieces {
		m.Write([]byte(p))
	}
	return b64(m.Sum(nil))
}

// Twilio's library and package webhook accept the same forms, and refuse the same.
func TestTwilioLibraryOnForms(t *testing.T) {
	t.Parallel()
	v := verifier(t, twilio.Provider{URL: twilioURL}, twilioToken)
	theirs := client.NewRequestValidator(twilioToken)
	rapid.Check(t, func(t *rapid.T) {
		query := rapid.SampledFrom([]string{"", "a=1", "b=%2B&a=x%20y"}).Draw(t, "query")
		params := rapid.MapOf(rapid.StringMatching(`[A-Za-z][A-Za-z0-9_]{0,20}`), rapid.String()).Draw(t, "params")
		address := twilioURL
		if query != "" {
			address += "?" + query
		}
		pieces, form := []string{address}, url.Values{}
		for _, name := range slices.Sorted(maps.Keys(params)) {
			pieces = append(pieces, name, params[name])
			form.Set(name, params[name])
		}
		signature := signTwilio(pieces...)
		if rapid.Bool().Draw(t, "broken") {
			params["Extra"], form["Extra"] = "1", []string{"1"}
		}
		want := theirs.Validate(address, params, signature)
		_, err := v.VerifyRequest(t.Context(), webhook.Request{
			Header: headers("X-Twilio-Signature", signature, "Content-Type", "application/x-www-form-urlencoded"),
			Query:  query,
			Body:   []byte(form.Encode()),
		})
		if (err == nil) != want {
			t.Fatalf("%q %q: theirs says %t, ours %v", query, form.Encode(), want, err)
		}
	})
}

// The same for bodies whose hash is in the URL.
func TestTwilioLibraryOnBodies(t *testing.T) {
	t.Parallel()
	v := verifier(t, twilio.Provider{URL: twilioURL}, twilioToken)
	theirs := client.NewRequestValidator(twilioToken)
	rapid.Check(t, func(t *rapid.T) {
		body := rapid.SliceOfN(rapid.Byte(), 1, 200).Draw(t, "body")
		sum := sha256.Sum256(body)
		query := "a=1&bodySHA256=" + hex.EncodeToString(sum[:])
		address := twilioURL + "?" + query
		signature := signTwilio(address)
		if rapid.Bool().Draw(t, "broken") {
			body = append(body, 'x')
		}
		want := theirs.ValidateBody(address, body, signature)
		_, err := v.VerifyRequest(t.Context(), webhook.Request{
			Header: headers("X-Twilio-Signature", signature, "Content-Type", "application/json"),
			Query:  query,
			Body:   body,
		})
		if (err == nil) != want {
			t.Fatalf("%q: theirs says %t, ours %v", body, want, err)
		}
	})
}

// Each port that the library tries, package webhook tries too.
func TestTwilioLibraryOnPorts(t *testing.T) {
	t.Parallel()
	theirs := client.NewRequestValidator(twilioToken)
	for _, base := range []string{
		"https://a.example/t",
		"https://a.example:8443/t",
		"http://a.example/t",
		"http://a.example:8080/t",
		"https://a.example:443/t",
	} {
		v := verifier(t, twilio.Provider{URL: base}, twilioToken)
		for _, signed := range []string{
			"https://a.example/t",
			"https://a.example:443/t",
			"https://a.example:8443/t",
			"http://a.example/t",
			"http://a.example:80/t",
			"http://a.example:8080/t",
		} {
			signature := signTwilio(signed, "A", "1")
			want := theirs.Validate(base, map[string]string{"A": "1"}, signature)
			_, err := v.VerifyRequest(t.Context(), webhook.Request{
				Header: headers("X-Twilio-Signature", signature, "Content-Type", "application/x-www-form-urlencoded"),
				Body:   []byte("A=1"),
			})
			if (err == nil) != want {
				t.Errorf("%s, signed as %s: theirs says %t, ours %v", base, signed, want, err)
			}
		}
	}
}

// A JSON body that nothing signs: the signature is of the URL alone.
func TestStricterThanTwilioLibrary(t *testing.T) {
	t.Parallel()
	signature := signTwilio(twilioURL)
	v := verifier(t, twilio.Provider{URL: twilioURL}, twilioToken)
	for _, kind := range []string{"application/json", ""} {
		_, err := v.VerifyRequest(t.Context(), webhook.Request{
			Header: headers("X-Twilio-Signature", signature, "Content-Type", kind),
			Body:   []byte(`{"paid":true}`),
		})
		if err == nil {
			t.Errorf("a body of type %q that nothing signs is accepted", kind)
		}
	}
}
