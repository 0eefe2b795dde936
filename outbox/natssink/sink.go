package natssink

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/frozen"
	"github.com/onlyonce/onlyonce/outbox"
)

// ErrConfig is wrapped by every error of New.
var ErrConfig = errors.New("natssink: invalid configuration")

// DefaultTimeout is the default of Config.Timeout.
const DefaultTimeout = 10 * time.Second

// Config describes a sink. The zero value of a field is the default that its comment names.
type Config struct {
	// Name identifies the sink: calls with this name in Call.Sink are sent by it. Required.
	Name string

	// Subjects lists the subjects that calls may name, with NATS' wildcards, for example
	// "orders.>". Required.
	Subjects []string

	// KeyWindow is how long every consumer of the messages recognises a Nats-Msg-Id. Set it below
	// the shortest horizon of their inboxes, less the time for which a message may wait in the
	// stream, to the stream's duplicate window if they have none, or to [outbox.Forever] if they
	// never forget one. Required.
	KeyWindow time.Duration

	// Timeout bounds one attempt, until the acknowledgement: 100 ms to 10 minutes. Defaults to 10
	// s.
	Timeout time.Duration

	// Monitors lists the addresses at which the servers tell about themselves (http_port), for
	// example http://nats-1:8222. A relay that starts asks each one whether messages are on disk
	// when they are acknowledged, and warns if they are not. Empty: nobody is asked.
	Monitors []string
}

// Sink publishes calls to JetStream. Make one with [New]. It is safe for concurrent use.
type Sink struct {
	js  jetstream.JetStream
	cfg Config
}

var _ outbox.Preflighter = (*Sink)(nil)

// New checks the configuration and returns every fault of it at once. It does not connect. It uses
// the connection of js, which should reconnect without end (nats.MaxReconnects(-1)), and must have
// no buffer (nats.ReconnectBufSize(-1)): what is published without a connection would be sent later
// than the journal says.
func New(js jetstream.JetStream, cfg Config) (*Sink, error) {
	l := &fields.List{Sentinel: ErrConfig, Struct: "Config"}
	if js == nil {
		l.Join(fmt.Errorf("%w: js: must not be nil", ErrConfig))
	} else if js.Conn().Opts.ReconnectBufSize >= 0 {
		l.Join(fmt.Errorf("%w: js: its connection keeps what is published while it is lost, and sends it "+
			"later: connect with nats.ReconnectBufSize(-1)", ErrConfig))
	}
	cfg.check(l)
	if err := l.Err(); err != nil {
		return nil, err
	}
	return &Sink{js, cfg}, nil
}

// Validate returns every fault of the configuration at once. New does so too: it is for programs
// that check their configuration before they have a connection.
func (cfg Config) Validate() error {
	l := &fields.List{Sentinel: ErrConfig, Struct: "Config"}
	cfg.check(l)
	return l.Err()
}

// check notes faults and sets defaults.
func (cfg *Config) check(l *fields.List) {
	if cfg.Name == "" {
		l.Add("Name", "must not be empty: calls name the sink by it, in Call.Sink")
	}
	if len(cfg.Subjects) == 0 {
		l.Add("Subjects", "must not be empty: name the subjects that calls may be published to")
	}
	for _, s := range cfg.Subjects {
		if !validSubject(s, true) {
			l.Add("Subjects", "%q is not a subject", s)
		}
	}
	if cfg.KeyWindow <= 0 {
		l.Add("KeyWindow", "must be set: how long every consumer recognises a Nats-Msg-Id, or outbox.Forever")
	}
	l.Span("Timeout", &cfg.Timeout, DefaultTimeout, 100*time.Millisecond, 10*time.Minute)
	for _, m := range cfg.Monitors {
		u, err := url.Parse(m)
		web := err == nil && (u.Scheme == "http" || u.Scheme == "https")
		if !web || u.Host == "" {
			l.Add("Monitors", "%q is not an address, as http://nats-1:8222", m)
		}
	}
}

// Name returns Config.Name.
func (s *Sink) Name() string { return s.cfg.Name }

// Limits returns Config.KeyWindow and Config.Timeout.
func (s *Sink) Limits() outbox.Limits {
	return outbox.Limits{KeyWindow: s.cfg.KeyWindow, Timeout: s.cfg.Timeout}
}

