package webhook

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/bodies"
	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/webhook/internal/received"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// Backfill adds events that the provider has but that never reached the endpoint, because the
// sender gave up or had disabled the endpoint.
type Backfill struct {
	// List calls each for every event since a time, for example from a list in the provider's API.
	// The time is never longer ago than Config.Retention. List may list events in any order and
	// list older ones too. If each returns an error, List must return it. If an event's handler
	// fails, or its tenant is not known, each returns nil; the backfill counts as failed, and the
	// next one lists from the same time. Required.
	//
	// With TenantSecrets it sets the Event's Tenant, too. An Event's ID must be the webhook's id,
	// its Body one that the handler can parse, and its Time when it happened, or a later time; the
	// three are required. An event that happened longer ago than Config.Retention is passed over:
	// its id may be forgotten, so it would be accepted a second time. The endpoint takes Type,
	// Header and Time as they are, and sets Provider. If the sender signs no ids, Body should be
	// the delivered bytes if the list has them: they are then known, too, when a stranger sends
	// them under another id (W7).
	List func(ctx context.Context, since time.Time, each func(*Event) error) error
	// Every is the time from the beginning of one backfill to the beginning of the next, in any
	// process, at least 1 s. Defaults to 15 min.
	Every time.Duration
	// Overlap is how far back before the beginning of the last complete backfill the next one
	// looks, for events that a provider lists late. Defaults to 1 hour.
	Overlap time.Duration
}

// EndpointMode decides how an endpoint processes a new event.
type EndpointMode int

// Modes of an endpoint.
const (
	// Stored stores the event as it came, and answers. A consumer handles it, whose source is the
	// endpoint, or a [Source].
	Stored EndpointMode = iota
	// Inline runs the handler in the transaction that claims the event, and answers after its
	// COMMIT.
	Inline
	// ForwardOnly only enqueues the call that Config.Forward describes.
	ForwardOnly
)

// SameBodies decides about bodies that came before and do not name themselves (W7).
type SameBodies int

// Decisions about such bodies. Neither loses an event.
const (
	// ParkSameBodies sets each of them aside whole, for a person to compare: a stranger's recorded
	// request is never handled within BodyWindow, and a genuine event waits for a redrive.
	ParkSameBodies SameBodies = iota
	// HandleSameBodies makes each of them an event: a genuine one is handled at once, and so is a
	// recorded request of such a kind, as often as a stranger sends it under an id that is made up.
	HandleSameBodies
)

