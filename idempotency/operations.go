package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/eventsource"
	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/preflight"
)

// Operations answers requests 202 whose work takes longer than a client waits (H23): the work is committed with the request's
// record, as an event that a consumer in this process or another one applies, and clients ask for its state. Make one with
// [NewOperations], give its [Operations.Accept] to handlers, put it where its URLs lead, and let [Operations.Run] work.
//
// Accept stands in a handler behind a [Layer] in transactional mode: whoever sends the request again gets the same 202 and Location.
type Operations struct {
	layer  *Layer
	cfg    OperationsConfig
	work   map[string]Work
	source *eventsource.Source
	worker *consumer.Consumer
	made   atomic.Bool // the stream is there
}

// Work does an operation, in a transaction that commits together with its end: at-least-once runs, effects applied once. It survives
// what a consumer's handler survives: see package consumer. Its context ends when the client cancels the operation.
//
// The result is a JSON value. [Failed] is an end too: what was written is undone, and the client sees its code and text. Any other error is tried again, and
// becomes a failure without a text when the attempts are used up.
type Work func(ctx context.Context, tx consumer.Tx, op *Operation) (result json.RawMessage, err error)

// Operation is work under way.
type Operation struct {
	// ID is in the operation's URL. Name is what Accept was given, Input too.
	ID    string
	Name  string
	Input []byte
	// Scope is that of the request.
	Scope Scope

	ops *Operations
	id  uuid.UUID
}

// ErrCancelled is the cause with which the context of a [Work] ends whose client wants it no more.
var ErrCancelled = errors.New("idempotency: the operation was cancelled")

// failure is an end that the client is to see.
type failure struct{ code, text string }

func (f *failure) Error() string { return "operation failed: " + f.code + ": " + f.text }

// Failed ends an operation: code is for programs, text for people; both are shown to the client, and bounded to 200 and 2000 bytes.
func Failed(code, text string) error { return &failure{code, text} }

// OperationsConfig says how operations are kept. The zero value of a field is the default that its comment names; a value out of range is
// an error of [NewOperations] and never adjusted.
type OperationsConfig struct {
	// Path is where the Operations stand, with a slash at the end. Default "/operations/".
	Path string
	// Stream names the stream of work, and the scope of its consumer. Default "operations". At most 200 of A-Z a-z 0-9 . _ -.
	Stream string
	// Partitions is how many operations are worked on at once, by all processes together. Default 16, from 1 to 1024; fixed when the stream is made.
	Partitions int
	// MaxTime bounds one run of a Work. Default 10 minutes, from 1 ms to 24 hours. Its transaction is open that long, which keeps the whole database
	// from removing old row versions: cut longer work into operations that follow one another.
	MaxTime time.Duration
	// MaxAttempts is how often work is tried that fails. Default 5.
	MaxAttempts int
	// RetryMin and RetryMax bound the wait between attempts. Defaults 100 ms and 10 s.
	RetryMin, RetryMax time.Duration
	// TTL is how long an operation can be asked about from its end. Default 7 days, from 1 s to 400 days.
	TTL time.Duration
	// RetryAfter is when clients are told to ask again. Default 2 s, from 1 s to 1 hour.
	RetryAfter time.Duration
	// MaxInput and MaxResult bound inputs and results in bytes. Default 1 MiB each, up to 32 MiB.
	MaxInput, MaxResult int
	// PollInterval is how often work and cancellations are looked for that another process has taken down. Default 500 ms, from 10 ms to 1 minute.
	PollInterval time.Duration
	// LeaseTTL is how long the operations of a process that died wait. Default 15 s, at least 1 s.
	LeaseTTL time.Duration
	// Hooks and Logger are those of the consumer.
	Hooks  consumer.Hooks
	Logger *slog.Logger
}

