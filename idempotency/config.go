package idempotency

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/seal"
)

// Scope says whose keys are looked at: a key means something only together with it, so that no customer ever meets another
// one's answers (H2). It comes from authentication, never from what the client says about itself.
type Scope struct {
	// Tenant is the customer. At most 200 bytes, no NUL.
	Tenant string
	// Principal separates users or API keys of one tenant. Empty: they share their keys.
	Principal string
}

// GlobalScope is one scope for everybody: whoever knows a key gets its answer. For servers that know no customers.
func GlobalScope() func(*http.Request) (Scope, error) {
	return func(*http.Request) (Scope, error) { return Scope{}, nil }
}

// Config is what the routes of a [Layer] share. The zero value of a field is the default that its comment names; a value
// out of range is an error of [New] and never adjusted.
type Config struct {
	// Scope finds whose request it is. Required: use [GlobalScope] where everybody may see everybody's answers. It
	// runs behind your authentication; an error refuses the request with 403. The request it gets is a copy: it may parse the form, and the
	// handler parses it again. Nothing else around the layer may read the body without giving it back: such a request is answered 500
	// ("body-consumed"), because requests with other bodies could not be told from it.
	Scope func(*http.Request) (Scope, error)

	// FingerprintKeys are secrets that requests are hashed with, by an id of yours, and FingerprintKey the id of the one for new records
	// (H7). Required: at least one. To rotate, add one everywhere before it is made current, and keep the old one for the longest TTL.
	FingerprintKeys map[uint32]FingerprintKey
	FingerprintKey  uint32

	// Sealer encrypts what is stored of answers, steps and operations (H16), bound to the place that it is stored in (H24). Nil: they are stored as
	// they are.
	Sealer *seal.Sealer
	// RequireSealed refuses stored values that are not sealed, as if they could not be opened: who can write to the tables can otherwise put
	// answers of his own there, unsealed. Default false: what was stored before there was a Sealer is read. Set it when those records have expired.
	// It needs a Sealer.
	RequireSealed bool

	// Cache keeps completed records outside the database, for reading (H21). It needs a Sealer. Nil: none.
	Cache Cache
	// CacheTTL is the longest that it keeps one, and how long an erased answer may be served after its erasure elsewhere than in this process.
	// Default 5 minutes, from 1 s to 24 hours: a repeated request comes soon or not at all.
	CacheTTL time.Duration
	// CacheTimeout is how long it may take: a repeated request is later by that much when the cache hangs, until it is left alone. Default 50 ms,
	// from 1 ms to 10 s.
	CacheTimeout time.Duration

	// Header carries the key, and Aliases do so too, for clients of other conventions ("X-Idempotency-Key", "PayPal-Request-Id").
	// Default "Idempotency-Key". A request in which two of them disagree is refused.
	Header  string
	Aliases []string
	// StatusHeader tells what became of the request, ReplayedHeader that the answer is a stored one, and ExpiresHeader until when it is.
	// Defaults "Idempotency-Status", "Idempotent-Replayed" and "Idempotency-Expires".
	StatusHeader, ReplayedHeader, ExpiresHeader string

	// TenantLimit is how many requests of one tenant this process works on at once; those beyond it get 429. Default 1000.
	TenantLimit int
	// TenantConns is how many connections of the pool handlers of one tenant hold at once in transactional mode, so that a tenant whose handlers are
	// slow leaves connections to the others. A request beyond it waits for AcquireTimeout, and then gets 429. Default half of the pool's MaxConns, and at least 1, where a request has a
	// tenant; those without one ([GlobalScope]) are not bounded by default.
	TenantConns int

	// AcquireTimeout is how long a connection of the pool is waited for, and any one look at the store may take. Then it is 503. Default 5 s,
	// from 10 ms to 1 minute.
	AcquireTimeout time.Duration
	// LockTimeout bounds each wait for a lock in a handler's transaction, StatementTimeout each statement, IdleTimeout how long the
	// handler may send nothing while it has a transaction. Defaults 5 s, 30 s and 60 s, from 1 ms to 1 hour.
	LockTimeout, StatementTimeout, IdleTimeout time.Duration
	// CommitTimeout bounds COMMIT, which a disconnected client does not end; what it leaves open is looked up. Default 15 s, from
	// 100 ms to 1 hour.
	CommitTimeout time.Duration
	// LeaseTTL is how long a process that died keeps its requests in lease mode from being taken over (H18). Renewed at a third of it.
	// Default 30 s, from 1 s to 1 hour.
	LeaseTTL time.Duration

	// PurgeInterval is how often [Layer.Run] looks for records that have expired, PurgeBatch how many one statement deletes. Defaults 10 s and
	// 1000. PurgeInterval from 100 ms to 24 hours, PurgeBatch from 1 to 100,000.
	PurgeInterval time.Duration
	PurgeBatch    int

	// Hooks are told about requests.
	Hooks Hooks
	// Logger receives what no caller is there to be told. Nil: nothing is logged. Keys and bodies are never logged.
	Logger *slog.Logger
}

