package webhook_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/webhook"
)

// A good request is accepted, and the event is what was sent.
func TestGoodRequests(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s sample, v *webhook.Verifier) {
		e, err := v.VerifyAt(now, s.sign(s.secret, now, s.body), []byte(s.body))
		if err != nil {
			t.Fatal(err)
		}
		wrong := e.ID != s.id ||
			e.Type != s.kind ||
			string(e.Body) != s.body ||
			e.Probe ||
			e.Time.IsZero() != s.untimed ||
			!s.untimed && !e.Time.Equal(now)
		if wrong {
			t.Errorf("%+v", e)
		}
	})
}

// W3: the raw bytes are what was signed, to the last bit.
func TestW3EveryBitOfTheBodyCounts(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s sample, v *webhook.Verifier) {
		h := s.sign(s.secret, now, s.body)
		for i := range len(s.body) {
			for bit := range 8 {
				b := []byte(s.body)
				b[i] ^= 1 << bit
				refuses(t, v, h, string(b), s.secret, webhook.ErrSignature)
			}
			refuses(t, v, h, s.body[:i], s.secret, webhook.ErrSignature)
			refuses(t, v, h, s.body[:i]+"\x00"+s.body[i:], s.secret, webhook.ErrSignature)
		}
		var indented bytes.Buffer
		_ = json.Indent(&indented, []byte(s.body), "", "  ")
		for _, other := range []string{
			"\ufeff" + s.body,
			s.body + "\n",
			s.body + "\x00",
			s.body + "\xff",
			" " + s.body,
			s.body + s.body,
			strings.ToUpper(s.body),
			indented.String() + " ",
		} {
			refuses(t, v, h, other, s.secret, webhook.ErrSignature)
		}
	})
}

// W4: headers that are signed, or hold signatures, count to the last byte; none of these was
// signed.
func TestW4EveryByteOfTheHeadersCounts(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s sample, v *webhook.Verifier) {
		good := s.sign(s.secret, now, s.body)
		for _, name := range s.signed {
			value := good.Get(name)
			try := func(lines ...string) {
				t.Helper()
				h := good.Clone()
				h[name] = lines
				refuses(t, v, h, s.body, s.secret, webhook.ErrMalformed, webhook.ErrSignature)
			}
			try()
			try("")
			try(value, value)
			try(value, "")
			try("", value)
			for reason, lines := range map[string][]string{"is missing": nil, "occurs more than once": {value, value}} {
				h := good.Clone()
				h[name] = lines
				if _, err := v.VerifyAt(now, h, []byte(s.body)); err == nil || !strings.Contains(err.Error(), reason) {
					t.Errorf("%s: %v, want: %s", name, err, reason)
				}
			}
			try(value, "x")
			try(value + ", " + value)
			try(strings.Repeat("x", 5000))
			try(value + strings.Repeat(" ", 5000))
			for i := range len(value) {
				try(value[:i])
				for _, c := range []byte{value[i] ^ 1, value[i] ^ 0x20, value[i] ^ 0x80, 0, ' ', '\t', '\n', '.', '0', '_', '='} {
					if c != value[i] {
						try(value[:i] + string([]byte{c}) + value[i+1:])
					}
				}
				for _, more := range []string{"\x00", "\xff", "é", "\n", "\r\n", "\t", "0", "+", ".", "="} {
					try(value[:i] + more + value[i:])
				}
			}
			for _, more := range []string{"\x00", "\xff", "\n", " ", "\t", "0", ".", "=", "=="} {
				try(value + more)
			}
			h := good.Clone()
			delete(h, name)
			h[strings.ToLower(name)] = []string{value} // no server makes such a map
			refuses(t, v, h, s.body, s.secret, webhook.ErrMalformed)
		}
	})
}

