package idempotency

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
	"github.com/onlyonce/onlyonce/internal/fields"
)

// StepOutcome is a provider's answer about a [Step], see Route.Reconcile.
type StepOutcome int

// RouteMode decides how a request's effects and its record stay together.
type RouteMode int

const (
	// Transactional is for handlers that write to this database and make their external calls
	// through package outbox (H17). The handler and the record share one transaction, see [TxOf]. A
	// crash leaves no trace of the request.
	Transactional RouteMode = iota

	// Leased is for handlers that call another service half-way and need its answer to continue
	// (H18), for example to charge a card. See [Step].
	Leased
)

// Route describes one operation of the API. The zero value of a field is the default that its
// comment names; a value out of range is an error of [Layer.Handle] and never adjusted.
type Route struct {
	// Pattern names the operation and is part of each record's identity, for example
	// "/v1/charges/{id}/capture". If you change it, keys used under the old name run again. At most
	// 200 visible ASCII characters. Required.
	Pattern string

	// Methods are the methods for which keys count (H1): any of POST, PATCH, PUT and DELETE.
	// Requests with other methods run as if there were no layer. Defaults to POST and PATCH.
	Methods []string

	// Mode decides how effects and record stay together. Defaults to [Transactional].
	Mode RouteMode

	// Isolation is the isolation level of the handler's transaction. After a serialization failure
	// or a deadlock the layer runs the handler again, three times at most. Defaults to the server's
	// setting.
	Isolation pgx.TxIsoLevel

	// KeyOptional runs requests without a key each time, unprotected. Defaults to false: they get
	// 400.
	KeyOptional bool

	// DeriveKeyFor makes the hash of a request without a key its key, for so long after the first
	// such request has been answered, up to 1 minute: equal requests of one [Scope] within that
	// time are one. It cannot distinguish a retry from a second purchase of the same thing, so it
	// is for clients that cannot be changed, and not for payments. Two requests are equal if they
	// would be under one key (H7). Answers then say Idempotency-Status: derived.
	//
	// A request whose scope is empty, for example with [GlobalScope], gets 400: two strangers may
	// send the same. A call that the handler enqueues for such a request needs a Call.ID. Mode must
	// be [Transactional], KeyOptional false, and Config.Profile none. Processes that have different
	// current FingerprintKeys take equal requests for two. Layer.Run looks at the clock every few
	// seconds, so a key may count for that much longer (T11), and while no process runs it, keys
	// count on. Defaults to 0: no key is derived.
	DeriveKeyFor time.Duration

	// KeyPointer is a JSON Pointer (RFC 6901) to a string in the body that also carries the key,
	// for example "/idempotency_key". If header and body name different keys, the layer answers
	// 400. Defaults to none.
	KeyPointer string

	// KeyPerPath lets a key count within the path of its request, not within Pattern: the same key
	// on /v1/orders/1 and /v1/orders/2 names two requests. Defaults to false: the second one gets
	// the answer to a conflict.
	KeyPerPath bool

	// ConflictStatus is the status of the answer to a key that belongs to another request (H7): 422
	// as in the IETF draft, 409, or 400. Some APIs have promised one of the others to their
	// clients. A client distinguishes a 409 for a running request by its Retry-After. Defaults to
	// 422.
	ConflictStatus int

	// FingerprintJSON compares the content of JSON bodies: the order of members, white space and
	// the escapes in strings do not count. It suits clients that build the request anew for each
	// retry. Numbers are compared by their value, to the last digit: 1, 1.0, 1e0 and 10e-1 are one
	// number, and -0 is 0. Defaults to false: bodies are compared byte by byte, and those of forms
	// (multipart) part by part, because clients that build a form anew choose another boundary.
	//
	// A body is refused if it is not JSON, is not UTF-8, is nested deeper than 64, has a number
	// whose exponent has more than 18 digits, or has a member twice; names that differ only in case
	// count as the same. An empty body is accepted, and equals an empty body.
	FingerprintJSON bool

	// FingerprintBodyOnly compares no header: a retry may come with another Content-Type. Method,
	// path and query count. It suits handlers that read bodies of one type only. FingerprintHeaders
	// must be empty. Defaults to false: Content-Type, Content-Encoding and trailers count.
	FingerprintBodyOnly bool

	// FingerprintHeaders are request headers that change the request's effect, for example
	// "Stripe-Account". A copy with another value gets 422. Content-Type, Content-Encoding and
	// trailers always count; Transfer-Encoding and Trailer are refused. Defaults to none.
	FingerprintHeaders []string

	// MaxBody is the most bytes of a request's body, up to 32 MiB (H6). Longer requests get 413.
	// Defaults to 1 MiB.
	MaxBody int

	// MaxResponse is the most bytes of a stored body, up to 32 MiB (H15). A longer answer is undone
	// and answered 500, unless AllowLargeOnce is set or the handler has stored a [Reference].
	// Defaults to 1 MiB.
	MaxResponse int

	// AllowLargeOnce sends an answer above MaxResponse, up to 32 MiB, to the first client only. The
	// record is a tombstone: copies of the request get 410. Defaults to false: such an answer is
	// undone.
	AllowLargeOnce bool

	// DiscardBody stores no bodies, for secrets that are shown once, for example a new API key.
	// Copies of the request get 410, or the status of a refusal without its body. Defaults to
	// false.
	DiscardBody bool

	// Render makes the body of an answer that its handler has stored by [Reference] (H28). It gets
	// the request's scope, which equals the first request's, and the reference. Many goroutines
	// call it at once, for each copy of the request, with a context that ends with the client's, or
	// after HandlerTimeout.
	//
	// If it returns [ErrReferenceGone], also wrapped, the client gets 410. For any other error it
	// gets 503 (code "response-not-rendered") with Retry-After. Defaults to nil: Reference is
	// refused.
	Render func(ctx context.Context, scope Scope, reference string) (body []byte, err error)

	// KeepHeaders are answer headers that are stored besides the usual ones (H14), for example
	// "X-Request-Cost". Headers about one client or one connection are refused, for example
	// Set-Cookie. Defaults to none.
	KeepHeaders []string

	// KeepWrites commits a handler's writes even if it answers a final 4xx. Defaults to false: the
	// layer undoes such writes, and stores only the answer.
	KeepWrites bool

	// TTL is how long an answer is kept from its completion, from 1 s to 400 days (H19). An answer
	// is kept for longer while calls or an operation of the request are not settled (H31). TTL must
	// be at least an hour longer than KeyWindow, unless NoCalls is set. It must also exceed the
	// time for which clients retry. In lease mode, operators see a request that was never completed
	// for that long after its last attempt. Defaults to 48 hours.
	TTL time.Duration

	// KeyWindow is how long the remotes that this route calls, in a [Step] or through the outbox,
	// remember their keys: from 1 s to 400 days. The layer does not repeat a step of unknown
	// outcome after that. Set the relay's sinks to the same value. Required, unless NoCalls is set.
	//
	// TTL must be an hour longer, because the keys of calls derive from the request's key. If a
	// client uses a key again after its record has expired here, the remote must have forgotten it
	// too. Otherwise it takes the new call for a copy of the old one.
	KeyWindow time.Duration

	// NoCalls says that this route makes no calls, so that KeyWindow is not needed and TTL may be
	// as short as 1 s. A [Step] is then refused, and so is a call that the handler enqueues without
	// a Call.ID, because its key would derive from the request's. Defaults to false.
	NoCalls bool

	// Reconcile asks a provider for the outcome of a [Step] in lease mode if the outcome is unknown
	// and the provider may have forgotten the key (H29). Look for the effect by something that the
	// provider keeps, for example a reference in the call; key is the step's. The layer calls it
	// before each further attempt at such a step, from many goroutines at once, with the handler's
	// context.
	//
	// Return StepTookEffect with the result that the step's function would have returned, or
	// StepNoEffect only if the provider is sure. If it cannot tell, return StepUnknown: the layer
	// sets the request aside for an operator. If it returns an error, the step fails, and the next
	// request asks again. Defaults to nil: the layer sets such requests aside at once.
	Reconcile func(ctx context.Context, step, key string) (outcome StepOutcome, result []byte, err error)

	// HandlerTimeout ends the handler's context, from 1 ms to 1 hour, even if the client is still
	// connected (H11). A later answer is undone. If the handler has not returned 5 s after that,
	// the layer gives up its key and cuts its connection. Defaults to 30 s.
	HandlerTimeout time.Duration

	// Wait is how long a copy waits for the first request to end, up to 2 minutes (H10). It holds
	// no connection of the pool while it waits. The server's WriteTimeout and the clients' timeouts
	// must be longer. Defaults to 0: copies get 409 at once.
	Wait time.Duration

	// RunningConflict answers a copy of a request whose operation ([Operations.Accept]) has not
	// ended as if the request itself were running: 409 (code "request-in-progress") with
	// Retry-After, and the operation's Location. With Wait, the copy waits for the operation's end.
	// It suits clients that take each 2xx for the end. Defaults to false: the copy gets 202 with
	// the operation's state.
	RunningConflict bool
}