// Mode is how a request's effects and its record are kept together.
type Mode int

const (
	// Transactional is for handlers whose effects are writes in this database, and calls through package outbox (H17): handler and
	// record are one transaction, [Tx]. A crash leaves nothing.
	Transactional Mode = iota
	// Leased is for handlers that must call somebody else half-way and answer what came of it (H18): see [Step].
	Leased
)

// KeyPolicy is what becomes of a request without a key (H5).
type KeyPolicy int

const (
	// KeyRequired answers 400.
	KeyRequired KeyPolicy = iota
	// KeyOptional runs the handler each time.
	KeyOptional
	// KeyDerived takes the request itself for its key, for Route.DerivedTTL: two equal requests within that time are one. Nobody
	// can tell a retry from a second purchase of the same thing: not for payments. Calls that the handler enqueues need a Call.ID.
	KeyDerived
)

// Route is what one operation of the API does. The zero value of a field is the default that its comment names.
type Route struct {
	// Pattern names the operation, and is part of each record's identity: "/v1/charges/{id}/capture". Required, at most 200
	// visible characters. Renaming it forgets its keys.
	Pattern string
	// Methods are those that keys count for: POST, PATCH, PUT or DELETE. Default POST and PATCH (H1). Requests of others run as if there were no layer.
	Methods []string
	// Mode is how effects and record are kept together. Default [Transactional].
	Mode Mode
	// Isolation is that of the handler's transaction. Default the server's. What the database calls a serialization failure
	// or a deadlock runs the handler again, three times at most.
	Isolation pgx.TxIsoLevel

	// Key is what becomes of a request without one. Default [KeyRequired].
	Key KeyPolicy
	// KeyPointer is a JSON Pointer (RFC 6901) to a string in the body that is the key too: "/idempotency_key".
	KeyPointer string
	// Strict takes keys only as the draft writes them, in quotes (H4). MinKey is the least length of a key in bytes, 1 to 255. Default 1.
	Strict bool
	MinKey int
	// DerivedTTL is how long a derived key counts. Default 60 s, from 1 s to 1 hour.
	DerivedTTL time.Duration

	// Fingerprint says what makes two bodies the same request. Default [FingerprintRaw].
	Fingerprint Fingerprint
	// FingerprintHeaders are request headers that are part of it, because they change what is done. Content-Type and Content-Encoding are part of it
	// anyway, and so are trailers. Transfer-Encoding and Trailer are refused.
	FingerprintHeaders []string

	// MaxBody is the longest request, MaxResponse the longest answer that is stored, in bytes. Default 1 MiB each, up to 32 MiB (H6, H15).
	MaxBody, MaxResponse int
	// TombstoneLarge, in lease mode, lets the first caller have a longer answer, up to 32 MiB, and the others 410. NoStoreBody stores no body at all, for secrets
	// that are shown once; others get 410.
	TombstoneLarge, NoStoreBody bool
	// KeepHeaders are answer headers that are stored besides the usual ones (H14).
	KeepHeaders []string
	// KeepWrites commits what the handler wrote before it answered a final 4xx, which is otherwise undone.
	KeepWrites bool
	// StoreServerErrors stores 5xx answers too, and MismatchStatus is the status for a key with another request: 422, the default, 400 or 409.
	// See [ProfileStripe].
	StoreServerErrors bool
	MismatchStatus    int
	// TTL is how long an answer is kept from its completion (H19). Default 48 hours, up to 400 days, and at least an hour longer than KeyWindow: 25
	// hours with the default of that. In lease mode it is also how long after its last attempt a request that was never completed is shown to
	// operators.
	TTL time.Duration
	// KeyWindow is for how long remotes remember keys that this route calls, in a [Step] or through the outbox. Default 24 hours, from 1 s to 400
	// days. Set 1 s on a route that calls nobody: nothing finds that out by itself, and a TTL below 25 hours is refused until you do. A step whose outcome is unknown is not asked about after that. TTL must be an hour longer, because keys
	// of calls are made of the request's: one that is used again when it has expired here must have expired there too, or the remote takes its call
	// for the old one.
	KeyWindow time.Duration

	// MaxHandlerTime ends the handler's context, whatever becomes of the client (H11). What it answers after that is undone, and 5 s later
	// a handler that has not returned loses key and connection. Default 30 s, from 1 ms to 1 hour.
	MaxHandlerTime time.Duration
	// Wait is how long a duplicate waits for the first one instead of getting 409 at once (H10). Default 0, at most 30 s.
	Wait time.Duration
	// FailOpen runs the handler without protection while the store is down, instead of 503 (H22). The answer says so
	// ("bypassed"). Only in lease mode: otherwise the handler's transaction is in the store that is down.
	FailOpen bool
}

