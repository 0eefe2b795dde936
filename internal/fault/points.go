// Package fault names the points at which tests kill, fail or stop a process where no statement to
// Postgres is near. Before and after a statement, tests strike on the connection, without a line in
// the product: see StruckPool in test/devenv/pgtest. In a production build a point is an empty
// function that the compiler removes; the tag onlyonce_fault makes it ask the environment:
//
//	ONLYONCE_FAULT="consumer/handled=kill@3,consumer/noted=error"
//
// makes the process kill itself (SIGKILL) when it comes to the point consumer/handled for the third
// time, and the point consumer/noted return [ErrInjected] each time. The third action, hang,
// stops the goroutine there for the time that ONLYONCE_FAULT_HANG says (default 10s).
package fault

import "errors"

// ErrInjected is what a point returns whose action is error. The engine must take it for a fault of
// a server or of the way to it.
var ErrInjected = errors.New("fault injected by a test")

// The points of package consumer, in the order in which a message meets them.
const (
	Joined        = "consumer/joined"         // a partition was handed over
	CursorRead    = "consumer/cursor-read"    // before membership is proved
	LogVerified   = "consumer/log-verified"   // anchor compared
	Fetching      = "consumer/fetching"       // before a fetch
	Fetched       = "consumer/fetched"        // after it
	Handling      = "consumer/handling"       // before the handler of one message
	Handled       = "consumer/handled"        // after it
	Noted         = "consumer/noted"          // position noted, Kafka not told
	OffsetSending = "consumer/offset-sending" // before the offset commit
	OffsetSent    = "consumer/offset-sent"    // after it
)

// Points lists every point of package consumer.
var Points = []string{
	Joined, CursorRead, LogVerified, Fetching, Fetched, Handling, Handled, Noted, OffsetSending,
	OffsetSent,
}

// The points of package outbox, in the order in which a call meets them.
const (
	RelayCalling = "outbox/calling" // before a call leaves
	RelayCalled  = "outbox/called"  // the remote has answered, nothing is noted
)

// RelayPoints lists every point of package outbox.
var RelayPoints = []string{RelayCalling, RelayCalled}

// RequestHandled is the point of package idempotency: the handler has returned.
const RequestHandled = "idempotency/handled"
