package natsqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/queue"
)

// HeaderSubject is the header of a delivery that has the message's subject.
const HeaderSubject = "Nats-Subject"

const (
	callTimeout = 5 * time.Second // of a request to the server
	pullTimeout = 5 * time.Second // for which a pull waits for messages
	pullMargin  = 100 * time.Millisecond
)

// Broker is one receiver's access to a consumer of JetStream.
type Broker struct {
	js       jetstream.JetStream
	cfg      Config
	consumer jetstream.Consumer
	stream   string // its name and the time of its creation, for ids
	maxAge   time.Duration
	anew     time.Time // the time of the first message, if the consumer is still to be made
	limits   requestLimits
	warn     sync.Once

	ordered  bool
	next     uint64            // the consumer's sequence of the next delivery, with ordered
	buffered []*queue.Delivery // what Begin has taken back
}

var _ queue.Broker = (*Broker)(nil)

// New returns the broker of one receiver. Its faults are found by queue.New. It uses the connection
// of js, which should reconnect without end (nats.MaxReconnects(-1)).
func New(js jetstream.JetStream, cfg Config) *Broker {
	cfg.AckWait = cmp.Or(cfg.AckWait, 30*time.Second)
	cfg.Logger = fields.Logger(cfg.Logger)
	return &Broker{js: js, cfg: cfg}
}

// requestLimits are what a consumer allows of one pull; 0: any. The server refuses each pull above
// them.
type requestLimits struct {
	batch int
	wait  time.Duration
}

// Begin implements queue.Broker.
func (b *Broker) Begin(ctx context.Context, ordered bool) error {
	b.ordered, b.buffered = ordered, nil
	info, err := b.connect(ctx)
	if err != nil || !ordered {
		return err
	}
	if info == nil {
		b.next = 1
		return nil
	}
	for info.NumAckPending > 0 {
		// Once AckWait has passed, the server delivers what is outstanding, before anything newer.
		if !pace.Sleep(ctx, info.Config.AckWait+time.Second/2) {
			return ctx.Err()
		}
		if done, err := b.takeBack(ctx); done || err != nil {
			return err
		}
		if info, err = b.info(ctx); err != nil {
			return err
		}
	}
	b.next = info.Delivered.Consumer + 1
	return nil
}

// connect finds the consumer. If there is none, it returns nil, and Receive makes it: a new
// consumer delivers all of the stream, and queue compares that with what is forgotten
// before (Q6).
func (b *Broker) connect(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s, err := b.js.Stream(ctx, b.cfg.Stream)
	if err != nil {
		return nil, fmt.Errorf("natsqueue: stream %s: %w", b.cfg.Stream, err)
	}
	b.stream = fmt.Sprintf("%s/%d", b.cfg.Stream, s.CachedInfo().Created.UnixNano())
	b.maxAge = s.CachedInfo().Config.MaxAge
	b.anew = time.Time{}
	c, err := s.Consumer(ctx, b.cfg.Durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		b.consumer = nil
		b.anew = b.oldest(ctx, s)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("natsqueue: consumer %s of stream %s: %w", b.cfg.Durable, b.cfg.Stream, err)
	}
	b.consumer = c
	info := c.CachedInfo()
	b.limits = limitsOf(info.Config)
	return info, checkConsumer(info.Config)
}

// limitsOf reads a consumer's limits of a pull.
func limitsOf(c jetstream.ConsumerConfig) requestLimits {
	return requestLimits{batch: c.MaxRequestBatch, wait: c.MaxRequestExpires}
}

// oldest returns when the first message came that a new consumer delivers; zero: there is none.
func (b *Broker) oldest(ctx context.Context, s jetstream.Stream) (first time.Time) {
	state := s.CachedInfo().State
	switch {
	case state.Msgs == 0:
		return time.Time{}
	case len(b.cfg.Subjects) == 0:
		return state.FirstTime
	}
	for _, subject := range b.cfg.Subjects {
		msg, err := s.GetMsg(ctx, 1, jetstream.WithGetMsgSubject(subject))
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
		case err != nil: // perhaps the login may not ask: that of any subject is no younger
			return state.FirstTime
		case first.IsZero() || msg.Time.Before(first):
			first = msg.Time
		}
	}
	return first
}

