package webhook

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// The status of each check, wherever the check stands in the error.
func TestW6StatusOfEachCheck(t *testing.T) {
	t.Parallel()
	for check, want := range map[error]int{
		ErrTooLarge:         http.StatusRequestEntityTooLarge,
		ErrMalformed:        http.StatusBadRequest,
		ErrSignature:        http.StatusUnauthorized,
		ErrStale:            http.StatusUnauthorized,
		ErrUnavailable:      http.StatusServiceUnavailable,
		errors.New("other"): http.StatusBadRequest,
	} {
		for _, e := range []*Error{{Check: check}, {Check: fmt.Errorf("of a provider: %w", check)}, {Check: check, Cause: ErrTooLarge}} {
			if got := e.Status(); got != want {
				t.Errorf("%v: %d, want %d", e.Check, got, want)
			}
		}
	}
}

// How long ids and bodies are remembered follows from what the sender signs and repeats.
func TestW10BoundsOfTimes(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	names := func(string, []byte) (string, bool) { return "", true }
	const again = ": a sender may deliver an event again within that"
	for name, c := range map[string]struct {
		sender       scheme.Scheme
		past, future time.Duration
		given        Config
		want         [3]time.Duration // Retention, BodyWindow, HandlerTimeout
		says         string
	}{
		"nothing is known": {want: [3]time.Duration{day, time.Hour, 3 * time.Second}},
		"an id is signed": {
			sender: scheme.Scheme{IDSigned: true}, past: 13 * time.Hour,
			want: [3]time.Duration{26 * time.Hour, time.Hour, 3 * time.Second},
		},
		"only a time is signed": {
			past: 13 * time.Hour, future: time.Hour,
			want: [3]time.Duration{26 * time.Hour, 14 * time.Hour, 3 * time.Second},
		},
		"a short time is signed": {
			past: 20 * time.Minute, future: 20 * time.Minute,
			want: [3]time.Duration{day, time.Hour, 3 * time.Second},
		},
		"times of the future": {
			future: 13 * time.Hour,
			want:   [3]time.Duration{26 * time.Hour, 13 * time.Hour, 3 * time.Second},
		},
		"it repeats for days": {
			sender: scheme.Scheme{Redeliveries: 3 * day},
			want:   [3]time.Duration{3 * day, time.Hour, 3 * time.Second},
		},
		"bodies name themselves": {
			sender: scheme.Scheme{Names: names}, past: 13 * time.Hour,
			want: [3]time.Duration{26 * time.Hour, 26 * time.Hour, 3 * time.Second},
		},
		"it waits for 10 s": {
			sender: scheme.Scheme{Answer: 10 * time.Second},
			want:   [3]time.Duration{day, time.Hour, 6 * time.Second},
		},
		"given": {
			given: Config{Retention: 4 * day, BodyWindow: 2 * day, HandlerTimeout: time.Second},
			want:  [3]time.Duration{4 * day, 2 * day, time.Second},
		},
		"too short": {
			sender: scheme.Scheme{Redeliveries: 3 * day}, given: Config{Retention: 2 * day},
			want: [3]time.Duration{2 * day, time.Hour, 3 * time.Second},
			says: "Retention: is 48h0m0s: must be from 72h0m0s to 2562047h47m16.854775807s" + again,
		},
		"longer than ids": {
			given: Config{BodyWindow: 2 * day},
			want:  [3]time.Duration{day, 2 * day, 3 * time.Second},
			says:  "BodyWindow: is 48h0m0s: must be from 1m0s to 24h0m0s",
		},
		"longer than the sender waits": {
			sender: scheme.Scheme{Answer: 4 * time.Second}, given: Config{HandlerTimeout: 3001 * time.Millisecond},
			want: [3]time.Duration{day, time.Hour, 3001 * time.Millisecond},
			says: "HandlerTimeout: is 3.001s: must be from 375ms to 3s: the sender waits no longer for an answer",
		},
	} {
		cfg := c.given
		l := &fields.List{}
		cfg.boundTimes(l, &c.sender, c.past, c.future)
		got := ""
		if err := l.Err(); err != nil {
			got = err.Error()
		}
		set := [3]time.Duration{cfg.Retention, cfg.BodyWindow, cfg.HandlerTimeout}
		if got != c.says || set != c.want {
			t.Errorf("%s: %v, %q, want %v, %q", name, set, got, c.want, c.says)
		}
		follow := [3]time.Duration{cfg.deadline, cfg.DuplicateWait, cfg.RetryAfter}
		if follow != [3]time.Duration{cfg.HandlerTimeout * 4 / 3, maxDuplicateWait, 5 * time.Second} {
			t.Errorf("%s: deadline, DuplicateWait and RetryAfter are %v", name, follow)
		}
	}
}

