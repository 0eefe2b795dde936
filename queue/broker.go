package queue

import (
	"context"
	"time"
)

// Broker lends messages. An adapter implements it for one queue of one broker, for example package
// natsqueue or sqsqueue; queuetest.Conformance checks it. One goroutine at a time calls its
// methods.
//
// A Broker may also implement [BrokerValidate], [BrokerEnd], [BrokerRetention], [BrokerAnew] and
// [BrokerFull].
type Broker interface {
	// Begin is called before the first Receive, and again after each error of Receive or Ack. It
	// makes sure that the broker can be reached, and that the queue is set up such that no message
	// is lost while the database is away. An error that wraps [ErrConfig] ends [Queue.Receive];
	// after any other one it is called again.
	//
	// With ordered it returns only when no delivery to another receiver, or to an earlier session,
	// is outstanding, and from then on Receive delivers in the broker's order or fails. A broker
	// that cannot do this returns an error that wraps [ErrConfig].
	Begin(ctx context.Context, ordered bool) error

	// Receive waits for messages, and returns at most so many. It returns none, without an error,
	// if none came within a few seconds or before ctx ends. If the broker has not answered by ctx's
	// deadline, it may return an error, and Begin is called anew. All that it returns is
	// acknowledged before it is called again, or Begin is called first.
	Receive(ctx context.Context, most int) ([]*Delivery, error)

	// Ack acknowledges deliveries of the session. If it fails, or if an acknowledgement is lost
	// later, the broker delivers the messages again.
	Ack(ctx context.Context, deliveries []*Delivery) error
}

// BrokerValidate is for a [Broker] that can be configured wrongly.
type BrokerValidate interface {
	// Validate returns all faults of the broker's configuration. [New] adds them to its own.
	Validate() error
}

// BrokerEnd is for a [Broker] whose sessions hold something, for example a connection.
type BrokerEnd interface {
	// End gives up what the session holds, so that another receiver gets it. It is called whenever
	// a session is over, and before [Queue.Receive] returns.
	End()
}

// BrokerRetention is for a [Broker] that knows how long its queue keeps messages.
type BrokerRetention interface {
	// Retention returns, after Begin, how long the broker keeps a message. A receiver ends if
	// Config.CopiesWithin is shorter.
	Retention() time.Duration
}

// BrokerAnew is for a [Broker] that may deliver again what it has delivered before, for example
// because its consumer was deleted.
type BrokerAnew interface {
	// Anew says, after Begin, whether the broker is about to do that, why, and since when it has
	// the oldest of these messages. A receiver ends if the inbox may have forgotten its id. A zero
	// time means that it is not.
	Anew() (oldest time.Time, why string)
}

// BrokerFull is for a [Broker] that can tell whether its queue is full.
type BrokerFull interface {
	// Full says why the queue takes no more messages from its producers, or "" if it does. A
	// receiver asks every few seconds, beside its calls of the other methods, and
	// `onlyonce status` shows it.
	Full(ctx context.Context) (why string, err error)
}
