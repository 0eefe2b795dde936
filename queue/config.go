package queue

import (
	"cmp"
	"errors"
	"log/slog"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/brake"
	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/seal"
)

// ErrConfig is wrapped by every error about a configuration, ours and the broker's.
var ErrConfig = errors.New("queue: invalid configuration")

var validName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)

// Config configures a [Queue]. The zero value of a field is the default that its comment names; a
// value out of range is an error of [New] and never adjusted.
type Config struct {
	// Name names the queue: ids are unique for each queue, and its stream is queue.<Name>. 1 to 100
	// characters of A-Z a-z 0-9 . _ -. Under another name every message is new. Required.
	Name string

	// CopiesWithin is how long after a message a copy of it may come, at least 1 minute: from the
	// broker, which delivers again until it is acknowledged, or from a producer that sends again.
	// Usually it is the producer's longest retry plus the broker's retention, because a copy waits
	// at the broker while no receiver runs. The receiver does not begin if the adapter finds a
	// longer retention, or if the inbox remembers ids for less: 7 days in a new database, or the
	// horizon of the queue's class (onlyonce inbox class -scope queue/NAME). Required.
	CopiesWithin time.Duration

	// Identify sets ID, Tenant and Key of a delivery from its headers or its body. It must return
	// the same for each copy. If it fails or panics, the message is parked with its error, without
	// an id. If it does not return, nothing is received, and Healthy says so after LeaseTTL. It
	// must not end the process, for which no attempts are counted. Defaults to what the broker's
	// adapter has set.
	Identify func(*Delivery) error

	// Fingerprint returns the part of a message that all its copies have in common. A message that
	// has the id of an earlier one and another such part is no copy, and is parked as conflict. Set
	// it if a producer renders a message anew when it sends it again, for example with another time
	// of sending, or with the address of an object that it has uploaded again. The price: a message
	// that differs from the first of its id elsewhere only is skipped as a copy. [IDAlone] compares
	// nothing, so the id decides alone: if a producer gives two messages one id by mistake, the
	// second is lost without a report.
	//
	// It must return the same for each copy, and be kept: copies of messages that were claimed
	// under another function are conflicts, unless one of the two is IDAlone. It runs after
	// Identify, and if it panics the message is parked as no-key. Defaults to the body.
	Fingerprint func(*Delivery) []byte

	// Brake holds the queue if nearly all of its messages cannot be stored, instead of parking
	// them, for example because Identify looks for the id in the wrong place. It considers what
	// would be parked as no-key, too-old or permanent. The receiver then keeps what it has,
	// receives nothing more, and [Queue.Healthy] says so. One message is tried each Every; when it
	// is stored, the others follow. Each receiver has a brake of its own. Defaults to on (Q7).
	Brake consumer.Brake

	// Ordered keeps the broker's order: one process at a time receives, under a lease, and a
	// process that takes over waits until the broker has taken back what the one before it held.
	// The others stand by. Defaults to false: each process receives, and messages that are
	// delivered to two of them, or twice, are stored in any order.
	Ordered bool

	// Batch is how many messages one transaction stores at most, from 1 to 1,000. A batch above 8
	// MiB is stored in parts. Defaults to 256.
	Batch int

	// Partitions is the number of partitions of the queue's stream, up to 1,024. It bounds the
	// messages that are handled at once. The first process fixes the number. Defaults to 16.
	Partitions int

	// Group names the consumers that share the partitions. They have one scope. Consumers with
	// scopes of their own each handle every message, and need groups of their own. At most 200
	// bytes. Defaults to the consumer's Scope.
	Group string

	// PollInterval is how often the source polls for messages that other processes have stored, and
	// for members that joined or left. Defaults to 500 ms.
	PollInterval time.Duration

	// LeaseTTL is how long the partitions of a dead member, and with Ordered the receiver's place,
	// stay without an owner, from 1 s to 1 hour. Defaults to 15 s.
	LeaseTTL time.Duration

	// Retention is how long messages are kept after every consumer has passed them, for replays.
	// Those that a consumer has not passed are kept for longer. Defaults to 7 days.
	Retention time.Duration

	// Sealer encrypts the bodies of messages before they are stored or parked. Ids, ordering keys
	// and headers are stored as they are. Give the consumer's handler the bodies open with
	// [consumer.Unsealed]. To rotate the encryption key, see package seal. Defaults to none: bodies
	// are stored as they are (W22).
	Sealer *seal.Sealer

	// OnStored is called after messages were stored, before they are acknowledged. It must be safe
	// for concurrent use. Defaults to none.
	OnStored func(StoredEvent)

	// Logger receives events that cannot be returned as an error, never bodies, headers or ids.
	// Defaults to slog.Default(), at WARN and above.
	Logger *slog.Logger
}

// StoredEvent counts messages that were stored together.
type StoredEvent struct {
	Fresh  int // appended to the stream
	Copies int // known before
	Parked int // without an id, or with the id of another body
}

const (
	defaultBatch = 256
	maxBatch     = 1000
	minCopies    = time.Minute
)

// withDefaults fills in the zero values and returns every fault at once. What eventsource checks is
// left to it.
func (c Config) withDefaults(pool *pgxpool.Pool, broker Broker) (Config, error) {
	l := &fields.List{Sentinel: ErrConfig, Struct: "Config"}
	l.Join(primary.CheckPool(ErrConfig, pool))
	if !validName.MatchString(c.Name) {
		l.Add("Name", "%q must be 1 to 100 of A-Z a-z 0-9 . _ -", c.Name)
	}
	if c.CopiesWithin < minCopies {
		l.Add("CopiesWithin",
			"is %v: must be at least %v: how long after a message may a copy come?",
			c.CopiesWithin,
			minCopies)
	}
	l.Number("Batch", &c.Batch, defaultBatch, 1, maxBatch)
	l.Signs(struct{ Brake consumer.Brake }{c.Brake})
	c.Brake = consumer.Brake(brake.Settings(c.Brake).WithDefaults())
	brake.Settings(c.Brake).Check(l)
	c.Partitions = cmp.Or(c.Partitions, 16)
	c.LeaseTTL = cmp.Or(c.LeaseTTL, 15*time.Second)
	if v, ok := broker.(BrokerValidate); ok {
		l.Join(v.Validate())
	}
	c.Logger = fields.Logger(c.Logger)
	return c, l.Err()
}