// Tolerance replaces the bounds that a scheme has, and gives it none.
func TestTolerance(t *testing.T) {
	t.Parallel()
	const m = time.Minute
	for _, c := range []struct {
		past, future, tolerance time.Duration
		wantPast, wantFuture    time.Duration
		says                    string
	}{
		{m, m, 0, m, m, ""},
		{m, m, time.Second, time.Second, time.Second, ""},
		{m, 0, 24 * time.Hour, 24 * time.Hour, 0, ""},
		{0, m, time.Hour, 0, time.Hour, ""},
		{0, 0, 0, 0, 0, ""},
		{0, 0, m, 0, 0, "Tolerance: must be 0: acme signs no time"},
		{m, m, time.Second - 1, m, m, "Tolerance: is 999.999999ms: must be from 1s to 24h"},
		{m, m, 24*time.Hour + 1, m, m, "Tolerance: is 24h0m0.000000001s: must be from 1s to 24h"},
		{-1, m, 0, -1, m, "Provider: its scheme has a negative Past or Future"},
		{m, -1, m, m, -1, "Provider: its scheme has a negative Past or Future"},
	} {
		v := &Verifier{scheme: &scheme.Scheme{Name: "acme"}, past: c.past, future: c.future}
		l := &fields.List{}
		v.setTolerance(l, c.tolerance)
		got := ""
		if err := l.Err(); err != nil {
			got = err.Error()
		}
		if v.past != c.wantPast || v.future != c.wantFuture || got != c.says {
			t.Errorf("%v and %v by %v: %v, %v, %q", c.past, c.future, c.tolerance, v.past, v.future, got)
		}
	}
}

// An event's type stands in logs, so it has no character that moves a cursor or begins a line.
func TestTypesOfEvents(t *testing.T) {
	t.Parallel()
	for of, want := range map[string]bool{
		"":                           true,
		"charge.succeeded":           true,
		"größe 1":                    true,
		strings.Repeat("a", 255):     true,
		strings.Repeat("a", 256):     false,
		"a\nb":                       false,
		"a\x00":                      false,
		"a\x1b[2J":                   false,
		"a\u2028b":                   false,
		"\xff":                       false,
		strings.Repeat("ä", 127):     true,
		strings.Repeat("ä", 128):     false,
		"a\u200b, which is not seen": false,
	} {
		if got := validType(of); got != want {
			t.Errorf("%q: %t, want %t", of, got, want)
		}
	}
}

// Before consumer.New there is no source, and the group is the one that was configured.
func TestEndpointWithoutASource(t *testing.T) {
	t.Parallel()
	ep := &Endpoint{cfg: Config{Name: "stripe", Group: "g"}}
	if got := ep.Group(); got != "g" {
		t.Errorf("group %q, want g", got)
	}
	if err := ep.Run(t.Context(), nil); err == nil || !strings.HasPrefix(err.Error(), "webhook: endpoint stripe: ") {
		t.Errorf("Run: %v", err)
	}
	if _, err := ep.GroupMetadata(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "webhook: endpoint stripe: ") {
		t.Errorf("GroupMetadata: %v", err)
	}
}

// Ordered parks what it cannot compare: a message that is no event, one whose version cannot be
// read, and one in a transaction of others.
func TestOrderedWithoutAnOrigin(t *testing.T) {
	t.Parallel()
	failed := errors.New("no version")
	header := func(name, value string) consumer.Header { return consumer.Header{Name: name, Value: []byte(value)} }
	event := &consumer.Message{Topic: Topic("stripe"), Headers: []consumer.Header{header(headerProvider, "acme"), header(headerID, "1")}}
	version := func(object string, err error) func(*Event) (string, int64, error) {
		return func(*Event) (string, int64, error) { return object, 1, err }
	}
	for name, c := range map[string]struct {
		of      func(*Event) (string, int64, error)
		tx      consumer.Tx
		m       *consumer.Message
		newer   bool
		wrapped error
	}{
		"no version":       {of: version("", failed), m: event, wrapped: failed},
		"no object":        {of: version("", nil), m: event, newer: true},
		"a foreign handle": {of: version("o", nil), m: event, wrapped: errForeignTx},
		"no origin":        {of: version("o", nil), tx: withoutOrigin{}, m: event, wrapped: errForeignTx},
		"no event":         {of: version("o", nil), m: &consumer.Message{Topic: "t"}, wrapped: ErrNotEvent},
	} {
		newer, err := (&Ordered{Version: c.of}).newer(t.Context(), c.tx, c.m)
		if newer != c.newer || newer == consumer.IsPermanent(err) || !errors.Is(err, c.wrapped) {
			t.Errorf("%s: %t, %v", name, newer, err)
		}
	}
}

// withoutOrigin is a handle of a transaction that no message or event has begun.
type withoutOrigin struct{ consumer.Tx }

func (withoutOrigin) Origin() (o origin.Origin, ok bool) { return o, false }