// Send makes one attempt.
func (s *Sink) Send(ctx context.Context, a *outbox.Attempt) outbox.Result {
	msg, err := s.message(a)
	if err != nil {
		// The row cannot be sent as it is, now or later, so no call is made.
		return outbox.BrokerFailure(err.Error(), outbox.Permanent(err), true)
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	if err := a.MayStart(); err != nil {
		return outbox.BrokerFailure(err.Error(), err, true)
	}
	// One attempt: the client would otherwise repeat a call that no stream answers.
	if _, err := s.js.PublishMsg(ctx, msg, jetstream.WithRetryAttempts(0)); err != nil {
		return outbox.BrokerFailure(err.Error(), classify(err), notStored(err))
	}
	return outbox.Result{Outcome: outbox.Delivered}
}

// Codes of JetStream's errors that say that a message will never be stored.
const (
	codeTooLarge     = 10054 // exceeds the stream's maximum message size
	codeStreamSealed = 10109
)

// classify returns a permanent error if the server has refused the message for good.
func classify(err error) error {
	if errors.Is(err, nats.ErrMaxPayload) {
		return outbox.Permanent(err)
	}
	if api, is := errors.AsType[jetstream.JetStreamError](err); is && api.APIError() != nil {
		switch api.APIError().ErrorCode {
		case codeTooLarge, codeStreamSealed:
			return outbox.Permanent(err)
		}
	}
	return err
}

// notStored reports whether an error shows that no stream has the message: there was no connection,
// or no stream listens to the subject. Without an answer, or after any other, one may have it (O6).
func notStored(err error) bool {
	for _, known := range []error{
		nats.ErrConnectionClosed,
		nats.ErrReconnectBufExceeded,
		nats.ErrDisconnected,
		nats.ErrNoResponders,
		jetstream.ErrNoStreamResponse,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// message builds the message from the row, by the rules of Enqueue: the row may have been written
// in SQL. Its Nats-Msg-Id is the same at each attempt (O10).
func (s *Sink) message(a *outbox.Attempt) (*nats.Msg, error) {
	if a.Method != http.MethodPost {
		return nil, errors.New("method: must be POST, which is the default: a message has none")
	}
	subject, err := s.subject(a.Target)
	if err != nil {
		return nil, fmt.Errorf("target: %w", err)
	}
	names, values, faults := frozen.Headers(a.Header)
	if len(faults) > 0 {
		return nil, fmt.Errorf("header: %w", faults[0])
	}
	msg := nats.NewMsg(subject)
	msg.Data = a.Body
	for i, name := range names {
		if strings.HasPrefix(http.CanonicalHeaderKey(name), "Nats-") {
			return nil, fmt.Errorf("header: %s is the server's own", name)
		}
		msg.Header.Add(name, values[i])
	}
	msg.Header.Set(nats.MsgIdHdr, a.Key)
	trace := frozen.Trace(a.Header, a.Trace)
	for _, t := range trace {
		msg.Header.Set(t[0], t[1])
	}
	if most := s.js.Conn().MaxPayload(); len(trace) > 0 && most > 0 && int64(msg.Size()-len(subject)) > most {
		for _, t := range trace { // no call is refused because it was traced
			msg.Header.Del(t[0])
		}
	}
	return msg, nil
}

func (s *Sink) subject(target string) (string, error) {
	subject, err := frozen.Destination(target)
	if err != nil {
		return "", err
	}
	if !validSubject(subject, false) {
		return "", errors.New("must be a slash and a subject without wildcards, as /orders.placed")
	}
	for _, pattern := range s.cfg.Subjects {
		if matches(pattern, subject) {
			return subject, nil
		}
	}
	return "", fmt.Errorf("subject %.60s is not among the sink's subjects", subject)
}

// validSubject reports whether a subject is one of NATS', with wildcards or without.
func validSubject(subject string, wildcards bool) bool {
	tokens := strings.Split(subject, ".")
	for i, token := range tokens {
		switch {
		case token == "", strings.ContainsAny(token, " \t\r\n\f\x00"):
			return false
		case token == "*" && wildcards, token == ">" && wildcards && i == len(tokens)-1:
		case strings.ContainsAny(token, "*>"):
			return false
		}
	}
	return !strings.HasPrefix(subject, "$")
}

// matches reports whether a subject matches a pattern.
func matches(pattern, subject string) bool {
	want, have := strings.Split(pattern, "."), strings.Split(subject, ".")
	for i, token := range want {
		switch {
		case token == ">":
			return len(have) > i
		case i >= len(have), token != "*" && token != have[i]:
			return false
		}
	}
	return len(want) == len(have)
}
