package webhook_test

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/webhook"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// W2: a body over the limit is refused before anything is read of the request.
func TestW2BodyOverTheLimit(t *testing.T) {
	t.Parallel()
	s := samples(t)["Shopify"]
	for limit, n := range map[int]int{0: 1 << 20, 10: 10, 32 << 20: 32 << 20} {
		v, err := webhook.NewVerifier(webhook.Config{Provider: s.provider, Secrets: []string{s.secret}, MaxBody: limit})
		if err != nil {
			t.Fatal(err)
		}
		body := strings.Repeat("x", n)
		if _, err := v.VerifyAt(now, s.sign(s.secret, now, body), []byte(body)); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
		body += "x"
		for _, h := range []http.Header{s.sign(s.secret, now, body), nil} {
			_, err = v.VerifyAt(now, h, []byte(body))
			if !errors.Is(err, webhook.ErrTooLarge) {
				t.Errorf("%d bytes and one: %v", n, err)
			}
		}
	}
}

// W4: while a secret is being replaced, requests signed with either count; afterwards the old one
// does not.
func TestW4Rotation(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s sample, _ *webhook.Verifier) {
		others := make([]string, 7)
		for i := range others {
			others[i] = fmt.Sprintf("whsec_%031d%d", i, i)
		}
		for i := range 8 {
			v := verifier(t, s.provider, slices.Insert(slices.Clone(others), i, s.secret)...)
			e, err := v.VerifyAt(now, s.sign(s.secret, now, s.body), []byte(s.body))
			if err != nil || e.ID != s.id {
				t.Errorf("secret %d of 8: %v", i, err)
			}
			refuses(t, v, s.sign("whsec_"+strings.Repeat("9", 32), now, s.body), s.body, s.secret, webhook.ErrSignature)
		}
		refuses(t, verifier(t, s.provider, others...), s.sign(s.secret, now, s.body), s.body, s.secret, webhook.ErrSignature)
	})
}

// W4: senders sign with both secrets while one is being replaced; unknown versions are skipped,
// before and after known ones.
func TestW4UnknownVersionsArePassedOver(t *testing.T) {
	t.Parallel()
	all := samples(t)
	for name, around := range map[string][2]string{
		"Standard v1":     {"v0,x v2,%% v1a," + strings.Repeat("A", 86) + "== ", " v1,none v99,x"},
		"Svix v1a":        {"v1,x ", " v1b,x"},
		"Stripe":          {"v0=x,w=%%,v1=none,", ",v2=x,v1=" + strings.Repeat("0", 64)},
		"HMAC with pairs": {"v0=x,", ",t=1,v1=x"},
	} {
		s := all[name]
		h := s.sign(s.secret, now, s.body)
		h.Set(s.sigs, around[0]+h.Get(s.sigs)+around[1])
		if _, err := verifier(t, s.provider, s.secret).VerifyAt(now, h, []byte(s.body)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := all["Standard v1"] // and alone they are no signature
	h := s.sign(s.secret, now, s.body)
	h.Set(s.sigs, "v2,x v3,x")
	refuses(t, verifier(t, s.provider, s.secret), h, s.body, s.secret, webhook.ErrSignature)
	for _, name := range []string{"Stripe", "Standard v1", "HMAC with pairs"} { // right as they are
		s := all[name]
		for _, version := range []string{"v0", "v2", "v10", "v", "V1", "S"} {
			h := s.sign(s.secret, now, s.body)
			h.Set(s.sigs, strings.NewReplacer("v1=", version+"=", "v1,", version+",", ",s=", ","+version+"=").Replace(h.Get(s.sigs)))
			refuses(t, verifier(t, s.provider, s.secret), h, s.body, s.secret, webhook.ErrSignature)
		}
	}
}

// W4: a request with both families of headers is refused: no reader may choose one of them.
func TestW4TwoFamiliesOfHeaders(t *testing.T) {
	t.Parallel()
	all := samples(t)
	a := all["Standard v1"]
	b := all["Svix v1a"]
	v := verifier(t, webhook.Standard{}, a.secret, b.secret)
	for _, mine := range []sample{a, b} {
		for _, name := range slices.Concat(a.signed, b.signed) {
			h := mine.sign(mine.secret, now, mine.body)
			if h.Get(name) != "" {
				continue
			}
			for _, value := range []string{"", msgID, unix(now)} {
				h[name] = []string{value}
				refuses(t, v, h, mine.body, mine.secret, webhook.ErrMalformed)
			}
		}
	}
}

// W5: only signed requests are reported as stale; each scheme has its tolerance, to the second.
func TestW5SignatureThenFreshness(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s sample, v *webhook.Verifier) {
		try := func(off time.Duration, want error) {
			t.Helper()
			h := s.sign(s.secret, now.Add(off), s.body)
			if _, err := v.VerifyAt(now, h, []byte(s.body)); !errors.Is(err, want) || (want == nil) != (err == nil) {
				t.Errorf("%v off: %v, want %v", off, err, want)
			}
			refuses(t, v, h, s.body+"x", s.secret, webhook.ErrSignature)
			refuses(t, v, s.sign(s.secret+"x", now.Add(off), s.body), s.body, s.secret, webhook.ErrSignature)
		}
		const limit, second = 5 * time.Minute, time.Second
		past := webhook.ErrStale
		future := webhook.ErrStale
		if s.untimed {
			past = nil
			future = nil
		}
		if _, ok := s.provider.(webhook.Stripe); ok {
			future = nil
		}
		try(-limit, nil)
		try(-limit-second, past)
		try(-1000*time.Hour, past)
		try(limit, nil)
		try(limit+second, future)
		try(1000*time.Hour, future)
	})
}

