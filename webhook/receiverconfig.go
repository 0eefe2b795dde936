package webhook

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
)

// Mode is what a receiver does with an event that is new.
type Mode int

// Modes.
const (
	// Inbox stores the event raw, and answers. A consumer handles it from there; see [NewSource].
	Inbox Mode = iota
	// Inline runs the handler in the receiver's own transaction, and answers when that has committed.
	Inline
	// ForwardOnly enqueues what ReceiverConfig.Forward says, and nothing else.
	ForwardOnly
)

// ReceiverConfig describes an endpoint. The zero value of a field is the default that its comment names; a value out of range is
// an error of [NewReceiver] and never adjusted.
type ReceiverConfig struct {
	// Endpoint names it: ids are unique for each endpoint, and its stream is webhook.<Endpoint>. 1 to 100 of A-Z a-z 0-9 . _ -.
	// Required; under another name every event is new.
	Endpoint string

	// Verifier says who may send, from [New]. Required.
	Verifier *Verifier

	// Mode is [Inbox] by default.
	Mode Mode
	// Handler is called in mode Inline: of the same type as a consumer's, so that one handler does for both; [EventOf] has the
	// event. It runs in the transaction that has claimed the event's id, and an error rolls both back: the sender is told 500, and sends again.
	// That holds for a permanent error too: nothing is parked here but what [InOrder] finds stale. Its context ends when three quarters
	// of Deadline have passed. Required there, nil elsewhere.
	Handler consumer.Handler

	// Forward has the event sent on through the outbox, in the same transaction. Required in mode ForwardOnly.
	Forward *Forward

	// OrderingKey finds what an event is about: events of one key are handled in the order of their arrival, one after another. Nil, or an empty
	// key: in no order. It may panic and return anything; its event is then one without a key.
	OrderingKey func(*Event) string
	// Tenant names the customer that an event belongs to, where customers choose ids themselves: at most 255 bytes of UTF-8 without control characters. If it
	// panics or returns anything else the request is answered with 500 and nothing is stored ([ErrTenant]), because under a tenant that it does not belong to
	// an event passes for a copy of another customer's. Event.Header has the kept headers only. Nil: one tenant.
	Tenant func(*Event) string

	// Partitions is how many partitions the endpoint's stream gets: how many events are handled at once, at most; and events of one partition
	// commit one after another. Default 16, up to
	// 1,024. For good, from the first event on.
	Partitions int

	// Sources of this process that read the endpoint's stream are woken after each commit.
	Sources []*Source

	// Retention is for how long a sender may deliver an event again (W10): at least 7 days, twice the verifier's tolerance, and what the
	// provider's Scheme.Redeliveries says. Receiver.Run does not begin where the inbox remembers ids for less (onlyonce inbox horizon -ring standard_keys;
	// 7 days in a new database). Default: the longest of these.
	Retention time.Duration

	// BodyWindow is for how long a body is remembered of senders that do not sign the event's id (GitHub, Shopify): within it the same body
	// under another id is set aside as a likely copy (W7). Default 1 hour, from 1 minute up to Retention.
	BodyWindow time.Duration

	// DuplicateWait is how long a copy waits for an uncommitted first one. Default and at most 2 s. Then 503 (W9).
	DuplicateWait time.Duration

	// Deadline is how long a request may take, from its first byte here to the answer. Default: four fifths of what the provider's
	// Scheme.Answer says, and at most that (W12). At least 500 ms.
	Deadline time.Duration

	// RetryAfter is what answers of 503 ask for, in whole seconds. Default 5 s, at least 1 s.
	RetryAfter time.Duration

	// MaxInFlight is how many verified events are worked on at once: more are told 503. Default 256. Requests whose body is still coming, or that nobody has
	// signed, do not count.
	MaxInFlight int

	// MaxBytes bounds the memory of bodies that are held at once, verified or not, in bytes: a request that needs more is told 503. Default 64 MiB, or four times
	// the verifier's MaxBody where that is more; at least that plus 1. A body takes memory as it comes, whatever its Content-Length, and must bring 32 KiB
	// a second on the average after the first 5 s: then 408.
	MaxBytes int64

	// MaxAside bounds, in bytes of a day in UTC, what is stored of copies that are told by their body alone (W7): headers, the first copy's body, and 500
	// bytes each. A copy beyond it is told 503, with [ErrAside]; events that are none are not affected. Default 256 MiB, or four times the verifier's MaxBody
	// where that is more; at least that plus 64 KiB.
	MaxAside int64

	// KeepDivergent keeps, in the parked table and as discarded, the body of a copy that is not that of the first (W9).
	KeepDivergent bool

	// Reconcile lists events that were missed. Nil: nothing is. See [Receiver.Run].
	Reconcile *Reconcile

	Hooks Hooks
	// Logger receives what no caller is there to be told. Nil: nothing is logged. Never bodies, headers or ids.
	Logger *slog.Logger
}

const (
	leastRetention = 7 * 24 * time.Hour
	unknownAnswer  = 5 * time.Second
	mostWait       = 2 * time.Second
)

