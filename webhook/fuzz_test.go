package webhook_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/webhook"
	"github.com/onlyonce/onlyonce/webhook/internal/received"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// A list in Standard's header can be written again, and is then the same.
func FuzzStandardSignatures(f *testing.F) {
	for _, s := range []string{
		"",
		" ",
		",",
		"v1,",
		"v1a,",
		"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
		"v9,x v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= ",
		"v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg==",
		strings.Repeat("v1, ", 20),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		found, err := webhook.StandardSignatures(list)
		wrong := err != nil && (found != nil || !errors.Is(err, webhook.ErrMalformed)) ||
			len(found) > 16
		if wrong {
			t.Fatalf("%v %v", found, err)
		}
		at := 0
		for _, s := range found {
			text := "v1," + b64(s.Value)
			if s.Algorithm == scheme.Ed25519 {
				text = "v1a," + b64(s.Value)
			}
			i := strings.Index(list[at:], text)
			if i < 0 {
				t.Fatalf("%q is not in %q behind %d", text, list, at)
			}
			at += i + len(text)
		}
	})
}

func FuzzStripeSignature(f *testing.F) {
	for _, s := range []string{
		"",
		"t=1",
		"t=1,v1=",
		"v1=aa,t=1",
		"t=1,t=1",
		"t=01",
		"t=+1",
		"t=1,v1=" + strings.Repeat("ab", 32),
		"t=1,v1=" + strings.Repeat("AB", 32) + ",v0=x,=,a",
		strings.Repeat("v1=,", 20),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		written, at, found, err := webhook.StripePairs(list)
		if err != nil {
			good := written == "" &&
				found == nil &&
				at.IsZero() &&
				errors.Is(err, webhook.ErrMalformed)
			if !good {
				t.Fatalf("%q %v %v %v", written, at, found, err)
			}
			return
		}
		if len(found) > 16 || unix(at) != written || !strings.Contains(","+list+",", ",t="+written+",") {
			t.Fatalf("%q: %q %v", list, written, at)
		}
	})
}

func FuzzUnixTime(f *testing.F) {
	for _, s := range []string{
		"", "0", "00", "1", "-1", "+1", " 1", "1e3", "0x1", "1_0", "٣", "99999999999",
		"999999999999", "99999999999999", "999999999999999",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if at, err := received.UnixTime("f", s, time.Second); err == nil && (unix(at) != s || at.Year() > 5138) {
			t.Fatalf("%q is %v", s, at)
		}
		if at, err := received.UnixTime("f", s, time.Millisecond); err == nil && (at.UnixMilli() < 0 || at.Year() > 5138) {
			t.Fatalf("%q is %v", s, at)
		}
	})
}

// Bytes can be written in one way only.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{"", "ab", "AB", "a", "abc", "QQ==", "QR==", "QQ", "QQ=\n=", "QQ==\n", "-_-_", "+/+/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, ok := scheme.Hex.Decode(s)
		wrong := ok && strings.TrimPrefix(hex256(b), "sha256=") != s || !ok && b != nil
		if wrong {
			t.Fatalf("hexadecimal %q is %x", s, b)
		}
		b, ok = scheme.Base64.Decode(s)
		wrong = ok && b64(b) != s || !ok && b != nil
		if wrong {
			t.Fatalf("base64 %q is %x", s, b)
		}
	})
}

// The members that package webhook finds in a body are those that encoding/json finds, if that can
// be compared.
func FuzzMembers(f *testing.F) {
	for _, s := range []string{
		"", "{}", "{", "[]", `{"id":"a"}`, `{"id":"a","id":"b"}`, `{"ID":"a"}`,
		`{"id":{"id":"a"}}`, `{"id":"a"}{}`, `{"x":"\ud800","id":"\u0061"}`, `{"id":1}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		found := received.Members(body, "id")
		var all map[string]json.RawMessage
		object := json.Unmarshal(body, &all) == nil && all != nil
		if (found != nil) != object {
			t.Fatalf("an object: %v, encoding/json: %v", found != nil, object)
		}
		var want string
		if json.Unmarshal(all["id"], &want) == nil &&
			received.String(found["id"]) != want &&
			bytes.Count(body, []byte("id"))+bytes.Count(body, []byte("\\")) == 1 {
			t.Fatalf("%s, encoding/json has %q", found["id"], want)
		}
	})
}

// No headers make a provider panic, or make it accept an unsigned request.
func FuzzVerify(f *testing.F) {
	f.Add(unix(now), "v1,"+b64(make([]byte, 32)), msgID, []byte("{}"))
	f.Add(unix(now), "t="+unix(now)+",v1="+strings.Repeat("0", 64), "a.b", []byte("{}"))
	f.Add("", "sha256="+strings.Repeat("0", 64), "", []byte{0xff, 0})
	all := samples(f)
	verifiers := map[string]*webhook.Verifier{}
	for name, s := range all {
		verifiers[name] = verifier(f, s.provider, s.secret)
	}
	f.Fuzz(func(t *testing.T, at, signature, id string, body []byte) {
		for name, v := range verifiers {
			h := http.Header{}
			for _, header := range all[name].signed {
				switch header {
				case all[name].sigs:
					h.Set(header, signature)
				default:
					h.Set(header, at)
					if strings.HasSuffix(header, "Id") {
						h.Set(header, id)
					}
				}
			}
			refuses(t, v, h, string(body), all[name].secret)
		}
	})
}