// ProfileStripe makes the choices of Stripe's v1 API where they differ from the defaults: 5xx are stored and answered again, and
// another request under a used key gets 400. A stored 500 is answered for as long as its key lasts, so that the client must
// choose another key, not knowing whether anything was done: prefer the default, which undoes and runs again.
func ProfileStripe(r Route) Route {
	r.StoreServerErrors, r.MismatchStatus = true, http.StatusBadRequest
	return r
}

const maxStored = 32 << 20

func (c Config) withDefaults() (Config, error) {
	l := fields.List{Sentinel: ErrConfig, Struct: "Config"}
	if c.Scope == nil {
		l.Add("Scope", "is not set: say whose request it is, or choose GlobalScope() by name (H2)")
	}
	if len(c.FingerprintKeys) == 0 {
		l.Add("FingerprintKeys", "is empty: requests are hashed with a secret")
	} else if _, ok := c.FingerprintKeys[c.FingerprintKey]; !ok {
		l.Add("FingerprintKey", "%d is none of FingerprintKeys", c.FingerprintKey)
	}
	for id, k := range c.FingerprintKeys {
		if k == (FingerprintKey{}) {
			l.Add("FingerprintKeys", "key %d is all zeros", id)
		}
	}
	if c.Cache != nil && c.Sealer == nil {
		l.Add("Cache", "needs a Sealer: answers leave the database only sealed (H21)")
	}
	if c.RequireSealed && c.Sealer == nil {
		l.Add("RequireSealed", "needs a Sealer: nothing that this layer stores could be read")
	}
	if c.Cache == nil && (c.CacheTTL != 0 || c.CacheTimeout != 0) {
		l.Add("CacheTTL", "or CacheTimeout is set, and Cache is not: nothing would use it")
	}
	l.Span("CacheTTL", &c.CacheTTL, 5*time.Minute, time.Second, 24*time.Hour)
	l.Span("CacheTimeout", &c.CacheTimeout, 50*time.Millisecond, time.Millisecond, 10*time.Second)
	protocol.RequestHeader(&l, "Header", &c.Header, "Idempotency-Key")
	c.Aliases = slices.Clone(c.Aliases)
	for i := range c.Aliases {
		if protocol.RequestHeader(&l, fmt.Sprintf("Aliases[%d]", i), &c.Aliases[i], ""); c.Aliases[i] == "" {
			l.Add(fmt.Sprintf("Aliases[%d]", i), "is empty")
		}
	}
	protocol.Header(&l, "StatusHeader", &c.StatusHeader, "Idempotency-Status")
	protocol.Header(&l, "ReplayedHeader", &c.ReplayedHeader, "Idempotent-Replayed")
	protocol.Header(&l, "ExpiresHeader", &c.ExpiresHeader, "Idempotency-Expires")
	l.Number("TenantLimit", &c.TenantLimit, 1000, 1, 1<<20)
	if c.TenantConns < 0 || c.TenantConns > 1<<20 {
		l.Add("TenantConns", "%d is not from 0 to %d", c.TenantConns, 1<<20)
	}
	l.Span("AcquireTimeout", &c.AcquireTimeout, 5*time.Second, 10*time.Millisecond, time.Minute)
	l.Span("LockTimeout", &c.LockTimeout, 5*time.Second, time.Millisecond, time.Hour)
	l.Span("StatementTimeout", &c.StatementTimeout, 30*time.Second, time.Millisecond, time.Hour)
	l.Span("IdleTimeout", &c.IdleTimeout, 60*time.Second, time.Millisecond, time.Hour)
	l.Span("CommitTimeout", &c.CommitTimeout, 15*time.Second, 100*time.Millisecond, time.Hour)
	l.Span("LeaseTTL", &c.LeaseTTL, 30*time.Second, time.Second, time.Hour)
	l.Span("PurgeInterval", &c.PurgeInterval, 10*time.Second, 100*time.Millisecond, 24*time.Hour)
	l.Number("PurgeBatch", &c.PurgeBatch, 1000, 1, 100_000)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, l.Err()
}