var validEndpoint = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)

// withDefaults fills in the zero values and returns every fault at once.
func (c ReceiverConfig) withDefaults(pool *pgxpool.Pool) (ReceiverConfig, error) {
	var faults []error
	fault := func(field, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: %s: %s", ErrConfig, field, fmt.Sprintf(format, args...)))
	}
	switch {
	case pool == nil:
		fault("pool", "must not be nil")
	case pool.Config().ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol:
		fault("pool", "the simple protocol (default_query_exec_mode=simple_protocol) is refused: it interpolates values into SQL")
	}
	if !validEndpoint.MatchString(c.Endpoint) {
		fault("ReceiverConfig.Endpoint", "%q must be 1 to 100 of A-Z a-z 0-9 . _ -", c.Endpoint)
	}
	scheme := &Scheme{}
	var past, future time.Duration
	if c.Verifier == nil {
		fault("ReceiverConfig.Verifier", "must be set: without it anybody could send")
	} else {
		scheme, past, future = c.Verifier.scheme, c.Verifier.past, c.Verifier.future
		if strings.ContainsAny(scheme.Name, "/\x00") {
			fault("ReceiverConfig.Verifier", "its provider's name %q must hold no slash", scheme.Name)
		}
	}
	if !slices.Contains([]Mode{Inbox, Inline, ForwardOnly}, c.Mode) {
		fault("ReceiverConfig.Mode", "%d must be Inbox, Inline or ForwardOnly", c.Mode)
	}
	if (c.Handler != nil) != (c.Mode == Inline) {
		fault("ReceiverConfig.Handler", "must be set in mode Inline, and nowhere else")
	}
	if c.Forward == nil && c.Mode == ForwardOnly {
		fault("ReceiverConfig.Forward", "must be set in mode ForwardOnly")
	}
	if c.Forward != nil {
		for _, err := range c.Forward.faults(c.Verifier) {
			fault("ReceiverConfig.Forward", "%v", err)
		}
	}
	if len(c.Sources) > 0 && c.Mode != Inbox {
		fault("ReceiverConfig.Sources", "must be empty but in mode Inbox: nothing is stored to be read")
	}
	if slices.Contains(c.Sources, nil) {
		fault("ReceiverConfig.Sources", "must not hold nil")
	}
	if c.Partitions == 0 {
		c.Partitions = 16
	}
	if c.Partitions < 1 || c.Partitions > 1024 {
		fault("ReceiverConfig.Partitions", "%d is not from 1 to 1024", c.Partitions)
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = 256
	}
	if c.MaxInFlight < 0 {
		fault("ReceiverConfig.MaxInFlight", "%d is negative", c.MaxInFlight)
	}
	if c.Verifier != nil {
		if c.MaxBytes == 0 {
			c.MaxBytes = max(64<<20, 4*int64(c.Verifier.maxBody))
		}
		if least := int64(c.Verifier.maxBody) + 1; c.MaxBytes < least {
			fault("ReceiverConfig.MaxBytes", "%d is not at least %d: one body of the verifier's MaxBody", c.MaxBytes, least)
		}
	}
	if c.Verifier != nil {
		if c.MaxAside == 0 {
			c.MaxAside = max(256<<20, 4*int64(c.Verifier.maxBody))
		}
		if least := int64(c.Verifier.maxBody) + 64<<10; c.MaxAside < least {
			fault("ReceiverConfig.MaxAside", "%d is not at least %d: one body of the verifier's MaxBody, and 64 KiB", c.MaxAside, least)
		}
	}
	duration := func(field string, d *time.Duration, def, least, most time.Duration, why string) {
		if *d == 0 {
			*d = def
		}
		if *d < least || *d > most {
			fault("ReceiverConfig."+field, "%v is not from %v to %v%s", *d, least, most, why)
		}
	}
	const never = 1<<63 - 1
	// W10: an id that is forgotten while its sender still delivers is a new one.
	least := max(leastRetention, 2*past, 2*future, scheme.Redeliveries)
	duration("Retention", &c.Retention, least, least, never, ": a sender may deliver an event again within that")
	duration("BodyWindow", &c.BodyWindow, time.Hour, time.Minute, max(c.Retention, time.Minute), "")
	answer := scheme.Answer
	if answer == 0 {
		answer = unknownAnswer
	}
	// W12.
	duration("Deadline", &c.Deadline, answer*4/5, 500*time.Millisecond, answer, ": the sender waits no longer")
	duration("DuplicateWait", &c.DuplicateWait, mostWait, time.Millisecond, mostWait, "")
	duration("RetryAfter", &c.RetryAfter, 5*time.Second, time.Second, never, "")
	if c.Reconcile != nil {
		r := *c.Reconcile
		c.Reconcile = &r
		if r.List == nil {
			fault("ReceiverConfig.Reconcile", "List must be set")
		}
		duration("Reconcile.Every", &c.Reconcile.Every, 15*time.Minute, time.Second, never, "")
		duration("Reconcile.Overlap", &c.Reconcile.Overlap, time.Hour, 0, never, "")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, errors.Join(faults...)
}