// W5: Config.Tolerance counts in the directions that the scheme checks.
func TestW5Tolerance(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s sample, _ *webhook.Verifier) {
		if s.untimed {
			return
		}
		_, past := s.provider.(webhook.Stripe)
		for _, tolerance := range []time.Duration{time.Second, time.Hour} {
			v, err := webhook.NewVerifier(webhook.Config{Provider: s.provider, Secrets: []string{s.secret}, Tolerance: tolerance})
			if err != nil {
				t.Fatal(err)
			}
			for off, want := range map[time.Duration]error{
				-tolerance:               nil,
				tolerance:                nil,
				-tolerance - time.Second: webhook.ErrStale,
				tolerance + time.Second:  webhook.ErrStale,
			} {
				if past && off > 0 {
					want = nil
				}
				if _, err := v.VerifyAt(now, s.sign(s.secret, now.Add(off), s.body), []byte(s.body)); !errors.Is(err, want) ||
					(want == nil) != (err == nil) {
					t.Errorf("%v, %v off: %v", tolerance, off, err)
				}
			}
		}
	})
}

// forgetful is a scheme that promises a time to be checked in one direction, and whose Read returns
// none.
type forgetful struct{ webhook.Slack }

func (f forgetful) Scheme() (*scheme.Scheme, error) {
	s, err := f.Slack.Scheme()
	s.Past = 0
	read := s.Read
	s.Read = func(f scheme.Fields) (scheme.Signed, error) {
		signed, err := read(f)
		signed.Time = time.Time{}
		return signed, err
	}
	return s, err
}

func TestW5SchemeWithoutItsTimeIsStale(t *testing.T) {
	t.Parallel()
	s := samples(t)["Slack"]
	refuses(t, verifier(t, forgetful{}, s.secret), s.sign(s.secret, now, s.body), s.body, s.secret, webhook.ErrStale)
}

// W6: 413, 400 and 401, one for bad and stale alike, and never another.
func TestW6Statuses(t *testing.T) {
	t.Parallel()
	for check, want := range map[error]int{
		webhook.ErrTooLarge: 413, webhook.ErrMalformed: 400, webhook.ErrSignature: 401, webhook.ErrStale: 401, errors.New("other"): 400,
	} {
		if got := (&webhook.Error{Check: check}).Status(); got != want {
			t.Errorf("%v: %d, want %d", check, got, want)
		}
	}
	each(t, func(t *testing.T, s sample, v *webhook.Verifier) {
		for _, h := range []http.Header{nil, {}, headers(s.sigs, "x")} {
			_, err := v.VerifyAt(now, h, []byte(s.body))
			var e *webhook.Error
			good := errors.As(err, &e) &&
				e.Status() == 400 &&
				e.Provider != "" &&
				e.Field != ""
			if !good {
				t.Errorf("%v: %v", h, err)
			}
		}
	})
}

// careless is a provider whose own error quotes what it should not.
type careless struct{ webhook.GitHub }

var errCareless = errors.New("hush hush")

func (c careless) Scheme() (*scheme.Scheme, error) {
	s, err := c.GitHub.Scheme()
	s.Name = "careless"
	s.Event = func(scheme.Fields, *scheme.Event) error { return errCareless }
	return s, err
}

func TestW6ErrorsOfAProvider(t *testing.T) {
	t.Parallel()
	s := samples(t)["GitHub"]
	_, err := verifier(t, careless{}, s.secret).VerifyAt(now, s.sign(s.secret, now, s.body), []byte(s.body))
	good := errors.Is(err, webhook.ErrMalformed) &&
		errors.Is(err, errCareless) &&
		!strings.Contains(err.Error(), "hush") &&
		strings.Contains(err.Error(), "careless")
	if !good {
		t.Errorf("%v", err)
	}
}