// W4: a signature is one of a configured secret, over this request, with this algorithm, in its one
// writing.
func TestW4SignaturesThatAreNone(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s sample, v *webhook.Verifier) {
		good := s.sign(s.secret, now, s.body)
		for _, secret := range []string{"", "x", s.secret + "x", strings.ToUpper(s.secret), "whsec_" + strings.Repeat("A", 32)} {
			refuses(t, v, s.sign(secret, now, s.body), s.body, s.secret, webhook.ErrSignature)
		}
		refuses(t, v, s.sign(s.secret, now, s.body+" "), s.body, s.secret, webhook.ErrSignature)
		if !s.untimed {
			h := s.sign(s.secret, now, s.body)
			for _, name := range s.signed { // the time of another request
				if name != s.sigs {
					h.Set(name, s.sign(s.secret, now.Add(time.Second), s.body).Get(name))
				}
			}
			if len(s.signed) > 1 {
				refuses(t, v, h, s.body, s.secret, webhook.ErrSignature)
			}
		}
		value := good.Get(s.sigs)
		lead := value[:strings.LastIndexAny(value, ", ")+1]
		last := value[strings.LastIndexAny(value, ", ")+1:]
		if strings.HasPrefix(value, "v1") { // Standard's comma is inside of the signature
			lead = ""
			last = value
		}
		bits := decode(t, last)
		write := func(text string) http.Header {
			h := good.Clone()
			h.Set(s.sigs, lead+text)
			return h
		}
		whole := s.raw(bits)
		if strings.HasPrefix(whole, "sig ") {
			lead = ""
		}
		if _, err := v.VerifyAt(now, write(whole), []byte(s.body)); err != nil {
			t.Fatalf("the test does not write signatures as it should: %v", err)
		}
		tag := s.raw(nil)
		for _, text := range []string{
			s.raw(nil),
			s.raw(bits[:1]),
			s.raw(bits[:len(bits)-1]),
			s.raw(append(bits[:len(bits):len(bits)], 0)),
			s.raw(append(bits[:len(bits):len(bits)], bits...)),
			s.raw(make([]byte, len(bits))),
			s.raw(make([]byte, 64)),
			s.raw(make([]byte, 32)),
			tag + strings.ToUpper(hex.EncodeToString(bits)),
			tag + "0x" + hex.EncodeToString(bits),
			tag + base64.RawStdEncoding.EncodeToString(bits),
			tag + base64.URLEncoding.EncodeToString(bits) + "\n",
			tag + b64(bits)[:20] + "\n" + b64(bits)[20:],
			tag + b64(bits) + "\r\n",
			tag + b64(bits)[:4] + " " + b64(bits)[4:],
			tag + stray(b64(bits)),
			tag + string(bits),
			strings.TrimPrefix(whole, tag) + tag,
			"v0=" + hex.EncodeToString(bits) + "0",
			"v9," + b64(bits),
			"V1," + b64(bits),
			"v1a," + b64(bits) + "=",
			"sha1=" + hex.EncodeToString(bits[:20]),
			"none",
			"v1=",
			"v1,",
			"v1a,",
			"v0=",
			"sha256=",
			"=",
			",",
			" ",
			"{}",
		} {
			if text != whole {
				refuses(t, v, write(text), s.body, s.secret, webhook.ErrMalformed, webhook.ErrSignature)
			}
		}
	})
	// SHA-1 in GitHub's older header does not count, even if it is right.
	s := samples(t)["GitHub"]
	h := s.sign(s.secret, now, s.body)
	h.Del("X-Hub-Signature-256")
	h.Set("X-Hub-Signature", "sha1="+hex.EncodeToString(mac(sha1.New, s.secret, s.body)))
	refuses(t, verifier(t, s.provider, s.secret), h, s.body, s.secret, webhook.ErrMalformed)
	h.Set("X-Hub-Signature-256", h.Get("X-Hub-Signature"))
	refuses(t, verifier(t, s.provider, s.secret), h, s.body, s.secret, webhook.ErrMalformed)
}

// stray sets a bit of the last character that encodes no byte: base64 that decodes to the same.
func stray(s string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	n := len(strings.TrimRight(s, "="))
	if n == len(s) {
		return s + "AA=="
	}
	return s[:n-1] + string(alphabet[strings.IndexByte(alphabet, s[n-1])|1]) + s[n:]
}