// Retention is the stream's MaxAge, and 0 if it has none. A receiver compares it with
// queue.Config.CopiesWithin.
func (b *Broker) Retention() time.Duration { return b.maxAge }

// Full says whether the stream has reached a limit and refuses new messages (DiscardNew). A stream
// that discards old ones, as by default, is never full: what a receiver has not had yet is lost.
func (b *Broker) Full(ctx context.Context) (why string, err error) {
	s, err := b.js.Stream(ctx, b.cfg.Stream)
	if err != nil {
		return "", fmt.Errorf("natsqueue: stream %s: %w", b.cfg.Stream, err)
	}
	limits, state := s.CachedInfo().Config, s.CachedInfo().State
	if limits.Discard != jetstream.DiscardNew {
		return "", nil
	}
	usual := state.Bytes / max(state.Msgs, 1) // the next one is about as large
	switch {
	case limits.MaxMsgs > 0 && state.Msgs >= uint64(limits.MaxMsgs):
		return fmt.Sprintf("stream %s has its %d messages (MaxMsgs), and discards new ones",
			b.cfg.Stream, limits.MaxMsgs), nil
	case limits.MaxBytes > 0 && state.Bytes+usual > uint64(limits.MaxBytes):
		return fmt.Sprintf("stream %s has %d of its %d bytes (MaxBytes), and discards new messages",
			b.cfg.Stream, state.Bytes, limits.MaxBytes), nil
	}
	return "", nil
}

// Anew returns the time of the oldest message that a consumer will deliver which is still to be
// made. A receiver compares it with what the inbox has forgotten.
func (b *Broker) Anew() (oldest time.Time, why string) {
	return b.anew, fmt.Sprintf(
		"Stream %s has no consumer %s, and the receiver would make one that begins with the stream's first message. "+
			"If there was one, make it yourself (nats consumer add), to begin after the last message that "+
			"was acknowledged",
		b.cfg.Stream,
		b.cfg.Durable,
	)
}

func (b *Broker) info(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	info, err := b.consumer.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("natsqueue: consumer %s: %w", b.cfg.Durable, err)
	}
	return info, nil
}

// takeBack takes all messages that are outstanding. It reports whether it has them all: then nobody
// else holds one, and each later delivery is of a later message (Q5).
func (b *Broker) takeBack(ctx context.Context) (bool, error) {
	before, err := b.info(ctx)
	if err != nil {
		return false, err
	}
	b.next = before.Delivered.Consumer + 1
	var all []*queue.Delivery
	for len(all) < before.NumAckPending {
		some, err := b.pull(ctx, before.NumAckPending-len(all), false)
		if errors.Is(err, errGap) || err == nil && len(some) == 0 {
			return false, nil // they come again
		}
		if err != nil {
			return false, err
		}
		all = append(all, some...)
	}
	after, err := b.info(ctx)
	if err != nil || after.NumAckPending != len(all) || after.Delivered.Consumer+1 != b.next {
		return false, err
	}
	slices.SortFunc(all, func(x, y *queue.Delivery) int {
		return cmp.Compare(x.Handle.(*held).stream, y.Handle.(*held).stream)
	})
	b.buffered = all
	return true, nil
}

// held is what a delivery is acknowledged with.
type held struct {
	msg    jetstream.Msg
	stream uint64 // its sequence
}

// Receive implements queue.Broker.
func (b *Broker) Receive(ctx context.Context, most int) ([]*queue.Delivery, error) {
	if n := min(most, len(b.buffered)); n > 0 {
		all := b.buffered[:n]
		b.buffered = b.buffered[n:]
		return all, nil
	}
	if !b.js.Conn().IsConnected() { // a pull would only wait
		return nil, errDisconnected
	}
	if b.consumer == nil {
		err := b.makeConsumer(ctx)
		switch {
		case errors.Is(ctx.Err(), context.Canceled): // whoever receives stops
			return nil, nil
		case err != nil:
			return nil, err
		}
	}
	all, err := b.pull(ctx, most, false)
	if len(all) > 0 || err != nil {
		return all, err
	}
	return b.pull(ctx, 1, true)
}

