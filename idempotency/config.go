package idempotency

import (
	"errors"
	"net/http"
	"time"
)

// TransportConfig says how a [Transport] asks. The zero value of a field is the default that its comment names; a value
// out of range is an error of [NewTransport] and never adjusted.
type TransportConfig struct {
	// Base makes the attempts. Default http.DefaultTransport. Put what signs requests or adds tokens here, so that it sees each
	// attempt; it must neither repeat requests nor change what they ask for.
	Base http.RoundTripper

	// Methods are those that get a key: of POST, PATCH, PUT and DELETE. Default POST and PATCH. Requests of other methods go
	// through as they are: without a key, and once.
	Methods []string

	// Header carries the key. Default "Idempotency-Key".
	Header string

	// Form is how the key is written there. Default [FormString], which is the draft's; many providers want [FormBare]. A header
	// that the caller has set stays as it is.
	Form Form

	// Attempts is the most that are made for an operation, the first included. Default 8, from 1 to 100. With the
	// other defaults they are spread over 35 s, longer than a handler runs (H11: 30 s) whose answer was lost.
	Attempts int

	// AttemptTimeout is how long an attempt may take until the answer's headers are there. Default 40 s, from 1 ms to 1 hour.
	// Shorter than the server's handlers take makes attempts that cannot succeed; longer delays the recovery from a connection
	// that has died without a word.
	AttemptTimeout time.Duration

	// TotalTime bounds all attempts and the waits between them. Default 3 minutes, from 1 ms to 24 hours. It must be well below
	// the time for which the server remembers keys (H19: 24 h): a retry that comes later is a new operation there. An earlier
	// deadline of the request's context, or http.Client.Timeout, wins. The answer's body may be read for longer.
	TotalTime time.Duration

	// RetryMin and RetryMax bound the wait between two attempts, which doubles from one to the other and is spread by half of
	// itself either way. Defaults 500 ms and 10 s, from 1 ms to 1 hour.
	RetryMin, RetryMax time.Duration

	// RetryAfterMax is the longest Retry-After that is waited for. Default 1 minute, from 1 s to 24 hours. An answer
	// that asks for more is returned: to come earlier would be rude, and to wait that long is for the caller to decide.
	RetryAfterMax time.Duration

	// MaxBody is the most bytes of a body that are held in memory for the attempts. Default 1 MiB, which is also what a server
	// takes by default (H6), up to 1 GiB. A longer body needs a Request.GetBody.
	MaxBody int64

	// Hooks are told about attempts.
	Hooks TransportHooks
}

func (c TransportConfig) withDefaults() (TransportConfig, error) {
	var l faultList
	l.span("AttemptTimeout", &c.AttemptTimeout, 40*time.Second, time.Millisecond, time.Hour)
	l.span("TotalTime", &c.TotalTime, 3*time.Minute, time.Millisecond, 24*time.Hour)
	l.span("RetryMin", &c.RetryMin, 500*time.Millisecond, time.Millisecond, time.Hour)
	l.span("RetryMax", &c.RetryMax, 10*time.Second, time.Millisecond, time.Hour)
	l.span("RetryAfterMax", &c.RetryAfterMax, time.Minute, time.Second, 24*time.Hour)
	if c.RetryMin > c.RetryMax {
		l.add("RetryMin", "%v is longer than RetryMax, %v", c.RetryMin, c.RetryMax)
	}
	if c.Base == nil {
		c.Base = http.DefaultTransport
	}
	l.methods(&c.Methods)
	if c.Header == "" {
		c.Header = "Idempotency-Key"
	} else if !validName(c.Header) {
		l.add("Header", "%q is not a header name", c.Header)
	}
	if c.Form != FormString && c.Form != FormBare {
		l.add("Form", "%d is none of the forms", int(c.Form))
	}
	if c.Attempts == 0 {
		c.Attempts = 8
	} else if c.Attempts < 1 || c.Attempts > 100 {
		l.add("Attempts", "%d is not from 1 to 100", c.Attempts)
	}
	if c.MaxBody == 0 {
		c.MaxBody = 1 << 20
	} else if c.MaxBody < 1 || c.MaxBody > 1<<30 {
		l.add("MaxBody", "%d is not from 1 to %d", c.MaxBody, 1<<30)
	}
	return c, errors.Join(l.faults...)
}