func decode(t *testing.T, s string) []byte {
	t.Helper()
	if i := strings.IndexAny(s, ",="); i >= 0 && i < 8 {
		s = s[i+1:]
	}
	if b, err := hex.DecodeString(s); err == nil {
		return b
	}
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	return b
}

// W4: a public key is no secret. Used as the secret of an HMAC it verifies nothing, in any form.
func TestW4PublicKeyIsNoSecret(t *testing.T) {
	t.Parallel()
	_, public := ed25519Pair(t)
	v := verifier(t, webhook.Standard{}, public, standardSecret)
	const body = `{"test": 2432232314}`
	raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(public, "whpk_"))
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{public, string(raw), strings.TrimPrefix(public, "whpk_")} {
		sum := mac(sha256.New, secret, msgID, ".", unix(now), ".", body)
		for _, version := range []string{"v1", "v1a", "v1,v1a", "v1a,v1"} {
			refuses(
				t,
				v,
				headers("webhook-id", msgID, "webhook-timestamp", unix(now), "webhook-signature", version+","+b64(sum)),
				body,
				standardSecret,
			)
		}
	}
	// The other way round: an Ed25519 signature by a key made of the HMAC's secret.
	seed := sha256.Sum256([]byte(standardSecret))
	sig := ed25519.Sign(ed25519.NewKeyFromSeed(seed[:]), []byte(msgID+"."+unix(now)+"."+body))
	for _, version := range []string{"v1", "v1a"} {
		refuses(
			t,
			v,
			headers("webhook-id", msgID, "webhook-timestamp", unix(now), "webhook-signature", version+","+b64(sig)),
			body,
			standardSecret,
		)
	}
}

// Two requests never have the same signed bytes: a signature of one is not valid for another whose
// fields end elsewhere.
func TestBordersOfSignedFields(t *testing.T) {
	t.Parallel()
	// "a.1614265330" at 1614265331 signs what "a" at 1614265330 does with a body that begins with
	// "1614265331.".
	v := verifier(t, webhook.Standard{}, standardSecret)
	const body = "x"
	sum := "v1," + b64(standardMAC(standardSecret, "a.1614265330", "1614265331", body))
	refuses(
		t,
		v,
		headers("webhook-id", "a.1614265330", "webhook-timestamp", "1614265331", "webhook-signature", sum),
		body,
		standardSecret,
		webhook.ErrMalformed,
	)
	h := headers("webhook-id", "a", "webhook-timestamp", "1614265330", "webhook-signature", sum)
	if _, err := v.VerifyAt(now, h, []byte("1614265331."+body)); err != nil {
		t.Fatalf("the test does not sign what it should: %v", err)
	}
	refuses(t, v, headers("webhook-id", "a.1614265330", "webhook-timestamp", "1614265331.", "webhook-signature", sum), body, standardSecret)

	// The same in a layout of one's own, with fields after the body.
	s := samples(t)["HMAC"]
	v = verifier(t, s.provider, s.secret)
	h = s.sign(s.secret, now, s.body)
	if _, err := v.VerifyAt(now, h, []byte(s.body)); err != nil {
		t.Fatal(err)
	}
	h.Set("X-Acme-Id", "|e/1")
	refuses(t, v, h, s.body, s.secret, webhook.ErrMalformed)
}

// 1,000 signatures are refused before anything is computed, whatever they are, and so are 17; 16
// are not.
func TestW4SignaturesAreBounded(t *testing.T) {
	all := samples(t)
	for name, c := range map[string]struct{ between, bad, unknown string }{
		"Standard v1":     {" ", "v1," + b64(make([]byte, 32)), "v9,x"},
		"Svix v1a":        {" ", "v1a," + b64(make([]byte, 64)), "v9,x"},
		"Stripe":          {",", "v1=" + strings.Repeat("0", 64), "v9=x"},
		"HMAC with pairs": {",", "s=" + strings.Repeat("0", 64), "v9=x"},
	} {
		s := all[name]
		v := verifier(t, s.provider, s.secret)
		h := s.sign(s.secret, now, s.body)
		good := h.Get(s.sigs)
		for _, other := range []string{c.bad, c.unknown} {
			h.Set(s.sigs, good+strings.Repeat(c.between+other, 15))
			if _, err := v.VerifyAt(now, h, []byte(s.body)); err != nil {
				t.Errorf("%s: 16: %v", name, err)
			}
			for _, n := range []int{16, 17, 999, 100_000} {
				h.Set(s.sigs, good+strings.Repeat(c.between+other, n))
				refuses(t, v, h, s.body, s.secret, webhook.ErrMalformed)
			}
			const rounds = 200
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range rounds {
				_, _ = v.VerifyAt(now, h, []byte("x"))
			}
			runtime.ReadMemStats(&after)
			if used := (after.TotalAlloc - before.TotalAlloc) / rounds; used > 1024 {
				t.Errorf("%s: refusing 100,000 signatures takes %d bytes", name, used)
			}
		}
	}
}