// NewOperations checks everything it can without a server, and returns every fault at once. The layer lends its pool, its scopes and its
// sealer; work has what Accept may name.
func NewOperations(layer *Layer, cfg OperationsConfig, work map[string]Work) (*Operations, error) {
	l := fields.List{Sentinel: ErrConfig, Struct: "OperationsConfig"}
	if cfg.Path == "" {
		cfg.Path = "/operations/"
	}
	if !strings.HasPrefix(cfg.Path, "/") || !strings.HasSuffix(cfg.Path, "/") {
		l.Add("Path", "%q must begin and end with a slash", cfg.Path)
	}
	if cfg.Stream == "" {
		cfg.Stream = "operations"
	}
	l.Number("Partitions", &cfg.Partitions, 16, 1, 1024)
	l.Span("MaxTime", &cfg.MaxTime, 10*time.Minute, time.Millisecond, 24*time.Hour)
	l.Number("MaxAttempts", &cfg.MaxAttempts, 5, 1, 1000)
	l.Span("TTL", &cfg.TTL, 7*24*time.Hour, time.Second, 400*24*time.Hour)
	l.Span("RetryAfter", &cfg.RetryAfter, 2*time.Second, time.Second, time.Hour)
	l.Number("MaxInput", &cfg.MaxInput, 1<<20, 1, maxStored)
	l.Number("MaxResult", &cfg.MaxResult, 1<<20, 1, maxStored)
	l.Span("PollInterval", &cfg.PollInterval, 500*time.Millisecond, 10*time.Millisecond, time.Minute)
	if layer == nil {
		l.Join(fmt.Errorf("%w: layer: must not be nil", ErrConfig))
	}
	if len(work) == 0 {
		l.Join(fmt.Errorf("%w: work: is empty: there is nothing that could be accepted", ErrConfig))
	}
	for name, w := range work {
		if w == nil || name == "" || len(name) > maxStepName {
			l.Join(fmt.Errorf("%w: work: %q must have a name of 1 to %d bytes, and a function", ErrConfig, name, maxStepName))
		}
	}
	if err := l.Err(); err != nil {
		return nil, err
	}
	o := &Operations{layer: layer, cfg: cfg, work: work}
	var err error
	if o.source, err = eventsource.NewSource(layer.pool, eventsource.Config{Group: cfg.Stream, Topics: []string{cfg.Stream}, Partitions: cfg.Partitions,
		PollInterval: cfg.PollInterval, LeaseTTL: cfg.LeaseTTL, Logger: cfg.Logger}); err != nil {
		return nil, fmt.Errorf("%w: OperationsConfig: %w", ErrConfig, err)
	}
	if o.worker, err = consumer.New(layer.pool, o.source, o.apply, consumer.Config{
		Scope: cfg.Stream, BatchSize: 1, MaxAttempts: cfg.MaxAttempts, RetryMin: cfg.RetryMin, RetryMax: cfg.RetryMax,
		MessageTimeout: cfg.MaxTime, BatchTimeout: cfg.MaxTime, StatementTimeout: cfg.MaxTime, IdleTimeout: cfg.MaxTime, Hooks: cfg.Hooks, Logger: cfg.Logger,
	}); err != nil {
		return nil, fmt.Errorf("%w: OperationsConfig: %w", ErrConfig, err)
	}
	return o, nil
}

// Request is what Accept is asked to do.
type Request struct {
	// Name is one of the works that NewOperations was given. Required.
	Name string
	// Input is what its Work gets. It is stored, sealed where the layer seals.
	Input []byte
	// OrderingKey: operations of one key are done one after another, in the order of their commits. Empty: none.
	OrderingKey string
}

// acceptSQL takes an operation down. In: id, tenant, principal, name, how long it is kept from its end.
const acceptSQL = `insert into onlyonce.operations (id, tenant, principal, name, keep) values ($1, $2, $3, $4, $5)`

