package webhook_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/webhook"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// Requests that others published. None of them was made here.
func TestPublishedVectors(t *testing.T) {
	t.Parallel()
	standard := func(family, signature string) http.Header {
		return headers(family+"-id", "msg_p5jXN8AQM9LWM0D4loKWxJek", family+"-timestamp", "1614265330", family+"-signature", signature)
	}
	const (
		v1  = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
		v1a = "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="
		// The public half of the private key that Svix's tests have.
		public   = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="
		standing = `{"test": 2432232314}`
	)
	rfc4231 := func(a scheme.Algorithm) webhook.Provider {
		return webhook.HMAC{Name: "rfc4231", Algorithm: a, SignatureHeader: "X-Mac", IDHeader: "X-Id"}
	}
	for name, c := range map[string]struct {
		provider webhook.Provider
		secret   string
		at       int64
		header   http.Header
		body     string
		id, kind string
		check    error // after the signature, which is right
	}{
		// Standard Webhooks' libraries and Svix's, each language; http.md section 6.
		"Standard v1": {
			webhook.Standard{},
			"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
			1614265330,
			standard("webhook", v1),
			standing,
			msgID,
			"",
			nil,
		},
		"Standard v1, bare secret": {
			webhook.Standard{},
			"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
			1614265330,
			standard("webhook", v1),
			standing,
			msgID,
			"",
			nil,
		},
		"Svix v1": {
			webhook.Standard{},
			"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
			1614265330,
			standard("svix", v1),
			standing,
			msgID,
			"",
			nil,
		},
		"Standard, valid multi sig": {
			webhook.Standard{},
			"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
			1614265330,
			standard("webhook",
				"v1,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc= v2,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc= "+
					v1+" v1,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc="),
			standing,
			msgID,
			"",
			nil,
		},
		// svix-webhooks/server, worker.rs, test_asymmetric_key_signing.
		"Svix v1a": {webhook.Standard{}, public, 1614265330, standard("svix", v1a), standing, msgID, "", nil},
		// The specification's example of both kinds in one header has the same v1a.
		"Standard v1 and v1a": {
			webhook.Standard{},
			public,
			1614265330,
			standard("webhook", "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4= "+v1a),
			standing,
			msgID,
			"",
			nil,
		},
		// https://docs.github.com/webhooks/using-webhooks/validating-webhook-deliveries
		"GitHub": {
			webhook.GitHub{},
			"It's a Secret to Everybody",
			1,
			headers("X-Hub-Signature-256",
				"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
				"X-GitHub-Delivery",
				"d",
				"X-GitHub-Event",
				"push"),
			"Hello, World!",
			"d",
			"push",
			nil,
		},
		// google/go-github, messages_test.go
		"go-github": {
			webhook.GitHub{},
			"0123456789abcdef",
			1,
			headers("X-Hub-Signature-256",
				"sha256=b1f8020f5b4cd42042f807dd939015c4a418bc1ff7f604dd55b0a19b5d953d9b",
				"X-GitHub-Delivery",
				"d",
				"X-GitHub-Event",
				"ping"),
			`{"yo":true}`,
			"d",
			"ping",
			nil,
		},
		// https://docs.slack.dev/authentication/verifying-requests-from-slack has a slash command:
		// signed well, but without an event's id.
		"Slack's slash command": {
			webhook.Slack{},
			"8f742231b10e8888abcd99yyyzzz85a5",
			1531420618,
			headers("X-Slack-Request-Timestamp",
				"1531420618",
				"X-Slack-Signature",
				"v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"),
			"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar&" +
				"user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&" +
				"response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&" +
				"trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c",
			"",
			"",
			webhook.ErrMalformed,
		},
		// slack-go/slack, security_test.go
		"slack-go": {
			webhook.Slack{},
			"e6b19c573432dcc6b075501d51b51bb8",
			1531431954,
			headers("X-Slack-Request-Timestamp",
				"1531431954",
				"X-Slack-Signature",
				"v0=adada4ed31709aef585c2580ca3267678c6a8eaeb7e0c1aca3ee57b656886b2c"),
			`{"token":"aF5ynEYQH0dFN9imlgcADxDB","team_id":"XXXXXXXXX","api_app_id":"YYYYYYYYY","event":{"type":"app_mention",` +
				`"user":"AAAAAAAAA","text":"<@EEEEEEEEE> hello ` +
				`world","client_msg_id":"477cc591-ch73-a14z-4db8-g0cd76321bec","ts":"1531431954.000073","channel":"TTTTTTTTT",` +
				`"event_ts":"1531431954.000073"},"type":"event_callback","event_id":"TvBP7LRED7","event_time":1531431954,` +
				`"authed_users":["EEEEEEEEE"]}`,
			"TvBP7LRED7",
			"app_mention",
			nil,
		},
		// bold-commerce/go-shopify, oauth_test.go, whose requests hold the messages as JSON.
		"go-shopify": {
			webhook.Shopify{},
			"hush",
			1,
			headers("X-Shopify-Hmac-Sha256",
				"hMTq0K2x7oyOjoBwGYeTj5oxfnaVYXzbanUG9aajpKI=",
				"X-Shopify-Webhook-Id",
				"w",
				"X-Shopify-Topic",
				"app/uninstalled"),
			`"my secret message"`,
			"w",
			"app/uninstalled",
			nil,
		},
		"go-shopify, empty text": {
			webhook.Shopify{},
			"hush",
			1,
			headers("X-Shopify-Hmac-Sha256",
				"ZAZ6P4c14f6v798OCPYCodtdf9g8Z+GfthdfCgyhUYg=",
				"X-Shopify-Webhook-Id",
				"w",
				"X-Shopify-Topic",
				"app/uninstalled"),
			`""`,
			"w",
			"app/uninstalled",
			nil,
		},
		// SQLPage's test of its hmac function.
		"SQLPage on Shopify": {
			webhook.Shopify{},
			"test-webhook-secret",
			1,
			headers("X-Shopify-Hmac-Sha256",
				"QNyObTlKbMx2qDlPF/ZOZcBqg5OgPg+2oky3zldc0Gw=",
				"X-Shopify-Webhook-Id",
				"w",
				"X-Shopify-Topic",
				"orders/create"),
			`{"id":1234567890,"email":"customer@example.com","total_price":"123.45"}`,
			"w",
			"orders/create",
			nil,
		},
		// RFC 4231 sections 4.3, 4.4 and 4.7.
		"RFC 4231 case 2, SHA-256": {
			rfc4231(scheme.HMACSHA256),
			"Jefe",
			1,
			headers("X-Id", "2", "X-Mac", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
			"what do ya want for nothing?",
			"2",
			"",
			nil,
		},
		"RFC 4231 case 2, SHA-512": {
			rfc4231(scheme.HMACSHA512),
			"Jefe",
			1,
			headers("X-Id",
				"2",
				"X-Mac",
				"164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea250554"+
					"9758bf75c05a994a6d034f65f8f0e6fdcaeab1a34d4a6b4b636e070a38bce737"),
			"what do ya want for nothing?",
			"2",
			"",
			nil,
		},
		"RFC 4231 case 3, SHA-256": {
			rfc4231(scheme.HMACSHA256),
			strings.Repeat("\xaa", 20),
			1,
			headers("X-Id", "3", "X-Mac", "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"),
			strings.Repeat("\xdd", 50),
			"3",
			"",
			nil,
		},
		"RFC 4231 case 6, SHA-256": {
			rfc4231(scheme.HMACSHA256),
			strings.Repeat("\xaa", 131),
			1,
			headers("X-Id", "6", "X-Mac", "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"),
			"Test Using Larger Than Block-Size Key - Hash Key First",
			"6",
			"",
			nil,
		},
	} {
		v, err := webhook.NewShort(webhook.Config{Provider: c.provider, Secrets: []string{c.secret}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		e, err := v.VerifyAt(time.Unix(c.at, 0), c.header, []byte(c.body))
		if !errors.Is(err, c.check) {
			t.Errorf("%s: %v", name, err)
		} else if wrong := err == nil &&
			(e.ID != c.id || e.Type != c.kind || string(e.Body) != c.body); wrong {
			t.Errorf("%s: %+v", name, e)
		}
		if _, err = v.VerifyAt(time.Unix(c.at, 0), c.header, []byte(c.body+" ")); !errors.Is(err, webhook.ErrSignature) {
			t.Errorf("%s, with a byte more: %v", name, err)
		}
	}
}

// Requests that the providers' libraries publish as bad ones.
func TestPublishedBadVectors(t *testing.T) {
	t.Parallel()
	v := verifier(t, webhook.Standard{}, standardSecret)
	for _, signature := range []string{
		"v1,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc=", "v1,", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLawdd",
		"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OA=", "v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
	} {
		refuses(
			t,
			v,
			headers("webhook-id", msgID, "webhook-timestamp", "1614265330", "webhook-signature", signature),
			`{"test": 2432232314}`,
			standardSecret,
		)
	}
	v = verifier(t, webhook.GitHub{}, "0123456789abcdef")
	for _, signature := range []string{"", "yo", "sha1=yo", "sha1=012345", "sha1=126f2c800419c60137ce748d7672e77b65cf16d6"} {
		refuses(
			t,
			v,
			headers("X-Hub-Signature-256", signature, "X-Hub-Signature", signature, "X-GitHub-Delivery", "d", "X-GitHub-Event", "push"),
			`{"yo":true}`,
			"0123456789abcdef",
		)
	}
	v = verifier(t, webhook.Shopify{}, "hushhushhushhush")
	for _, signature := range []string{
		"",
		"YmxhaGJsYWgK",
		"hMTq0K2x7oyOjoBwGYeTj5oxfnaVYXzbanUG9aajpKIthissignatureisnowwaytoolongohmanicantbelievehowlongthisis=",
	} {
		refuses(
			t,
			v,
			headers("X-Shopify-Hmac-Sha256", signature, "X-Shopify-Webhook-Id", "w", "X-Shopify-Topic", "a/b"),
			"my secret message",
			"hushhushhushhush",
		)
	}
	// Stripe's tests have these headers (stripe-go, webhook/client_test.go).
	v = verifier(t, webhook.Stripe{}, "whsec_test_secret")
	for _, signature := range []string{"", "v1,t=1", "t=", "t=1", "t=1,v1=bad_signature"} {
		refuses(t, v, headers("Stripe-Signature", signature), `{"id":"evt_1"}`, "whsec_test_secret")
	}
}