// W7: the event says whether its id is signed; an id that is not can be changed, and one that is
// cannot.
func TestW7UnsignedIDsAreMarked(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s sample, v *webhook.Verifier) {
		e, err := v.VerifyAt(now, s.sign(s.secret, now, s.body), []byte(s.body))
		if err != nil || e.IDSigned == s.renamed {
			t.Errorf("%v %+v", err, e)
		}
	})
	p := webhook.HMAC{Name: "acme", SignatureHeader: "X-Sig", IDHeader: "X-Id"}
	v := verifier(t, p, "0123456789abcdef")
	for _, id := range []string{"a", "b"} {
		e, err := v.VerifyAt(now, headers("X-Id", id, "X-Sig", fmt.Sprintf("%x", mac256("0123456789abcdef", "x"))), []byte("x"))
		if err != nil || e.IDSigned || e.ID != id {
			t.Errorf("%v %+v", err, e)
		}
	}
}

// W7: one event of Shopify's that arrives under two topics is two; two subscriptions to one topic
// may be one.
func TestW7ShopifyByEvent(t *testing.T) {
	t.Parallel()
	s := samples(t)["Shopify"]
	ids := map[string]bool{}
	v := verifier(t, webhook.Shopify{ByEvent: true}, s.secret)
	for _, topic := range []string{"orders/create", "orders/paid"} {
		for _, subscription := range []string{"1", "2"} {
			h := s.sign(s.secret, now, s.body)
			h.Set("X-Shopify-Topic", topic)
			h.Set("X-Shopify-Webhook-Id", subscription)
			h.Set("X-Shopify-Event-Id", "e")
			e, err := v.VerifyAt(now, h, []byte(s.body))
			if err != nil {
				t.Fatal(err)
			}
			ids[e.ID] = true
		}
	}
	if !reflect.DeepEqual(ids, map[string]bool{"orders/create/e": true, "orders/paid/e": true}) {
		t.Errorf("%v", ids)
	}
	refuses(t, v, s.sign(s.secret, now, s.body), s.body, s.secret, webhook.ErrMalformed) // without the event's id
}

// W7: ids are keys: visible ASCII, once, of bounded length.
func TestW7HeadersWithIDs(t *testing.T) {
	t.Parallel()
	all := samples(t)
	for name, header := range map[string]string{"GitHub": "X-Github-Delivery", "Shopify": "X-Shopify-Webhook-Id"} {
		s := all[name]
		v := verifier(t, s.provider, s.secret)
		for _, lines := range [][]string{
			nil,
			{""},
			{"a", "a"},
			{"a", "b"},
			{"a b"},
			{" a"},
			{"a\x00"},
			{"é"},
			{"\xff"},
			{strings.Repeat("a", 256)},
			{strings.Repeat("a", 1<<20)},
		} {
			h := s.sign(s.secret, now, s.body)
			h[header] = lines
			refuses(t, v, h, s.body, s.secret, webhook.ErrMalformed)
		}
	}
}

// W13: a probe is distinguished from an event, once it is verified.
func TestW13Probes(t *testing.T) {
	t.Parallel()
	all := samples(t)
	s := all["GitHub"]
	v := verifier(t, s.provider, s.secret)
	h := s.sign(s.secret, now, s.body)
	h.Set("X-GitHub-Event", "ping")
	e, err := v.VerifyAt(now, h, []byte(s.body))
	good := err == nil && e.Probe && e.ID == s.id && e.Type == "ping"
	if !good {
		t.Errorf("%v %+v", err, e)
	}
	refuses(t, v, h, s.body+"x", s.secret, webhook.ErrSignature)

	s = all["Slack"]
	v = verifier(t, s.provider, s.secret)
	const body = `{"token":"Jhj5dZrVaK7ZwHHjRyZWjbDl","challenge":"3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P",` +
		`"type":"url_verification"}`
	e, err = v.VerifyAt(now, s.sign(s.secret, now, body), []byte(body))
	good = err == nil &&
		e.Probe &&
		e.Challenge == "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P" &&
		e.ID == ""
	if !good {
		t.Errorf("%v %+v", err, e)
	}
	refuses(t, v, s.sign(s.secret+"x", now, body), body, s.secret, webhook.ErrSignature)
}

