package rabbitqueue

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/queue"
)

// Config describes a quorum queue. The zero value of a field is the default that its comment names;
// a value out of range is an error of queue.New and never adjusted.
type Config struct {
	// Queue is the name of the queue, which must exist. Required.
	Queue string
	// Arguments are those that the queue was declared with, besides x-queue-type. They are compared
	// with the server's, and a queue that has others is refused. With queue.Config.Ordered
	// x-single-active-consumer must be true. Defaults to none.
	Arguments amqp.Table
	// NoLimitByPolicy says that a policy sets delivery-limit to -1, which a client cannot see. From
	// RabbitMQ 4 on a queue without x-delivery-limit -1 in Arguments drops messages after 20
	// deliveries, and is refused unless this is set. Defaults to false.
	NoLimitByPolicy bool
	// Prefetch is how many messages the server lends a receiver at most, from 1 to 2,000. Those
	// that a batch has no room for wait in memory. With queue.Config.Ordered do not lower it while
	// messages are outstanding: the server would mix up those that it delivers again. Defaults to
	// 1,000.
	Prefetch int
	// Client is the configuration of the connection, for example TLS and the heartbeat. Recovery
	// must be nil. Defaults to the client's defaults.
	Client amqp.Config
}

const (
	argType   = "x-queue-type"
	argLimit  = "x-delivery-limit"
	argSingle = "x-single-active-consumer"
)

// Validate returns every fault of the configuration. queue.New calls it.
func (b *Broker) Validate() error {
	l := &fields.List{Sentinel: queue.ErrConfig, Struct: "rabbitqueue.Config"}
	if _, err := amqp.ParseURI(b.url); err != nil {
		// err may quote the password
		l.Join(fmt.Errorf("%w: url: must be an AMQP URI, as amqp://user:password@host:5672/vhost", queue.ErrConfig))
	}
	if b.cfg.Queue == "" || len(b.cfg.Queue) > 255 {
		l.Add("Queue", "must be a name of 1 to 255 bytes")
	}
	if t, ok := b.cfg.Arguments[argType]; ok && t != "quorum" {
		l.Add("Arguments", "%s is %v: must be quorum, which is set anyway", argType, t)
	}
	if n, ok := b.cfg.Arguments[argLimit]; ok && fmt.Sprint(n) != "-1" {
		l.Add("Arguments",
			"%s is %v: must be -1, or before RabbitMQ 4 absent: the server would drop messages after so "+
				"many deliveries",
			argLimit,
			n)
	}
	if err := b.cfg.Arguments.Validate(); err != nil {
		l.Add("Arguments", "%v", err)
	}
	if n := b.cfg.Prefetch; n < 1 || n > 2000 {
		l.Add("Prefetch", "is %d: must be from 1 to 2,000", n)
	}
	if b.cfg.Client.Recovery != nil {
		l.Add("Client",
			"Recovery must be nil: the client would acknowledge messages of a new channel under the old one's numbers")
	}
	return l.Err()
}

// checkLimit returns an error if the server drops messages after so many deliveries (Q3).
func (b *Broker) checkLimit(version string) error {
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	without := err == nil && n < 4 // before 4.0 there is no limit
	if without || b.cfg.NoLimitByPolicy || fmt.Sprint(b.cfg.Arguments[argLimit]) == "-1" {
		return nil
	}
	return b.refused("Arguments",
		"%s must be -1, or a policy must say so (see NoLimitByPolicy): RabbitMQ %s drops messages after 20 deliveries",
		argLimit,
		version)
}

// explain makes an answer of the server an error that says what to do. Only a queue of which
// messages may be lost, or whose order may be, ends the receiver: the others may be set right while
// it runs.
func (b *Broker) explain(err error) error {
	var e *amqp.Error
	if !errors.As(err, &e) {
		return err
	}
	switch {
	case e.Code == amqp.NotFound:
		return fmt.Errorf("Config.Queue: there is no queue %q, and the receiver declares none: %w", b.cfg.Queue, err)
	case e.Code == amqp.AccessRefused:
		return fmt.Errorf("Config.Queue: the user needs the rights to configure (to compare "+
			"Config.Arguments) and read %q: %w", b.cfg.Queue, err)
	case e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, argType):
		return b.refused("Queue", "%q must be a quorum queue: %s", b.cfg.Queue, e.Reason)
	case e.Code == amqp.PreconditionFailed:
		return b.refused("Arguments", "must be those of the queue: %s", e.Reason)
	}
	return err
}

func (*Broker) refused(field, format string, args ...any) error {
	l := &fields.List{Sentinel: queue.ErrConfig, Struct: "rabbitqueue.Config"}
	l.Add(field, format, args...)
	return l.Err()
}
