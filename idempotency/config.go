package idempotency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/seal"
)

// Scope names the owner of a key. Two requests with the same key are copies of each other only if
// their scopes are equal, so a customer never gets another customer's answer (H2). Take the scope
// from authentication, never from the client's own claims.
type Scope struct {
	// Tenant is the customer: at most 200 bytes of UTF-8 without NUL.
	Tenant string

	// Principal separates the users or API keys of one tenant: at most 200 bytes of UTF-8 without
	// NUL. If it is empty, all requests of the tenant share their keys.
	Principal string
}

// GlobalScope puts all requests in one scope, for servers without customers. Every client that
// knows a key gets the answer stored under it.
func GlobalScope() func(*http.Request) (Scope, error) {
	return func(*http.Request) (Scope, error) { return Scope{}, nil }
}

// Config is the configuration that the routes of a [Layer] share. The zero value of a field is the
// default that its comment names; a value out of range is an error of [New] and never adjusted.
type Config struct {
	// Scope returns the owner of a request, after your authentication has run. If it returns an
	// error, the layer answers 403. Use [GlobalScope] if all clients may see all answers. Required.
	//
	// Scope gets a copy of the request, with a body of its own: it may parse the form, and the
	// handler can parse it again. Middleware around the layer must not read the body without
	// putting it back, for example with ParseForm. The layer answers such a request 500 (code
	// "body-consumed"), because it could not distinguish it from requests with other bodies.
	Scope func(*http.Request) (Scope, error)

	// Profile sets what a published convention asks of the layer's routes, for example
	// [ProfileACP]. A field that contradicts it is an error, of New or of [Layer.Handle]. It says
	// nothing about [Do]. Defaults to none.
	Profile Profile

	// FingerprintKeys are the secrets for hashing requests, and the id of the current one, for new
	// records. To rotate, add a key in all processes before one makes it current, and keep the old
	// key for the longest Route.TTL. A secret keeps its id for good: the database has a check value
	// of each id's secret, and a process with another secret refuses every request with a key. At
	// least one is required.
	FingerprintKeys seal.Keys

	// Sealer encrypts the stored answers, step results and operations (H16). Each sealed value
	// opens only in the place where it was stored (H24). Defaults to nil: values are stored as they
	// are.
	Sealer *seal.Sealer

	// RequireSealed refuses stored values that are not sealed, as if they could not be opened.
	// Without it, an attacker who can write to the tables can plant an unsealed answer. Set it once
	// the records from before you had a Sealer have expired. It needs a Sealer. Defaults to false:
	// the layer reads unsealed values too.
	RequireSealed bool

	// Cache keeps copies of completed records outside the database, to answer repeated requests
	// without a query (H21). For Redis, use package rediscache. It needs a Sealer. Defaults to
	// none.
	Cache Cache

	// CacheTTL is how long the cache keeps an entry, from 1 s to 24 hours. If another process
	// erases an answer, this one may still serve it from the cache for that long. Defaults to 5
	// minutes: most retries come within seconds.
	CacheTTL time.Duration

	// CacheTimeout bounds each operation of the cache, from 1 ms to 10 s. If the cache hangs, it
	// delays repeated requests by that much, until the layer bypasses it for a while. Defaults to
	// 50 ms.
	CacheTimeout time.Duration

	// Headers are the request headers that may carry the key, for example "Idempotency-Key" and
	// "X-Idempotency-Key" for clients with another convention. Answers repeat the key in the first
	// one. If two headers of a request name different keys, the layer answers 400. Defaults to
	// "Idempotency-Key".
	Headers []string

	// Problem renders the layer's own refusals in the API's envelope. It returns the Content-Type
	// and the body; status and headers are the layer's. It is called by many goroutines at once.
	// Keep Problem.Code and Problem.Retryable in the body: client.Transport looks for "retryable"
	// in bodies of application/problem+json only, and otherwise goes by the status. If the
	// Content-Type is empty, the default is sent. Defaults to application/problem+json.
	Problem func(r *http.Request, p Problem) (contentType string, body []byte)

	// TenantLimit is how many requests of one tenant this process handles at once, from 1 to
	// 1,048,576. Further ones get 429. Requests whose body is still arriving do not count. Defaults
	// to 1,000.
	TenantLimit int

	// TenantBytes bounds the memory of one tenant's bodies that are still arriving, from 1 MiB to 1
	// GiB: a request that needs more gets 429. A quarter is reserved for bodies below 64 KiB, and
	// half of that for those below 4 KiB. At least four thirds of each Route.MaxBody. A body takes
	// memory as it arrives, whatever its Content-Length. After the first 5 s it must bring 32 KiB a
	// second on average, or the request gets 400 (code "body-unreadable"). Defaults to 64 MiB.
	//
	// Bodies that Scope reads have a room of the same size of their own, for all tenants together.
	TenantBytes int

	// TenantConns is how many connections of the pool the handlers of one tenant may hold at once,
	// from 1 to 1,048,576: in lease mode from the first [TxOf] on. It leaves connections to other
	// tenants if one tenant's handlers are slow. A further request waits for up to AcquireTimeout
	// and then gets 429; in lease mode Tx returns [ErrBusy]. Defaults to half of the pool's
	// MaxConns, at least 1. For requests without a tenant, for example with [GlobalScope], there is
	// no bound by default.
	TenantConns int

	// AcquireTimeout bounds the wait for a connection of the pool, and each single query of the
	// layer, from 10 ms to 1 minute. After that, the layer answers 503. Defaults to 5 s.
	AcquireTimeout time.Duration

	// Timeouts bound a handler's transaction, each from 1 ms to 1 hour, Commit from 100 ms. If the
	// outcome of a COMMIT is still open after Commit, the layer looks it up for as long again, and
	// then answers 503. Default to 5 s (Lock), 30 s (Statement), 60 s (Idle) and 15 s (Commit).
	Timeouts dedupe.Timeouts

	// LeaseTTL is how long the requests of a process that died stay locked in lease mode (H18),
	// from 1 s to 1 hour. Running processes renew their leases after a third of it. Defaults to 30
	// s.
	LeaseTTL time.Duration

	// PurgeInterval is how often [Layer.Run] deletes expired records, from 100 ms to 24 hours.
	// Defaults to 10 s.
	PurgeInterval time.Duration

	// Hooks observe requests. Defaults to none.
	Hooks Hooks

	// Trace returns the W3C trace context of a context: a traceparent, and a tracestate in a second
	// line if there is one. A call that a handler enqueues carries the result of Trace for the
	// context of outbox.Enqueue, and so does an operation that it begins. Package telemetry sets
	// it. It must be safe for concurrent use. If it panics or returns "" or anything else, the call
	// carries the request's own trace context. Defaults to the request's for all calls.
	Trace func(ctx context.Context) string

	// Logger receives events that cannot be returned as an error. Keys and bodies are never logged.
	// Refused requests are logged at WARN, at most one a minute for each route and code. Defaults
	// to slog.Default(), at WARN and above.
	Logger *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	l := fields.List{Sentinel: ErrConfig, Struct: "Config"}
	if c.Scope == nil {
		l.Add("Scope",
			"must be set: it returns the owner of a request; use GlobalScope() if all clients share their keys (H2)")
	}
	if len(c.FingerprintKeys.ByID) == 0 {
		l.Add("FingerprintKeys", "must not be empty: requests are hashed with a secret key")
	} else if _, ok := c.FingerprintKeys.ByID[c.FingerprintKeys.Current]; !ok {
		l.Add("FingerprintKeys", "the current key, %d, must be in ByID", c.FingerprintKeys.Current)
	}
	for id, k := range c.FingerprintKeys.ByID {
		if k == (seal.Key{}) {
			l.Add("FingerprintKeys", "key %d is all zeros", id)
		}
	}
	if c.Cache != nil && c.Sealer == nil {
		l.Add("Cache", "needs a Sealer: answers leave the database only sealed (H21)")
	}
	if c.RequireSealed && c.Sealer == nil {
		l.Add("RequireSealed", "needs a Sealer: without one, every stored value would be refused")
	}
	if c.Cache == nil && (c.CacheTTL != 0 || c.CacheTimeout != 0) {
		l.Add("CacheTTL", "must be 0 without a Cache, and so must CacheTimeout")
	}
	l.Span("CacheTTL", &c.CacheTTL, 5*time.Minute, time.Second, 24*time.Hour)
	l.Span("CacheTimeout", &c.CacheTimeout, 50*time.Millisecond, time.Millisecond, 10*time.Second)
	c.Profile.setConfig(&l, &c)
	c.Headers = slices.Clone(c.Headers)
	if len(c.Headers) == 0 {
		c.Headers = []string{"Idempotency-Key"}
	}
	for i := range c.Headers {
		if protocol.CheckRequestHeaderName(&l, fmt.Sprintf("Headers[%d]", i), &c.Headers[i], ""); c.Headers[i] == "" {
			l.Add(fmt.Sprintf("Headers[%d]", i), "is empty")
		}
	}
	l.Number("TenantLimit", &c.TenantLimit, 1000, 1, 1<<20)
	l.Number("TenantBytes", &c.TenantBytes, 64<<20, 1<<20, 1<<30)
	if c.TenantConns < 0 || c.TenantConns > 1<<20 {
		l.Add("TenantConns", "is %d: must be from 0 to %d", c.TenantConns, 1<<20)
	}
	l.Span("AcquireTimeout", &c.AcquireTimeout, 5*time.Second, 10*time.Millisecond, time.Minute)
	l.Span("Timeouts.Lock", &c.Timeouts.Lock, 5*time.Second, time.Millisecond, time.Hour)
	l.Span("Timeouts.Statement", &c.Timeouts.Statement, 30*time.Second, time.Millisecond, time.Hour)
	l.Span("Timeouts.Idle", &c.Timeouts.Idle, 60*time.Second, time.Millisecond, time.Hour)
	l.Span("Timeouts.Commit", &c.Timeouts.Commit, 15*time.Second, 100*time.Millisecond, time.Hour)
	l.Span("LeaseTTL", &c.LeaseTTL, 30*time.Second, time.Second, time.Hour)
	l.Span("PurgeInterval", &c.PurgeInterval, 10*time.Second, 100*time.Millisecond, 24*time.Hour)
	c.Logger = fields.Logger(c.Logger)
	return c, l.Err()
}

// ErrConfig is wrapped by every error about a configuration, and by every error of [New],
// [NewOperations] and [Layer.Handle].
var ErrConfig = errors.New("idempotency: invalid configuration")