// Bytes that are no text: if it is signed, a body may be anything, and the fields of the event are
// valid text.
func TestBytesThatAreNoText(t *testing.T) {
	t.Parallel()
	all := samples(t)
	for _, name := range []string{"Standard v1", "Svix v1a", "GitHub", "Shopify"} {
		s := all[name]
		v := verifier(t, s.provider, s.secret)
		for _, body := range []string{
			"",
			"\x00",
			"\xff\xfe",
			"a=b&c=%00",
			strings.Repeat("[", 100_000),
			`{"type":"a` + "\x00" + `"}`,
			`{"type":"\ud800"`,
			`{"type":7}`,
			`{"type":"a","type":"a"}`,
			`[{"type":"a"}]`,
		} {
			e, err := v.VerifyAt(now, s.sign(s.secret, now, body), []byte(body))
			if err != nil || string(e.Body) != body || e.ID != s.id {
				t.Errorf("%s, %.20q: %v", name, body, err)
			} else if strings.HasPrefix(s.kind, "user") && e.Type != "" {
				t.Errorf("%s, %.20q: type %q", name, body, e.Type)
			}
		}
	}
	// If the body holds the id, it must be there, once, in a form that is a key.
	for name, member := range map[string]string{"Stripe": "id", "Slack": "event_id", "HMAC with pairs": "id"} {
		s := all[name]
		v := verifier(t, s.provider, s.secret)
		for _, body := range []string{
			"",
			"\x00",
			"\xff",
			"null",
			"[]",
			`""`,
			"{}",
			"{",
			`{"%s":"a"}{}`,
			`{"%s":"a"} x`,
			`{"%s":7}`,
			`{"%s":null}`,
			`{"%s":""}`,
			`{"%s":["a"]}`,
			`{"%s":{"%[1]s":"a"}}`,
			`{"%s":"a","%[1]s":"b"}`,
			`{"%s":"a","%[1]s":"a"}`,
			`{"%s":"a b"}`,
			`{"%s":"é"}`,
			`{"%s":"\u0000"}`,
			`{"%s":"` + "\xff" + `"}`,
			`{"x":{"%s":"a"}}`,
			`{" %s":"a"}`,
			`{"%s":"` + strings.Repeat("a", 256) + `"}`,
			"\ufeff" + `{"%s":"a"}`,
			`{'%s':'a'}`,
			"%s=a",
			strings.Repeat("[", 100_000),
		} {
			if strings.Contains(body, "%") {
				body = fmt.Sprintf(body, member)
			}
			refuses(t, v, s.sign(s.secret, now, body), body, s.secret, webhook.ErrMalformed)
		}
		for body, want := range map[string]string{
			`{"%s":"a"}`:                                  "a",
			` {"x":"\ud800","%s" : "\u0061"} `:            "a",
			`{"ID":"b","Id":"b","EVENT_ID":"b","%s":"a"}`: "a",
			`{"%s":"` + strings.Repeat("a", 255) + `"}`:   strings.Repeat("a", 255),
		} {
			body = fmt.Sprintf(body, member)
			if e, err := v.VerifyAt(now, s.sign(s.secret, now, body), []byte(body)); err != nil || e.ID != want {
				t.Errorf("%s, %s: %v %+v", name, body, err, e)
			}
		}
	}
}