// Config describes an endpoint. The zero value of a field is the default that its comment names; a
// value out of range is an error of [New] and never adjusted.
type Config struct {
	// Name names the endpoint: ids are unique for each endpoint, and its stream is webhook.<Name>.
	// 1 to 100 characters of A-Z a-z 0-9 . _ -. Under another name every event is new. Required.
	Name string

	// Provider is the sender's way of signing: [Standard], [Stripe], [GitHub], [Shopify], [Slack],
	// [HMAC], one of the packages below this one, for example paypal, or your own. Required.
	Provider Provider

	// Secrets are the currently valid secrets, in the provider's own form: 1 to 8, each of at least
	// 16 characters. While you replace one, list the old and the new one, in any order. Required:
	// without a secret, anyone could send. They must be empty for a sender that signs with a
	// certificate (PayPal, SNS), and with TenantSecrets.
	Secrets []string

	// TenantSecrets looks up the secrets of the request's tenant, in place of Secrets and Tenant.
	// Defaults to none.
	TenantSecrets *TenantSecrets

	// Tolerance is how far the signed time may be from this machine's clock, in the directions that
	// the provider's scheme checks: 1 s to 24 hours. It must be 0 for a provider that signs no
	// time, for example GitHub. Defaults to the provider's, for example 5 minutes.
	//
	// If it is shorter than a sender's queue delay or a clock's error, valid requests are refused.
	// If it is longer, an attacker can send a recorded request for longer, and deduplication has to
	// catch it.
	Tolerance time.Duration

	// MaxBody is the longest body, in bytes, up to 32 MiB. A longer one gets 413. Defaults to 1
	// MiB.
	MaxBody int

	// KeepHeaders are headers that Event.Header has besides Content-Type and those of the provider,
	// for example "X-Request-Id". They are not signed. Credentials and signatures are refused.
	// Defaults to none.
	KeepHeaders []string

	// Mode decides how the endpoint processes a new event. Defaults to [Stored].
	Mode EndpointMode

	// Handler applies an event in mode Inline, where it is required; [EventOf] returns the event of
	// its message. It runs in the transaction that has claimed the event's id. An error rolls back
	// both; the sender gets 500 and sends again. A permanent error does not park the event either;
	// only an event that [InOrder] finds stale is parked. Its context ends after HandlerTimeout.
	//
	// In mode Stored it must not be set: give the handler to
	// consumer.New, whose source is the endpoint.
	Handler consumer.Handler

	// Forward sends the event on through the outbox, in the same transaction. Required in mode
	// ForwardOnly. Defaults to none.
	Forward *Forward

	// OrderingKey returns the key of the event's object: events of one key are handled one after
	// another, in the order of their arrival. If it returns "" or panics, the event is handled in
	// no particular order. Defaults to no order.
	OrderingKey func(*Event) string

	// Tenant returns the customer that an event belongs to, if customers choose ids themselves: at
	// most 255 bytes of UTF-8 without control characters. If it panics or returns anything else,
	// the endpoint answers 500 and does not store the event ([ErrTenant]): under a wrong tenant an
	// event would pass for a copy of another customer's. Event.Header has the kept headers only.
	// Take the name from the body if you can. Most senders do not sign their headers, for example
	// X-Shopify-Shop-Domain, so a stranger who has recorded a request can send its body again for
	// another tenant. Defaults to one tenant.
	Tenant func(*Event) string

	// Partitions is the number of partitions of the endpoint's stream, up to 1,024. It bounds the
	// events that are handled at once: those of one partition commit one after another. The first
	// event fixes the number. Defaults to 16.
	Partitions int

	// Group names the consumers that share the stored events. They have one scope. Consumers with
	// scopes of their own each handle every event, and need groups of their own. At most 200 bytes.
	// Defaults to the consumer's Scope.
	Group string

	// PollInterval is how often the endpoint, as a source, polls for events that other processes
	// have stored, and for members that joined or left. Defaults to 500 ms.
	PollInterval time.Duration

	// LeaseTTL is how long the partitions of a dead member stay without an owner, from 1 s to 1
	// hour. Defaults to 15 s.
	LeaseTTL time.Duration

	// KeepEvents is how long stored events are kept after every consumer has passed them, for
	// replays. Those that a consumer has not passed are kept for longer. Defaults to 7 days.
	KeepEvents time.Duration

	// Retention is how long after an event its sender may still deliver it again (W10): at least
	// one day, twice the tolerance, and the provider's Scheme.Redeliveries, for example 72 hours
	// for GitHub. [Endpoint.Upkeep] returns an error if the inbox remembers ids for less: for 7
	// days in a new database, or for the horizon of the endpoint's class (onlyonce inbox class
	// -scope webhook/NAME). Defaults to the longest of these.
	Retention time.Duration

	// Sealer encrypts the bodies of events before they are stored, parked or forwarded. Headers,
	// ids and ordering keys are stored as they are. An inline Handler gets events open. Give the
	// consumer's handler them open with [consumer.Unsealed], and set outbox.RelayConfig.Sealer for
	// Forward. To rotate
	// the encryption key, see package seal. Defaults to none: bodies are stored as they are (W22).
	Sealer *seal.Sealer

	// BodyWindow is how long the endpoint remembers a body if the sender does not sign the event's
	// id, from 1 minute to Retention: within it, the same body under another id is set aside (W7).
	// Defaults to Retention for GitHub, Shopify and Twilio, most of whose bodies name themselves.
	// For other senders, two of whose events may have the same body, it defaults to 1 hour; for one
	// that signs a time (PayPal), to as long as that time counts.
	BodyWindow time.Duration

	// SameBodies decides about an event whose id is not signed, whose body came within BodyWindow
	// under another id, and whose kind has bodies that do not name themselves: it may be another
	// event in the same words, or a recorded request. See docs/guide/webhook-bodies.md. Defaults to
	// [ParkSameBodies].
	SameBodies SameBodies

	// DuplicateWait is how long a copy waits for an uncommitted first one, at most 2 s. Then it
	// gets 503 (W9). Defaults to 2 s.
	DuplicateWait time.Duration

	// HandlerTimeout is the time from a request's first byte to the end of an inline handler's
	// context: 375 ms to three quarters of the provider's Scheme.Answer, or to 30 s if that is
	// unknown, for example of [HMAC]. In every mode the endpoint answers within four thirds of it
	// (W12). Defaults to three fifths of Scheme.Answer, or to 3 s.
	HandlerTimeout time.Duration

	// RetryAfter is the delay in the Retry-After of a 503, in whole seconds, at least 1 s. Defaults
	// to 5 s.
	RetryAfter time.Duration

	// MaxInFlight is how many verified events the endpoint processes at once; further ones get 503.
	// Requests whose body is still arriving, and unsigned ones, do not count. Defaults to 256.
	MaxInFlight int

	// MaxBytes bounds the memory of bodies held at once, verified or not, in bytes: a request that
	// needs more gets 503. A quarter is reserved for bodies below 64 KiB, and half of that for
	// those below 4 KiB. At least four thirds of MaxBody. A body takes memory as it arrives,
	// whatever its Content-Length. After the first 5 s it must bring 32 KiB a second on average, or
	// it gets 408. Defaults to 64 MiB, or four times MaxBody if that is more.
	MaxBytes int64

	// MaxQuarantineBytes bounds, in bytes a day (UTC), the events that are set aside if the sender
	// does not sign the event's id, because their body or id came before (W7). Each counts with its
	// headers, its body and 500 bytes. A further such event gets 503 ([ErrQuarantineFull]); other
	// events are not affected. At least MaxBody plus 64 KiB. Defaults to 256 MiB, or four times
	// MaxBody if that is more.
	MaxQuarantineBytes int64

	// Backfill lists missed events; [Endpoint.Upkeep] calls it. Defaults to none.
	Backfill *Backfill

	// Hooks observe requests. Defaults to none.
	Hooks Hooks

	// Trace returns the W3C trace context of a context: a traceparent, and a tracestate in a second
	// line if there is one. A call that an inline handler enqueues carries the result of Trace for
	// the context of outbox.Enqueue, and so does the call of Forward. A stored event carries its
	// result for the request's context, in the headers traceparent and tracestate of its message;
	// for the calls of its handler see consumer.Config.Trace. Package telemetry sets it. It must be
	// safe for concurrent use. If it panics or returns "" or anything else, there is no trace
	// context. Defaults to none.
	Trace func(ctx context.Context) string

	// Logger receives events that cannot be returned as an error, never bodies, headers or ids.
	// Refused requests are logged at WARN, at most one a minute for each reason. Defaults to
	// slog.Default(), at WARN and above.
	Logger *slog.Logger

	verifier *Verifier     // of the fields above
	deadline time.Duration // of a request
}