func (r Route) withDefaults() (Route, error) {
	l := fields.List{Sentinel: ErrConfig, Struct: "Route"}
	r.checkShared(&l, sharedFields{name: "Pattern", maxResponse: "MaxResponse"})
	protocol.CheckMethods(&l, &r.Methods)
	if r.Mode != Transactional && r.Mode != Leased {
		l.Add("Mode", "%d is neither Transactional nor Leased", int(r.Mode))
	}
	r.checkDerivedKeys(&l)
	if r.KeyPointer != "" && !strings.HasPrefix(r.KeyPointer, "/") {
		l.Add("KeyPointer", "%q must begin with '/' (RFC 6901)", r.KeyPointer)
	}
	r.FingerprintHeaders = slices.Clone(r.FingerprintHeaders)
	for i := range r.FingerprintHeaders {
		if protocol.CheckRequestHeaderName(
			&l,
			fmt.Sprintf("FingerprintHeaders[%d]", i),
			&r.FingerprintHeaders[i],
			"",
		); r.FingerprintHeaders[i] == "" {
			l.Add(fmt.Sprintf("FingerprintHeaders[%d]", i), "is empty")
		}
	}
	if r.FingerprintBodyOnly && len(r.FingerprintHeaders) > 0 {
		l.Add("FingerprintHeaders", "must be empty with FingerprintBodyOnly, which compares no header")
	}
	r.ConflictStatus = cmp.Or(r.ConflictStatus, http.StatusUnprocessableEntity)
	if !slices.Contains(
		[]int{http.StatusUnprocessableEntity, http.StatusConflict, http.StatusBadRequest},
		r.ConflictStatus,
	) {
		l.Add("ConflictStatus", "is %d: must be 422, 409 or 400", r.ConflictStatus)
	}
	slices.Sort(r.FingerprintHeaders)
	r.FingerprintHeaders = slices.Compact(r.FingerprintHeaders)
	l.Number("MaxBody", &r.MaxBody, 1<<20, 1, maxStored)
	if err := checkKeepHeaders(r.KeepHeaders); err != nil {
		l.Add("KeepHeaders", "%v", err)
	}
	if r.Reconcile != nil && r.Mode != Leased {
		l.Add("Reconcile", "is for lease mode only: in transactional mode there are no steps")
	}
	return r, l.Err()
}

