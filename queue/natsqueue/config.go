package natsqueue

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/queue"
)

// Config describes a consumer of a stream. The zero value of a field is the default that its
// comment names; a value out of range is an error of queue.New and never adjusted.
type Config struct {
	// Stream is the name of the stream, which must exist. Required.
	Stream string
	// Durable is the name of the consumer. All processes of one queue share it. If there is none,
	// it is created. Required.
	Durable string
	// Subjects restricts a consumer that is created to these subjects. Defaults to all of the
	// stream.
	Subjects []string
	// AckWait is the ack deadline of a consumer that is created, from 1 s to 1 hour. Defaults to 30
	// s.
	AckWait time.Duration
	// Logger receives the warning about messages without an id. Defaults to slog.Default(), at WARN
	// and above.
	Logger *slog.Logger
}

// Validate returns every fault of the configuration. queue.New calls it.
func (b *Broker) Validate() error {
	l := &fields.List{Sentinel: queue.ErrConfig, Struct: "natsqueue.Config"}
	if b.js == nil {
		l.Join(fmt.Errorf("%w: js: must not be nil", queue.ErrConfig))
	}
	for field, name := range map[string]string{"Stream": b.cfg.Stream, "Durable": b.cfg.Durable} {
		if name == "" || strings.ContainsAny(name, ".*> \t\r\n/\\") {
			l.Add(field, "%q must be a name of NATS", name)
		}
	}
	if slices.Contains(b.cfg.Subjects, "") {
		l.Add("Subjects", "must not hold an empty one")
	}
	if b.cfg.AckWait < time.Second || b.cfg.AckWait > time.Hour {
		l.Add("AckWait", "is %v: must be from 1 s to 1 hour", b.cfg.AckWait)
	}
	return l.Err()
}

// consumerConfig is that of a consumer that is created.
func (b *Broker) consumerConfig() jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:        b.cfg.Durable,
		FilterSubjects: b.cfg.Subjects,
		AckPolicy:      jetstream.AckExplicitPolicy,
		AckWait:        b.cfg.AckWait,
		MaxDeliver:     -1,
		DeliverPolicy:  jetstream.DeliverAllPolicy,
		Description:    "onlyonce: queue",
	}
}

// checkConsumer returns the settings of a consumer that would lose messages (Q3).
func checkConsumer(c jetstream.ConsumerConfig) error {
	l := &fields.List{Sentinel: queue.ErrConfig, Struct: "consumer " + c.Durable}
	if c.AckPolicy != jetstream.AckExplicitPolicy {
		l.Add("AckPolicy", "must be explicit: a batch is acknowledged message by message")
	}
	if c.MaxDeliver > 0 {
		l.Add("MaxDeliver",
			"is %d: must be -1: the server would drop messages while the database is away", c.MaxDeliver)
	}
	if len(c.BackOff) > 0 {
		l.Add("BackOff", "must be empty: the server would drop messages while the database is away")
	}
	if c.HeadersOnly {
		l.Add("HeadersOnly", "must be off: the server would deliver messages without their bodies")
	}
	if c.InactiveThreshold > 0 {
		l.Add("InactiveThreshold",
			"is %v: must be 0: while the database is away the server would delete the consumer, and then "+
				"deliver all of the stream again",
			c.InactiveThreshold)
	}
	if c.MemoryStorage {
		l.Add("MemoryStorage",
			"must be off: a server that restarts would forget the consumer, and then deliver all of the stream again")
	}
	if c.DeliverSubject != "" {
		l.Add("DeliverSubject", "must be empty: it must be a pull consumer")
	}
	return l.Err()
}