const (
	minRetention     = 24 * time.Hour
	defaultAnswer    = 5 * time.Second  // of a sender that does not publish how long it waits
	maxUnknown       = 30 * time.Second // of Config.HandlerTimeout for such a sender
	maxDuplicateWait = 2 * time.Second
)

// withDefaults fills in the zero values and returns every fault at once.
func (c Config) withDefaults(pool *pgxpool.Pool) (Config, error) {
	l := &fields.List{Sentinel: ErrConfig, Struct: "Config"}
	l.Join(primary.CheckPool(ErrConfig, pool))
	if !validEndpoint.MatchString(c.Name) {
		l.Add("Name", "%q must be 1 to 100 of A-Z a-z 0-9 . _ -", c.Name)
	}
	sender := &scheme.Scheme{}
	var past, future time.Duration
	var err error
	if c.verifier, err = newVerifier(&c, received.MinSecret); err != nil {
		l.Join(err)
	} else {
		sender = c.verifier.scheme
		past = c.verifier.past
		future = c.verifier.future
		if strings.ContainsAny(sender.Name, "/\x00") {
			l.Add("Provider", "its name, %q, must not contain a slash", sender.Name)
		}
	}
	c.checkMode(l)
	c.boundSizes(l)
	c.boundTimes(l, sender, past, future)
	c.Logger = fields.Logger(c.Logger)
	return c, l.Err()
}

