package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/eventsource"
)

// Operations answers requests with 202 if their work takes longer than a client waits (H23). The
// work commits with the request's record, as an event. A consumer in this process or another one
// applies it, and clients poll its state. Make one with [NewOperations], call [Operations.Accept]
// in handlers, serve it under OperationsConfig.Path, and run [Operations.Run].
//
// Handlers that call Accept must be behind a [Layer] in transactional mode: a copy of the request
// then gets the same Location, with the operation's present state. Operations is safe for
// concurrent use.
type Operations struct {
	layer      *Layer
	cfg        OperationsConfig
	work       map[string]Work
	source     *eventsource.Source
	worker     *consumer.Consumer
	partitions atomic.Int32 // that the stream has; 0: not known yet

	shards map[*Layer]*Operations // of a layer of several databases: one for each; it has no worker itself
}

// Work does an operation in a transaction that commits together with the operation's end. It may
// run more than once, but its effects are applied once. It must follow the rules for a consumer's
// handler, see package consumer. If the client cancels the operation, its context ends.
//
// The result is a JSON value or nil. If the error is a [PermanentError], the operation ends: the
// writes are undone, and the client gets code and detail. After any other error the consumer tries
// the work again; after MaxAttempts the operation fails without a text.
type Work func(ctx context.Context, tx consumer.Tx, op *Operation) (result json.RawMessage, err error)

// Operation is an operation that a [Work] is working on.
type Operation struct {
	// ID is the last part of the operation's URL.
	ID    string
	Name  string
	Input []byte
	// Scope is the scope of the request.
	Scope Scope

	ops *Operations
	id  uuid.UUID
}

// ErrCancelled is the cause of a [Work]'s context once the client has cancelled the operation.
var ErrCancelled = errors.New("idempotency: the operation was cancelled")

// operationState is the JSON that clients get.
type operationState struct {
	ID          string             `json:"id"`
	Name        string             `json:"name"`
	State       string             `json:"state"`
	Progress    *operationProgress `json:"progress,omitempty"`
	Cancelling  bool               `json:"cancelling,omitempty"`
	CreatedAt   *time.Time         `json:"created_at,omitempty"`
	CompletedAt *time.Time         `json:"completed_at,omitempty"`
	Result      json.RawMessage    `json:"result,omitempty"`
	Error       *operationError    `json:"error,omitempty"`
}

type operationProgress struct {
	Percent   int       `json:"percent"`
	Text      string    `json:"text,omitempty"`
	UpdatedAt time.Time `json:"updated_at"`
}

type operationError struct {
	Code string `json:"code"`
	Text string `json:"text,omitempty"`
}

// States of an operation. It is suspended if its worker has parked it.
const (
	operationRunning   = "running"
	operationSucceeded = "succeeded"
	operationFailed    = "failed"
	operationCancelled = "cancelled"
	operationSuspended = "suspended"
)

var (
	errUnreadable = errors.New("idempotency: the stored result cannot be read")
	errErased     = errors.New("idempotency: the operation was erased")
)

func (s *operationState) encode() []byte {
	body, err := json.Marshal(s)
	if err != nil {
		panic(err) // cannot fail: the result was checked when it was stored
	}
	return body
}

// headerSealed is an event's header that says whether its body is sealed.
const headerSealed = "onlyonce-sealed"

var sealedMark = map[bool]string{false: "0", true: "1"}