// Accept takes work down in the request's transaction, and answers 202 with the operation's URL and state. An error has answered nothing: the
// handler does, with a status that keeps nothing.
func (o *Operations) Accept(w http.ResponseWriter, r *http.Request, req Request) error {
	x, ok := r.Context().Value(exchangeKey{}).(*exchange)
	switch {
	case !ok || x.bare || x.endpoint.route.Mode != Transactional || x.layer != o.layer:
		return fmt.Errorf("%w: Accept stands in a handler behind this layer in transactional mode", ErrNoTx)
	case o.work[req.Name] == nil:
		return fmt.Errorf("%w: Request.Name: there is no work %q", ErrConfig, req.Name)
	case len(req.Input) > o.cfg.MaxInput:
		return fmt.Errorf("%w: Request.Input: has %d bytes, at most %d", ErrConfig, len(req.Input), o.cfg.MaxInput)
	}
	if !o.made.Load() {
		if _, err := eventsource.MakeStream(r.Context(), o.layer.pool, o.cfg.Stream, o.cfg.Partitions); err != nil {
			return err
		}
		o.made.Store(true)
	}
	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	input, sealed, err := o.layer.seal(codec.SealPlace(id, sealedInput, ""), req.Input)
	if err != nil {
		return err
	}
	tx, err := Tx(r)
	if err != nil {
		return err
	}
	tx.Queue(acceptSQL, id, x.scope.Tenant, x.scope.Principal, req.Name, o.cfg.TTL)
	e := eventsource.Event{Topic: o.cfg.Stream, Tenant: x.scope.Tenant, ID: id.String(), Body: input, Headers: []consumer.Header{{Name: headerSealed, Value: []byte(sealedMark[sealed])}}}
	if req.OrderingKey != "" {
		e.Key = []byte(req.OrderingKey)
	}
	if trace := x.origin.Trace; trace != "" {
		parent, state := codec.SplitTrace(trace)
		e.Headers = append(e.Headers, consumer.Header{Name: "traceparent", Value: []byte(parent)})
		if state != "" {
			e.Headers = append(e.Headers, consumer.Header{Name: "tracestate", Value: []byte(state)})
		}
	}
	if err := eventsource.Append(r.Context(), tx, e); err != nil {
		return err
	}
	x.woken = o.source.Wake
	w.Header().Set("Location", o.cfg.Path+id.String())
	o.write(w, http.StatusAccepted, &operationState{ID: id.String(), Name: req.Name, State: operationRunning})
	return nil
}

// headerSealed says in an event whether its body is sealed.
const headerSealed = "onlyonce-sealed"

var sealedMark = map[bool]string{false: "0", true: "1"}

// Run makes the stream if there is none, works, and deletes what has expired, until ctx ends: then it lets what is under way finish for as long as
// a consumer does, and returns nil.
func (o *Operations) Run(ctx context.Context) error {
	if _, err := preflight.Check(ctx, o.layer.pool, preflight.Operations); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // stopped before it began
		}
		return fmt.Errorf("idempotency: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	purged := make(chan struct{})
	go func() {
		defer close(purged)
		o.purge(ctx)
	}()
	err := o.worker.Run(ctx)
	cancel()
	<-purged
	return err
}

// purgeOperationsSQL deletes operations whose time has passed. In: how many at most.
const purgeOperationsSQL = `
with old as (select id from onlyonce.operations where expires_at <= clock_timestamp() order by expires_at limit $1 for update skip locked)
delete from onlyonce.operations o using old where o.id = old.id and o.expires_at <= clock_timestamp()`

func (o *Operations) purge(ctx context.Context) {
	tick := time.NewTicker(o.layer.cfg.PurgeInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.layer.cfg.StatementTimeout)
		_, err := o.layer.pool.Exec(bounded, purgeOperationsSQL, o.layer.cfg.PurgeBatch)
		cancel()
		if err != nil && ctx.Err() == nil {
			o.layer.failed(fmt.Errorf("idempotency: purging operations: %w", err))
		}
	}
}

// key is what a parked row of an operation is found by.
func (o *Operations) key(tenant, id string) uuid.UUID {
	return dedupe.Key{Tenant: tenant, Scope: o.cfg.Stream, ID: id}.Hash()
}
