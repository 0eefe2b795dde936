package client

import (
	"net/http"
	"time"

	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
	"github.com/onlyonce/onlyonce/internal/fields"
)

// Config configures a [Transport]. The zero value of a field is the default that its comment names;
// a value out of range is an error of [NewTransport] and never adjusted.
type Config struct {
	// Base makes the attempts. A transport that signs requests or adds tokens belongs here, where
	// it sees each attempt; it must neither repeat requests nor change their meaning. Defaults to
	// http.DefaultTransport.
	Base http.RoundTripper

	// Methods are the methods of requests that get a key: any of POST, PATCH, PUT and DELETE.
	// Requests of other methods pass through unchanged: without a key, and once. Defaults to POST
	// and PATCH.
	Methods []string

	// Header is the name of the header that carries the key. Defaults to "Idempotency-Key".
	Header string

	// Form is the key's form in the header, for example [FormBare] for many providers. A header set
	// by the caller stays as it is. Defaults to [FormString], the draft's form.
	Form Form

	// RequestIDHeader is a header with a new random value at each attempt, for example
	// "X-Request-Id". It distinguishes the attempts under one key in the server's logs. A header
	// set by the caller stays as it is. The server must not compare it: leave it out of
	// Route.FingerprintHeaders. Defaults to none.
	RequestIDHeader string

	// MaxAttempts is the most attempts for an operation, the first included, from 1 to 100. With
	// the other defaults, 8 attempts take 35 s, longer than a handler of package idempotency runs
	// (H11: 30 s) if its answer was lost. Defaults to 8.
	MaxAttempts int

	// AttemptTimeout is how long an attempt may take until the answer's headers arrive, from 1 ms
	// to 1 hour. If it is shorter than the server's handlers take, attempts cannot succeed. If it
	// is longer, recovery from a silently dead connection takes longer. Defaults to 40 s.
	AttemptTimeout time.Duration

	// TotalTime bounds all attempts and the waits between them, from 1 ms to 24 hours. It must be
	// well below the time for which the server remembers keys (H19: 48 hours unless configured),
	// because a later retry is a new operation there. An earlier deadline of the request's context,
	// or http.Client.Timeout, wins. If an answer's Retry-After is longer than the time that is
	// left, the Transport returns the answer, and the caller decides. Reading the answer's body may
	// take longer. Defaults to 3 minutes.
	TotalTime time.Duration

	// MaxWait bounds the wait between two attempts, from 1 ms to 1 hour. The first wait is 500 ms,
	// or MaxWait if that is shorter. It doubles up to MaxWait, and each is spread by half of itself
	// either way. If an answer's Retry-After is longer, the Transport waits for that. Defaults to
	// 10 s.
	MaxWait time.Duration

	// MaxBody is the most bytes of a body to hold in memory for the attempts, up to 1 GiB. A longer
	// body needs a Request.GetBody. Defaults to 1 MiB, which is also the default of Route.MaxBody
	// (H6).
	MaxBody int64

	// Hooks observe attempts. Defaults to none.
	Hooks Hooks
}

// firstWait is the mean of the first wait between two attempts.
func (c *Config) firstWait() time.Duration { return min(500*time.Millisecond, c.MaxWait) }

func (c Config) withDefaults() (Config, error) {
	l := fields.List{Sentinel: ErrConfig, Struct: "Config"}
	l.Span("AttemptTimeout", &c.AttemptTimeout, 40*time.Second, time.Millisecond, time.Hour)
	l.Span("TotalTime", &c.TotalTime, 3*time.Minute, time.Millisecond, 24*time.Hour)
	l.Span("MaxWait", &c.MaxWait, 10*time.Second, time.Millisecond, time.Hour)
	if c.Base == nil {
		c.Base = http.DefaultTransport
	}
	protocol.CheckMethods(&l, &c.Methods)
	if c.Header == "" {
		c.Header = "Idempotency-Key"
	} else if !protocol.ValidName(c.Header) {
		l.Add("Header", "is %q: must be the name of a header", c.Header)
	}
	if c.RequestIDHeader != "" && !protocol.ValidName(c.RequestIDHeader) {
		l.Add("RequestIDHeader", "is %q: must be the name of a header", c.RequestIDHeader)
	} else if c.RequestIDHeader != "" &&
		http.CanonicalHeaderKey(c.RequestIDHeader) == http.CanonicalHeaderKey(c.Header) {
		l.Add("RequestIDHeader", "must differ from Header: the key is the same at each attempt")
	}
	if c.Form != FormString && c.Form != FormBare {
		l.Add("Form", "%d is neither FormString nor FormBare", int(c.Form))
	}
	if c.MaxAttempts == 0 {
		c.MaxAttempts = 8
	} else if c.MaxAttempts < 1 || c.MaxAttempts > 100 {
		l.Add("MaxAttempts", "is %d: must be from 1 to 100", c.MaxAttempts)
	}
	if c.MaxBody == 0 {
		c.MaxBody = 1 << 20
	} else if c.MaxBody < 1 || c.MaxBody > 1<<30 {
		l.Add("MaxBody", "is %d: must be from 1 to %d", c.MaxBody, 1<<30)
	}
	return c, l.Err()
}
