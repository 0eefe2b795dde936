package client

import (
	"context"
	"net/http"
	"time"
)

// Hooks observe attempts. They are called in pairs around each attempt, in the goroutine that makes
// it. Nil hooks are skipped. The structs may get more fields.
type Hooks struct {
	// AttemptStart is called before an attempt. The attempt and its AttemptEnd get the returned
	// context, for example one with a span.
	AttemptStart func(context.Context, AttemptStart) context.Context
	// AttemptEnd is called when the outcome of the attempt is known, before the wait for the next
	// one.
	AttemptEnd func(context.Context, AttemptEnd)
}

// AttemptStart describes an attempt that begins.
type AttemptStart struct {
	// Key is the operation's, as [WithKey] takes it.
	Key string
	// Attempt counts from 1.
	Attempt int
	// Request is the request with its key and without its body. The attempts share it: do not
	// change it.
	Request *http.Request
}

// AttemptEnd describes how an attempt ended.
type AttemptEnd struct {
	AttemptStart
	// Status is the answer's status, 0 if there was no answer.
	Status int
	// Err is the reason if there was no answer, or nil.
	Err error
	// Again is true if another attempt follows, after Wait.
	Again bool
	Wait  time.Duration
}

func (h Hooks) emitStart(ctx context.Context, s AttemptStart) context.Context {
	if h.AttemptStart == nil {
		return ctx
	}
	return h.AttemptStart(ctx, s)
}

func (h Hooks) emitEnd(ctx context.Context, e AttemptEnd) {
	if h.AttemptEnd != nil {
		h.AttemptEnd(ctx, e)
	}
}