func (r Route) withDefaults() (Route, error) {
	l := fields.List{Sentinel: ErrConfig, Struct: "Route"}
	switch {
	case r.Pattern == "":
		l.Add("Pattern", "is empty: it names the operation")
	case len(r.Pattern) > 200 || strings.ContainsFunc(r.Pattern, func(c rune) bool { return c <= ' ' || c > '~' }):
		l.Add("Pattern", "must be at most 200 visible ASCII characters")
	}
	protocol.Methods(&l, &r.Methods)
	if r.Mode != Transactional && r.Mode != Leased {
		l.Add("Mode", "%d is neither Transactional nor Leased", int(r.Mode))
	}
	if !slices.Contains([]pgx.TxIsoLevel{"", pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}, r.Isolation) {
		l.Add("Isolation", "%q is none of read committed, repeatable read and serializable", r.Isolation)
	}
	if !slices.Contains([]KeyPolicy{KeyRequired, KeyOptional, KeyDerived}, r.Key) {
		l.Add("Key", "%d is none of KeyRequired, KeyOptional and KeyDerived", int(r.Key))
	}
	if r.KeyPointer != "" && !strings.HasPrefix(r.KeyPointer, "/") {
		l.Add("KeyPointer", "%q must begin with '/' (RFC 6901)", r.KeyPointer)
	}
	l.Number("MinKey", &r.MinKey, 1, 1, protocol.MaxKey)
	if r.DerivedTTL != 0 && r.Key != KeyDerived {
		l.Add("DerivedTTL", "is set, and Key is not KeyDerived: nothing would use it")
	}
	l.Span("DerivedTTL", &r.DerivedTTL, time.Minute, time.Second, time.Hour)
	if r.Fingerprint != FingerprintRaw && r.Fingerprint != FingerprintJSON {
		l.Add("Fingerprint", "%d is neither FingerprintRaw nor FingerprintJSON", int(r.Fingerprint))
	}
	r.FingerprintHeaders = slices.Clone(r.FingerprintHeaders)
	for i := range r.FingerprintHeaders {
		if protocol.RequestHeader(&l, fmt.Sprintf("FingerprintHeaders[%d]", i), &r.FingerprintHeaders[i], ""); r.FingerprintHeaders[i] == "" {
			l.Add(fmt.Sprintf("FingerprintHeaders[%d]", i), "is empty")
		}
	}
	slices.Sort(r.FingerprintHeaders)
	r.FingerprintHeaders = slices.Compact(r.FingerprintHeaders)
	l.Number("MaxBody", &r.MaxBody, 1<<20, 1, maxStored)
	l.Number("MaxResponse", &r.MaxResponse, 1<<20, 1, maxStored)
	if err := checkExtra(r.KeepHeaders); err != nil {
		l.Add("KeepHeaders", "%v", err)
	}
	if r.TombstoneLarge && r.Mode != Leased {
		l.Add("TombstoneLarge", "is for lease mode: in a transaction a long answer can be rolled back (H15)")
	}
	if r.MismatchStatus == 0 {
		r.MismatchStatus = http.StatusUnprocessableEntity
	} else if !slices.Contains([]int{http.StatusUnprocessableEntity, http.StatusBadRequest, http.StatusConflict}, r.MismatchStatus) {
		l.Add("MismatchStatus", "%d is none of 422, 400 and 409", r.MismatchStatus)
	}
	day := 24 * time.Hour
	l.Span("TTL", &r.TTL, 2*day, time.Second, 400*day)
	l.Span("KeyWindow", &r.KeyWindow, day, time.Second, 400*day)
	if r.TTL < r.KeyWindow+stepMargin {
		l.Add("TTL", "%v is shorter than KeyWindow, %v, and an hour: a key that is used again later would make a call that the remote takes for the old one (H18); a route that calls nobody may say so: KeyWindow 1s", r.TTL, r.KeyWindow)
	}
	if r.Mode == Leased && r.Key == KeyDerived {
		l.Add("Key", "KeyDerived is not for lease mode: a derived key is forgotten long before a provider forgets its step's, and the same request after that is another one (H18)")
	}
	l.Span("MaxHandlerTime", &r.MaxHandlerTime, 30*time.Second, time.Millisecond, time.Hour)
	if r.Wait < 0 || r.Wait > 30*time.Second {
		l.Add("Wait", "%v is not from 0 to 30s (H10)", r.Wait)
	}
	if r.FailOpen && r.Mode != Leased {
		l.Add("FailOpen", "is for lease mode: a handler in transactional mode needs the store that is down")
	}
	return r, l.Err()
}

// stepMargin is how much longer than a provider a record remembers, and how much earlier than the provider's memory ends a step is not asked
// about any more.
const stepMargin = time.Hour