// maxDerivedKey bounds Route.DeriveKeyFor.
const maxDerivedKey = time.Minute

// checkDerivedKeys checks DeriveKeyFor and what contradicts it (H34).
func (r *Route) checkDerivedKeys(l *fields.List) {
	if r.DeriveKeyFor == 0 {
		return
	}
	if r.DeriveKeyFor < time.Second || r.DeriveKeyFor > maxDerivedKey {
		l.Add("DeriveKeyFor", "is %v: must be 0, or from 1s to %v", r.DeriveKeyFor, maxDerivedKey)
	}
	if r.Mode == Leased {
		l.Add("DeriveKeyFor",
			"must be 0 in lease mode: the key expires long before the provider forgets the keys of its "+
				"steps, so it would take the steps of the next equal request for copies")
	}
	if r.KeyOptional {
		l.Add("DeriveKeyFor", "must be 0 with KeyOptional, which runs each request without a key")
	}
}

// sharedFields are the names that fields of a [Route] have in the struct that the user has set: a
// Route, or a [DoerConfig].
type sharedFields struct{ name, maxResponse string }

// checkShared checks the fields that a [Doer] has too (H26).
func (r *Route) checkShared(l *fields.List, names sharedFields) {
	switch {
	case r.Pattern == "":
		l.Add(names.name, "must not be empty: it names the operation")
	case len(r.Pattern) > 200 || strings.ContainsFunc(r.Pattern, func(c rune) bool { return c <= ' ' || c > '~' }):
		l.Add(names.name, "must be at most 200 visible ASCII characters")
	}
	if !slices.Contains([]pgx.TxIsoLevel{"", pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}, r.Isolation) {
		l.Add("Isolation", "%q is none of read committed, repeatable read and serializable", r.Isolation)
	}
	l.Number(names.maxResponse, &r.MaxResponse, 1<<20, 1, maxStored)
	day := 24 * time.Hour
	l.Span("TTL", &r.TTL, 2*day, time.Second, 400*day)
	switch {
	case r.NoCalls && r.KeyWindow != 0:
		l.Add("NoCalls",
			"must not be set with KeyWindow: that is how long the remotes that are called remember their keys")
	case r.NoCalls:
	case r.KeyWindow == 0:
		l.Add("KeyWindow", "must be set: how long the remotes that are called remember their keys; or NoCalls")
	default:
		l.Span("KeyWindow", &r.KeyWindow, day, time.Second, 400*day)
		if r.TTL < r.KeyWindow+stepMargin {
			l.Add("TTL",
				"is %v: must be at least KeyWindow, %v, plus an hour: otherwise a remote could take the "+
					"call of a key that is used again for a copy of the old one (H18). If no calls are "+
					"made, set NoCalls",
				r.TTL,
				r.KeyWindow)
		}
	}
	l.Span("HandlerTimeout", &r.HandlerTimeout, 30*time.Second, time.Millisecond, time.Hour)
	if r.Wait < 0 || r.Wait > maxWait {
		l.Add("Wait", "is %v: must be from 0 to %v (H10)", r.Wait, maxWait)
	}
}

// maxWait bounds Route.Wait.
const maxWait = 2 * time.Minute

const maxStored = 32 << 20

// stepMargin is how much longer a record is kept than the provider's memory lasts. It is also how
// long before the end of that memory a step is no longer repeated.
const stepMargin = time.Hour

// The outcomes.
const (
	// StepUnknown: the provider cannot tell. The layer sets the request aside for an operator.
	StepUnknown StepOutcome = iota
	// StepTookEffect: the call took effect, or was refused for good. The layer stores its result.
	StepTookEffect
	// StepNoEffect: no call of the step took effect, and an earlier call can no longer do so. The
	// layer calls the step's function, under the same key.
	StepNoEffect
)
