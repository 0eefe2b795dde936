package httpsink_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
)

// A secret is looked up at each attempt and sent, and is found nowhere else (O12).
func TestSecrets(t *testing.T) {
	var got http.Header
	base, requests := serve(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Clone() })
	n := 0
	rotating := func(context.Context) (string, error) { n++; return fmt.Sprint("token-", n), nil }
	for name, c := range map[string]struct {
		authorize func(*http.Request) error
		header    string
		prefix    string
	}{
		"Bearer": {httpsink.Bearer(rotating), "Authorization", "Bearer "},
		"header": {httpsink.SecretHeader("x-api-key", rotating), "X-Api-Key", ""},
	} {
		s := newSink(t, base, func(cfg *httpsink.Config) { cfg.Authorize = c.authorize })
		a := delivery()
		for range 2 {
			if r := s.Send(t.Context(), a); r.Outcome != outbox.Delivered {
				t.Fatalf("%s: %+v", name, r)
			}
			if want := fmt.Sprint(c.prefix, "token-", n); got.Get(c.header) != want {
				t.Errorf("%s: %v, want %s", name, got, want)
			}
		}
		if len(a.Header) != 2 || a.Header.Get(c.header) != "" {
			t.Errorf("%s: the row's headers are %v", name, a.Header)
		}
	}
	if n != 4 {
		t.Errorf("%d look-ups for 4 attempts", n)
	}

	before := requests.Load()
	for name, f := range map[string]func(*http.Request) error{
		"the vault is away": httpsink.Bearer(func(context.Context) (string, error) { return "hush", errors.New("vault: 503") }),
		"empty":             httpsink.Bearer(func(context.Context) (string, error) { return "", nil }),
		"a line end":        httpsink.Bearer(func(context.Context) (string, error) { return "hush\n", nil }),
		"beyond ASCII":      httpsink.SecretHeader("X-Api-Key", func(context.Context) (string, error) { return "hush\xff", nil }),
		"no secret":         httpsink.Bearer(nil),
		"no header":         httpsink.SecretHeader("a b", rotating),
		"the call's header": httpsink.SecretHeader("Content-Type", rotating),
		"the key":           httpsink.SecretHeader("Idempotency-Key", rotating),
		"ended":             httpsink.Bearer(func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() }),
	} {
		ctx, cancel := context.WithCancel(t.Context())
		if name == "ended" {
			cancel()
		}
		s := newSink(t, base, func(cfg *httpsink.Config) { cfg.Authorize = f })
		r := s.Send(ctx, delivery())
		good := r.Outcome == outbox.Postponed &&
			r.Reason == "authorization failed, no call was made" &&
			r.Err != nil &&
			!strings.Contains(r.Err.Error(), "hush")
		if !good {
			t.Errorf("%s: %+v", name, r)
		}
		cancel()
	}
	if requests.Load() != before {
		t.Error("calls were made without their secrets")
	}
}

// If a remote echoes what it received, the secret does not get into the row's error (O12).
func TestSecretsAreNotInReasons(t *testing.T) {
	base, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		c, _, _ := w.(http.Hijacker).Hijack()
		_, _ = fmt.Fprintf(c, "HTTP/1.1 2oo %s\r\n\r\n", r.Header.Get("Authorization"))
		_ = c.Close()
	})
	s := newSink(t, base, func(cfg *httpsink.Config) {
		cfg.Authorize = httpsink.Bearer(func(context.Context) (string, error) { return "hush", nil })
	})
	if r := s.Send(t.Context(), delivery()); r.Outcome != outbox.Retry || strings.Contains(r.Reason, "hush") {
		t.Errorf("%+v", r)
	}
}

// Each attempt has an id of its own beside the call's key, unless the call has the header.
// Authorize cannot change it (O12).
func TestRequestIDOfAnAttempt(t *testing.T) {
	var got []http.Header
	base, _ := serve(t, func(_ http.ResponseWriter, r *http.Request) { got = append(got, r.Header.Clone()) })
	s := newSink(t, base, func(cfg *httpsink.Config) { cfg.RequestIDHeader = "x-request-id" })
	mine := delivery()
	mine.Header = http.Header{"X-Request-Id": {"the call's"}}
	one := delivery()
	for _, a := range []*outbox.Attempt{one, one, mine, mine} {
		if r := s.Send(t.Context(), a); r.Outcome != outbox.Delivered {
			t.Fatalf("%+v", r)
		}
	}
	ids := map[string]int{}
	keys := map[string]int{}
	for _, h := range got {
		ids[h.Get("X-Request-Id")]++
		keys[h.Get("Idempotency-Key")]++
	}
	good := len(ids) == 3 && ids["the call's"] == 2 && ids[""] <= 0 && len(keys) == 1
	if !good {
		t.Errorf("ids %v, keys %v", ids, keys)
	}
	if one.Header.Get("X-Request-Id") != "" {
		t.Error("the row has the attempt's id")
	}
	s = newSink(t, base, func(cfg *httpsink.Config) {
		cfg.RequestIDHeader, cfg.Authorize = "X-Request-Id", httpsink.SecretHeader(
			"X-Request-Id",
			func(context.Context) (string, error) { return "other", nil },
		)
	})
	if r := s.Send(t.Context(), one); r.Outcome != outbox.Postponed || len(got) != 4 {
		t.Errorf("%+v, %d requests", r, len(got))
	}
	for _, name := range []string{"Idempotency-Key", "idempotency-key", "a b", "Transfer-Encoding"} {
		if _, err := httpsink.New(httpsink.Config{
			Name:            "s",
			BaseURL:         base,
			AllowPrivate:    true,
			KeyWindow:       outbox.Forever,
			RequestIDHeader: name,
		}); err == nil ||
			!strings.Contains(err.Error(), "RequestIDHeader") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
