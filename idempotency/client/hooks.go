package client

import (
	"context"
	"net/http"
	"time"
)

// Hooks are called in pairs around each attempt, in the goroutine that makes it. Nil hooks are skipped. The structs
// may grow.
type Hooks struct {
	// AttemptStart is called before an attempt. The context it returns is the attempt's and that of its end: put a span into it.
	AttemptStart func(context.Context, AttemptStart) context.Context
	// AttemptEnd is called when it is known what becomes of the attempt, before the wait for the next one.
	AttemptEnd func(context.Context, AttemptEnd)
}

// AttemptStart tells which attempt begins.
type AttemptStart struct {
	// Key is the operation's, as [WithKey] takes it.
	Key string
	// Attempt counts from 1.
	Attempt int
	// Request carries the key. It is shared by the attempts and has no body: read it and leave it as it is.
	Request *http.Request
}

// AttemptEnd tells how an attempt ended.
type AttemptEnd struct {
	Key     string
	Attempt int
	// Status is the answer's; 0 if there was none.
	Status int
	// Err is why there was none.
	Err error
	// Again says that another attempt follows, after Wait.
	Again bool
	Wait  time.Duration
}

func (h Hooks) start(ctx context.Context, s AttemptStart) context.Context {
	if h.AttemptStart == nil {
		return ctx
	}
	return h.AttemptStart(ctx, s)
}

func (h Hooks) end(ctx context.Context, e AttemptEnd) {
	if h.AttemptEnd != nil {
		h.AttemptEnd(ctx, e)
	}
}