func (b *Broker) makeConsumer(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if b.consumer, err = b.js.CreateConsumer(ctx, b.cfg.Stream, b.consumerConfig()); err != nil {
		b.consumer = nil
		return fmt.Errorf("natsqueue: making consumer %s of stream %s: %w", b.cfg.Durable, b.cfg.Stream, err)
	}
	b.limits = limitsOf(b.consumer.CachedInfo().Config) // the stream's, or the server's
	return nil
}

var errDisconnected = errors.New("natsqueue: the connection to the server is lost")

// errGap means that a message was delivered to another session.
var errGap = errors.New("natsqueue: the consumer has delivered a message to another receiver, or one that " +
	"did not arrive")

// pull asks for messages that are there, or waits for one, within the consumer's limits (Q3).
func (b *Broker) pull(ctx context.Context, most int, wait bool) (all []*queue.Delivery, err error) {
	if b.limits.batch > 0 {
		most = min(most, b.limits.batch)
	}
	var batch jetstream.MessageBatch
	if wait {
		limit := pullTimeout
		if until, ok := ctx.Deadline(); ok {
			limit = min(limit, time.Until(until)-pullMargin)
		}
		if limit <= pullMargin {
			return nil, nil
		}
		if b.limits.wait > 0 {
			limit = min(limit, b.limits.wait)
		}
		bounded, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		batch, err = b.consumer.Fetch(most, jetstream.FetchContext(bounded))
	} else {
		batch, err = b.consumer.FetchNoWait(most)
	}
	if err != nil {
		return nil, fmt.Errorf("natsqueue: pulling: %w", err)
	}
	for {
		select {
		case msg, ok := <-batch.Messages():
			if !ok {
				switch err := batch.Error(); {
				case err == nil, errors.Is(err, nats.ErrTimeout),
					errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
					return all, nil
				default:
					return nil, fmt.Errorf("natsqueue: pulling: %w", err)
				}
			}
			d, err := b.delivery(msg)
			if err != nil {
				return nil, err
			}
			all = append(all, d)
		case <-ctx.Done():
			return all, nil // what arrives now comes again, and with ordered is a gap
		}
	}
}

// delivery makes a message a delivery. With ordered it fails if one before it was delivered, and
// not to this session (Q5).
func (b *Broker) delivery(msg jetstream.Msg) (*queue.Delivery, error) {
	md, err := msg.Metadata()
	if err != nil {
		return nil, fmt.Errorf("natsqueue: %w", err)
	}
	if b.ordered {
		if md.Sequence.Consumer != b.next {
			return nil, fmt.Errorf("%w: delivery %d, want %d", errGap, md.Sequence.Consumer, b.next)
		}
		b.next++
	}
	d := &queue.Delivery{
		ID:          msg.Headers().Get(nats.MsgIdHdr),
		Body:        msg.Data(),
		Time:        md.Timestamp,
		Redelivered: md.NumDelivered > 1,
		Handle:      &held{msg, md.Sequence.Stream},
	}
	if d.ID == "" {
		// The time of storing is the same at each delivery. A stream that comes back from an
		// earlier state gives its sequences again, to messages of another time (Q2).
		d.ID = fmt.Sprintf("%s/%d/%d", b.stream, md.Sequence.Stream, md.Timestamp.UnixNano())
		b.warn.Do(func() {
			b.cfg.Logger.Warn("onlyonce: a message has no Nats-Msg-Id: if its producer sends it again, that "+
				"is another message", "stream", b.cfg.Stream, "sequence", md.Sequence.Stream)
		})
	}
	for _, name := range slices.Sorted(maps.Keys(msg.Headers())) {
		for _, v := range msg.Headers()[name] {
			if name != HeaderSubject {
				d.Headers = append(d.Headers, consumer.Header{Name: name, Value: []byte(v)})
			}
		}
	}
	d.Headers = append(d.Headers, consumer.Header{Name: HeaderSubject, Value: []byte(msg.Subject())})
	return d, nil
}

// Ack implements queue.Broker.
func (b *Broker) Ack(ctx context.Context, deliveries []*queue.Delivery) error {
	for _, d := range deliveries {
		if err := d.Handle.(*held).msg.Ack(); err != nil {
			return fmt.Errorf("natsqueue: acknowledging: %w", err)
		}
	}
	if err := b.js.Conn().FlushWithContext(ctx); err != nil {
		return fmt.Errorf("natsqueue: acknowledging: %w", err)
	}
	return nil
}