// checkMode checks what goes with the mode.
func (c *Config) checkMode(l *fields.List) {
	if !slices.Contains([]EndpointMode{Stored, Inline, ForwardOnly}, c.Mode) {
		l.Add("Mode", "%d must be Stored, Inline or ForwardOnly", c.Mode)
	}
	switch {
	case c.Handler == nil && c.Mode == Inline:
		l.Add("Handler", "must be set in mode Inline")
	case c.Handler != nil && c.Mode == Stored:
		l.Add("Handler",
			"must not be set in mode Stored: give the handler to consumer.New, whose source is the endpoint")
	case c.Handler != nil && c.Mode == ForwardOnly:
		l.Add("Handler", "must not be set in mode ForwardOnly: nothing would call it")
	}
	if c.Handler != nil {
		l.Part("Handler", c.Handler)
	}
	if c.Forward == nil && c.Mode == ForwardOnly {
		l.Add("Forward", "must be set in mode ForwardOnly")
	}
	if c.SameBodies != ParkSameBodies && c.SameBodies != HandleSameBodies {
		l.Add("SameBodies", "%d must be ParkSameBodies or HandleSameBodies", c.SameBodies)
	}
	if c.Forward != nil {
		c.Forward.check(l, c.verifier)
	}
}

// boundSizes fills in numbers and bytes. Those that depend on the largest body need the verifier.
func (c *Config) boundSizes(l *fields.List) {
	l.Number("Partitions", &c.Partitions, 16, 1, 1024)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 256)
	if c.MaxInFlight < 0 {
		l.Add("MaxInFlight", "is %d: must not be negative", c.MaxInFlight)
	}
	if c.verifier == nil {
		return
	}
	c.MaxBytes = cmp.Or(c.MaxBytes, max(64<<20, 4*int64(c.verifier.maxBody)))
	if least := bodies.LeastRoom(int64(c.verifier.maxBody)); c.MaxBytes < least {
		l.Add("MaxBytes",
			"is %d: must be at least %d: one body of MaxBody, and a quarter for small ones",
			c.MaxBytes,
			least)
	}
	c.MaxQuarantineBytes = cmp.Or(c.MaxQuarantineBytes, max(256<<20, 4*int64(c.verifier.maxBody)))
	if least := int64(c.verifier.maxBody) + 64<<10; c.MaxQuarantineBytes < least {
		l.Add("MaxQuarantineBytes",
			"is %d: must be at least %d: one body of MaxBody, and 64 KiB", c.MaxQuarantineBytes, least)
	}
}

// boundTimes fills in durations. past and future are how far a signature's time may be off.
func (c *Config) boundTimes(l *fields.List, sender *scheme.Scheme, past, future time.Duration) {
	duration := func(field string, d *time.Duration, def, least, most time.Duration, why string) {
		*d = cmp.Or(*d, def)
		if *d < least || *d > most {
			l.Add(field, "is %v: must be from %v to %v%s", *d, least, most, why)
		}
	}
	const never = 1<<63 - 1
	// W10: if an id is forgotten while its sender still delivers, the next copy is a new event.
	least := max(minRetention, 2*past, 2*future, sender.Redeliveries)
	duration("Retention", &c.Retention, least, least, never, ": a sender may deliver an event again within that")
	window := time.Hour
	if sender.Names != nil {
		window = c.Retention // W7: for as long as the id
	} else if !sender.IDSigned {
		window = max(window, past+future) // for as long as the signature counts
	}
	duration("BodyWindow", &c.BodyWindow, window, time.Minute, max(c.Retention, time.Minute), "")
	answer := sender.Answer
	longest := sender.Answer * 3 / 4
	if answer == 0 {
		answer = defaultAnswer
		longest = maxUnknown
	}
	// W12.
	duration("HandlerTimeout",
		&c.HandlerTimeout,
		answer*3/5,
		375*time.Millisecond,
		longest,
		": the sender waits no longer for an answer")
	c.deadline = c.HandlerTimeout * 4 / 3
	duration("DuplicateWait", &c.DuplicateWait, maxDuplicateWait, time.Millisecond, maxDuplicateWait, "")
	duration("RetryAfter", &c.RetryAfter, 5*time.Second, time.Second, never, "")
	if c.Backfill != nil {
		r := *c.Backfill
		c.Backfill = &r
		if r.List == nil {
			l.Add("Backfill", "List must be set")
		}
		duration("Backfill.Every", &c.Backfill.Every, 15*time.Minute, time.Second, never, "")
		duration("Backfill.Overlap", &c.Backfill.Overlap, time.Hour, 0, never, "")
	}
}
