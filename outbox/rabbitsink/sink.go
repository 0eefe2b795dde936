package rabbitsink

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/frozen"
	"github.com/onlyonce/onlyonce/outbox"
)

// ErrConfig is wrapped by every error of New.
var ErrConfig = errors.New("rabbitsink: invalid configuration")

// Config describes a sink. The zero value of a field is the default that its comment names.
type Config struct {
	// Name identifies the sink: calls with this name in Call.Sink are sent by it. Required.
	Name string

	// Exchange is the exchange that calls are published to. It must exist. Required.
	Exchange string

	// KeyWindow is how long every consumer of the messages recognises a message-id. Set it below
	// the shortest horizon of their inboxes, less the time for which a message may wait in a queue,
	// or to [outbox.Forever] if they never forget one. Required.
	KeyWindow time.Duration

	// Timeout bounds one attempt, until the confirmation: 100 ms to 10 minutes. Defaults to 10 s.
	Timeout time.Duration

	// Login returns the user and the password for the next connection, in place of those of the
	// url: so they can be changed while the sink is in use. An error postpones the calls. Nil:
	// those of the url stay.
	Login func(ctx context.Context) (user, password string, err error)

	// Client is the configuration of the connection, for example TLS. Recovery must be nil.
	// Defaults to the client's defaults.
	Client amqp.Config
}

// Sink publishes calls to an exchange. Make one with [New]. It is safe for concurrent use.
type Sink struct {
	cfg  Config
	link link
}

var _ outbox.Sink = (*Sink)(nil)

// New checks the configuration and returns every fault of it at once. It does not connect: each
// Send does if there is no connection.
func New(url string, cfg Config) (*Sink, error) {
	l := &fields.List{Sentinel: ErrConfig, Struct: "Config"}
	if _, err := amqp.ParseURI(url); err != nil {
		// err may quote the password
		l.Join(fmt.Errorf("%w: url: must be an AMQP URI, as amqp://user:password@host:5672/vhost", ErrConfig))
	}
	if cfg.Name == "" {
		l.Add("Name", "must not be empty: calls name the sink by it, in Call.Sink")
	}
	if cfg.Exchange == "" || len(cfg.Exchange) > maxShort {
		l.Add("Exchange", "must be a name of 1 to 255 bytes")
	}
	if cfg.KeyWindow <= 0 {
		l.Add("KeyWindow", "must be set: how long every consumer recognises a message-id, or outbox.Forever")
	}
	l.Span("Timeout", &cfg.Timeout, 10*time.Second, 100*time.Millisecond, 10*time.Minute)
	if cfg.Login != nil && cfg.Client.SASL != nil {
		l.Add("Login", "must be nil if Client.SASL is set, which logs in")
	}
	if cfg.Client.Recovery != nil {
		l.Add("Client", "Recovery must be nil: the sink connects again by itself")
	}
	if err := l.Err(); err != nil {
		return nil, err
	}
	return &Sink{cfg: cfg, link: link{url: url, login: cfg.Login, client: cfg.Client}}, nil
}

// Name returns Config.Name.
func (s *Sink) Name() string { return s.cfg.Name }

// Limits returns Config.KeyWindow and Config.Timeout.
func (s *Sink) Limits() outbox.Limits {
	return outbox.Limits{KeyWindow: s.cfg.KeyWindow, Timeout: s.cfg.Timeout}
}

// Close closes the connection. Call it after the relay has ended.
func (s *Sink) Close() error { return s.link.close() }

// Send makes one attempt.
func (s *Sink) Send(ctx context.Context, a *outbox.Attempt) outbox.Result {
	key, msg, err := s.message(a)
	if err != nil {
		// The row cannot be sent as it is, now or later, so no call is made.
		return outbox.BrokerFailure(err.Error(), outbox.Permanent(err), true)
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	ch, err := s.link.take(ctx)
	if err != nil {
		err = fmt.Errorf("rabbitsink: connecting: %w", err)
		return outbox.BrokerFailure(err.Error(), err, true)
	}
	if err := a.MayStart(); err != nil {
		s.link.give(ch)
		return outbox.BrokerFailure(err.Error(), err, true)
	}
	if err := ch.publish(ctx, s.cfg.Exchange, key, msg); err != nil {
		_, returned := errors.AsType[unroutable](err)
		if returned || errors.Is(err, errNotStored) {
			s.link.give(ch)
		} else {
			s.link.drop(ch)
		}
		return outbox.BrokerFailure(err.Error(), classify(err), notStored(err))
	}
	s.link.give(ch)
	return outbox.Result{Outcome: outbox.Delivered}
}

// classify returns a permanent error if the server has refused the message for good.
func classify(err error) error {
	var e *amqp.Error
	if errors.As(err, &e) && e.Code == amqp.PreconditionFailed { // larger than max_message_size
		return outbox.Permanent(err)
	}
	return err
}

// notStored reports whether an error shows that no queue has the message: the server has returned
// it, or has closed the channel because there is no such exchange, or no right to it. A negative
// confirmation does not show that, because one of several queues may have it (O6).
func notStored(err error) bool {
	if _, is := errors.AsType[unroutable](err); is {
		return true
	}
	e, is := errors.AsType[*amqp.Error](err)
	return is && (e.Code == amqp.NotFound || e.Code == amqp.AccessRefused)
}

const maxShort = 255 // bytes of AMQP's short strings

// message builds the message from the row, by the rules of Enqueue: the row may have been written
// in SQL. Its message-id is the same at each attempt (O10).
func (s *Sink) message(a *outbox.Attempt) (key string, msg amqp.Publishing, err error) {
	if a.Method != http.MethodPost {
		return "", msg, errors.New("method: must be POST, which is the default: a message has none")
	}
	if key, err = frozen.Destination(a.Target); err != nil {
		return "", msg, fmt.Errorf("target: %w", err)
	}
	if len(key) > maxShort {
		return "", msg, errors.New("target: must be a slash and a routing key of at most 255 bytes")
	}
	names, values, faults := frozen.Headers(a.Header)
	if len(faults) > 0 {
		return "", msg, fmt.Errorf("header: %w", faults[0])
	}
	msg = amqp.Publishing{MessageId: a.Key, DeliveryMode: amqp.Persistent, Headers: amqp.Table{}, Body: a.Body}
	for i, name := range names {
		switch canonical := http.CanonicalHeaderKey(name); {
		case canonical == "Cc", canonical == "Bcc", strings.HasPrefix(canonical, "Amqp-"):
			return "", msg, fmt.Errorf("header: %s is the server's own", name) // CC and BCC name more queues
		case len(canonical) > maxShort: // the client would end the connection, with all other calls on it
			return "", msg, fmt.Errorf("header: the name %.60s... is longer than 255 bytes", name)
		case canonical == "Content-Type" && len(values[i]) <= maxShort:
			msg.ContentType = values[i]
		case canonical == "Content-Encoding" && len(values[i]) <= maxShort:
			msg.ContentEncoding = values[i]
		case msg.Headers[canonical] != nil: // a table has each name once
			msg.Headers[canonical] = msg.Headers[canonical].(string) + ", " + values[i]
		default:
			msg.Headers[canonical] = values[i]
		}
	}
	for _, t := range frozen.Trace(a.Header, a.Trace) {
		msg.Headers[t[0]] = t[1]
	}
	return key, msg, nil
}
