package httpsink_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
)

// Each profile sends the same 128 bits in the place that its provider documents, within its limits.
func TestProfiles(t *testing.T) {
	var header http.Header
	var body string
	base, requests := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		header = r.Header.Clone()
		body = string(b)
	})
	const hour = time.Hour
	for name, c := range map[string]struct {
		profile httpsink.Profile
		window  time.Duration // in the configuration
		header  string
		want    string
		limit   time.Duration
	}{
		"none":         {httpsink.Profile{}, 3 * hour, "Idempotency-Key", key, 3 * hour},
		"Stripe":       {httpsink.Stripe(), 0, "Idempotency-Key", key, 24 * hour},
		"PayPal":       {httpsink.PayPal(), 0, "Paypal-Request-Id", key, 6 * hour},
		"PayPal, 72 h": {httpsink.PayPal(), 72 * hour, "Paypal-Request-Id", key, 72 * hour},
		"Adyen":        {httpsink.Adyen(), 0, "Idempotency-Key", key, 168 * hour},
		"Standard":     {httpsink.Standard(), hour, "Idempotency-Key", `"` + key + `"`, hour},
		"Square":       {httpsink.Square(), hour, "", "", hour},
		"own":          {httpsink.Profile{Header: "x-key", KeyWindow: hour}, 0, "X-Key", key, hour},
		"own, forever": {httpsink.Profile{Quoted: true}, outbox.Forever, "Idempotency-Key", `"` + key + `"`, outbox.Forever},
	} {
		s := newSink(t, base, func(cfg *httpsink.Config) {
			cfg.Profile = c.profile
			cfg.KeyWindow = c.window
		})
		if l := s.Limits(); l.KeyWindow != c.limit {
			t.Errorf("%s: a window of %v, want %v", name, l.KeyWindow, c.limit)
		}
		a := delivery()
		a.Body = []byte(`{"a":1}`)
		if r := s.Send(t.Context(), a); r.Outcome != outbox.Delivered {
			t.Fatalf("%s: %+v", name, r)
		}
		wantBody := `{"a":1}`
		if c.header == "" {
			wantBody = `{"idempotency_key":"` + key + `","a":1}`
		} else if got := header[c.header]; len(got) != 1 || got[0] != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
		if body != wantBody || (c.header != "Idempotency-Key") != (header["Idempotency-Key"] == nil) {
			t.Errorf("%s: body %s, header %v", name, body, header)
		}
	}
	before := requests.Load()
	a := delivery()
	a.Key = "not-a-uuid"
	if r := newSink(t, base).Send(t.Context(), a); r.Outcome != outbox.Rejected {
		t.Errorf("%+v", r)
	}
	if requests.Load() != before {
		t.Error("a request without a key was made")
	}
}

// The guide's table says of each profile where the key goes and for how long it is remembered.
func TestProfilesOfTheGuide(t *testing.T) {
	page, err := os.ReadFile("../../docs/guide/calls.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]httpsink.Profile{
		"Stripe":   httpsink.Stripe(),
		"PayPal":   httpsink.PayPal(),
		"Adyen":    httpsink.Adyen(),
		"Square":   httpsink.Square(),
		"Standard": httpsink.Standard(),
	} {
		_, row, found := strings.Cut(string(page), "| ["+name+"](")
		cells := strings.Split(row, "|")
		if !found || len(cells) < 5 {
			t.Errorf("%s: no row", name)
			continue
		}
		window := "yours"
		if p.KeyWindow > 0 {
			window = fmt.Sprintf("%.0f h", p.KeyWindow.Hours())
		}
		place := "`" + cmp.Or(p.Header, p.BodyMember, "Idempotency-Key") + "`"
		if !strings.Contains(cells[1], place) ||
			strings.TrimSpace(cells[3]) != window ||
			strings.Contains(cells[1], "in quotes") != p.Quoted {
			t.Errorf("%s: the row says %s and %s, the profile %s and %s", name, cells[1], cells[3], place, window)
		}
	}
}

// A key in the body comes first and leaves the rest unchanged, the same in each attempt; otherwise
// the call is rejected.
func TestKeyInTheBody(t *testing.T) {
	var body []byte
	base, requests := serve(t, func(_ http.ResponseWriter, r *http.Request) { body, _ = io.ReadAll(r.Body) })
	s := newSink(t, base, func(c *httpsink.Config) {
		c.Profile = httpsink.Square()
		c.Authorize = func(r *http.Request) error { _, err := io.ReadAll(r.Body); return err }
	})
	for given, want := range map[string]string{
		"{}":                                   `{"idempotency_key":"` + key + `"}`,
		" {\n }":                               ` {"idempotency_key":"` + key + "\"\n }",
		`{"n":1.10,"a":{"idempotency_key":2}}`: `{"idempotency_key":"` + key + `","n":1.10,"a":{"idempotency_key":2}}`,
	} {
		for range 2 {
			a := delivery()
			a.Body = []byte(given)
			if r := s.Send(t.Context(), a); r.Outcome != outbox.Delivered || string(body) != want || !json.Valid(body) {
				t.Errorf("%q: %+v, sent %s", given, r, body)
			}
		}
	}
	before := requests.Load()
	for _, given := range []string{
		"", "null", "[]", `"a"`, "{", `{"a":1}{`, `{"a":1} x`, `{"a" 1}`, "\ufeff{}",
		`{"idempotency_key":"mine"}`, `{"a":1,"Idempotency_Key":1}`, `{"idempotency\u005fkey":1}`,
	} {
		a := delivery()
		a.Body = []byte(given)
		if r := s.Send(t.Context(), a); r.Outcome != outbox.Rejected ||
			!strings.HasPrefix(r.Reason, "body: ") ||
			strings.Contains(r.Reason, "mine") {
			t.Errorf("%q: %+v", given, r)
		}
	}
	if requests.Load() != before {
		t.Error("requests were made")
	}
}

func TestProfileFaults(t *testing.T) {
	for want, change := range map[string]func(*httpsink.Config){
		"KeyWindow: must be set": func(c *httpsink.Config) {
			c.Profile = httpsink.Square()
			c.KeyWindow = 0
		},
		"exclude each other":          func(c *httpsink.Config) { c.Profile = httpsink.Profile{Header: "A", BodyMember: "b"} },
		"Profile.Header: is \"a b\"":  func(c *httpsink.Config) { c.Profile = httpsink.Profile{Header: "a b"} },
		"must be letters":             func(c *httpsink.Config) { c.Profile = httpsink.Profile{BodyMember: `a"b`} },
		"Profile.Quoted: must not be": func(c *httpsink.Config) { c.Profile = httpsink.Profile{BodyMember: "a", Quoted: true} },
		"Profile.KeyWindow: is -1ns":  func(c *httpsink.Config) { c.Profile = httpsink.Profile{KeyWindow: -1} },
		"KeyWindow: must be set: how": func(c *httpsink.Config) { c.KeyWindow = -1 },
	} {
		cfg := httpsink.Config{Name: "x", BaseURL: "https://a.example", KeyWindow: time.Hour}
		change(&cfg)
		if _, err := httpsink.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("nothing says %q: %v", want, err)
		}
	}
}