// W14: listed headers are kept, with their values and in their order. No others are, and none with
// which a reader could sign or log in.
func TestW14KeptHeaders(t *testing.T) {
	t.Parallel()
	s := samples(t)["GitHub"]
	v, err := webhook.NewVerifier(webhook.Config{
		Provider:    s.provider,
		Secrets:     []string{s.secret},
		KeepHeaders: []string{"x-request-id", "X-Github-Event", "Traceparent"},
	})
	if err != nil {
		t.Fatal(err)
	}
	request := func() http.Header {
		h := s.sign(s.secret, now, s.body)
		h.Set("Content-Type", "application/json")
		h["X-Request-Id"] = []string{"b", "a\tc"}
		for _, name := range []string{"Authorization", "Cookie", "X-Hub-Signature", "User-Agent", "X-Forwarded-For", "Traceparent2"} {
			h.Set(name, "x")
		}
		return h
	}
	h := request()
	e, err := v.VerifyAt(now, h, []byte(s.body))
	want := http.Header{
		"Content-Type":      {"application/json"},
		"X-Github-Delivery": {s.id},
		"X-Github-Event":    {"push"},
		"X-Request-Id":      {"b", "a\tc"},
	}
	if err != nil || !reflect.DeepEqual(e.Header, want) {
		t.Errorf("%v %v", err, e)
	}
	h["X-Request-Id"][0] = "changed"
	if e.Header.Get("X-Request-Id") != "b" {
		t.Error("the event's headers are the request's")
	}
	for _, lines := range [][]string{
		{"\x00"},
		{"\xff"},
		{"é"},
		{"a\nb"},
		{strings.Repeat("a", 4097)},
		slices.Repeat([]string{strings.Repeat("a", 4000)}, 5),
		slices.Repeat([]string{""}, 2000),
	} {
		h := request()
		h["X-Request-Id"] = lines
		refuses(t, v, h, s.body, s.secret, webhook.ErrMalformed)
		h["X-Request-Id"] = nil
		h["User-Agent"] = lines // a header that no check reads
		if _, err := v.VerifyAt(now, h, []byte(s.body)); err != nil {
			t.Error(err)
		}
	}
	each(t, func(t *testing.T, s sample, _ *webhook.Verifier) {
		for _, name := range []string{s.sigs, strings.ToLower(s.sigs), "authorization", "Cookie", "a b", ""} {
			_, err := webhook.NewVerifier(webhook.Config{
				Provider:    s.provider,
				Secrets:     []string{s.secret},
				KeepHeaders: []string{"X-Request-Id", name},
			})
			if err == nil || !strings.Contains(err.Error(), "KeepHeaders[1]") {
				t.Errorf("%q: %v", name, err)
			}
		}
	})
}

// bare is a scheme that returns the signatures of a header as they are, of any number and length.
type bare struct{}

func (bare) Scheme() (*scheme.Scheme, error) {
	return &scheme.Scheme{
		Name: "bare",
		Key: func(secret string) (scheme.Key, error) {
			if secret == string(make([]byte, 32)) {
				return scheme.PublicKey([]byte(secret))
			}
			return scheme.MACKey(scheme.HMACSHA256, []byte(secret))
		},
		Read: func(f scheme.Fields) (s scheme.Signed, err error) {
			list, err := f.One("X-Sigs")
			for text := range strings.SplitSeq(list, " ") {
				value, _ := scheme.Hex.Decode(text)
				s.Signatures = append(
					s.Signatures,
					scheme.Signature{Value: value},
					scheme.Signature{Algorithm: scheme.Ed25519, Value: value},
				)
			}
			return s, err
		},
		Event: func(_ scheme.Fields, e *scheme.Event) error { e.ID = "1"; return nil },
	}, nil
}

// W4: whatever a scheme returns, no more than 16 signatures are compared, and a part of a signature
// equals none.
func TestW4SignaturesOfAScheme(t *testing.T) {
	t.Parallel()
	const secret = "0123456789abcdef"
	v := verifier(t, bare{}, secret, string(make([]byte, 32)))
	sig := fmt.Sprintf("%x", mac256(secret, "x"))
	for list, want := range map[string]error{
		sig:                          nil,
		sig + strings.Repeat(" ", 7): nil,
		sig + strings.Repeat(" ", 8): webhook.ErrMalformed,
		strings.Repeat(" ", 7) + sig: nil,
		sig[:62]:                     webhook.ErrSignature,
		sig + "00":                   webhook.ErrSignature,
		"-":                          webhook.ErrSignature,
		"00":                         webhook.ErrSignature,
	} {
		if _, err := v.VerifyAt(now, headers("X-Sigs", list), []byte("x")); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%q: %v, want %v", list, err, want)
		}
	}
}

// W4: a header of a megabyte is not read, and neither is one of 4097 bytes that would otherwise be
// valid.
func TestW4HeadersAreBounded(t *testing.T) {
	t.Parallel()
	s := samples(t)["Stripe"]
	v := verifier(t, s.provider, s.secret)
	h := s.sign(s.secret, now, s.body)
	good := h.Get(s.sigs) + ",x="
	for n, want := range map[int]error{4096: nil, 4097: webhook.ErrMalformed, 1 << 20: webhook.ErrMalformed} {
		h.Set(s.sigs, good+strings.Repeat("x", n-len(good)))
		if _, err := v.VerifyAt(now, h, []byte(s.body)); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}
