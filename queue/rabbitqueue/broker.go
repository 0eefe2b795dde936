package rabbitqueue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/queue"
)

// Headers of a delivery that the adapter adds.
const (
	HeaderRoutingKey = "Amqp-Routing-Key"
	HeaderExchange   = "Amqp-Exchange"
)

const (
	beginTimeout   = 10 * time.Second
	receiveTimeout = 5 * time.Second
	closeTimeout   = 2 * time.Second
	gather         = 2 * time.Millisecond // for which a batch waits for more messages, after its first
)

// Broker is one receiver's access to a quorum queue.
type Broker struct {
	url string
	cfg Config

	conn       *amqp.Connection
	channel    *amqp.Channel
	deliveries <-chan amqp.Delivery
	closed     chan *amqp.Error // why the channel is closed
	acked      uint64           // all deliveries of the channel up to this number
}

var _ queue.Broker = (*Broker)(nil)

// New returns the broker of one receiver, which connects to a server at an AMQP URI. Its faults are
// found by queue.New.
func New(url string, cfg Config) *Broker {
	cfg.Prefetch = cmp.Or(cfg.Prefetch, 1000)
	return &Broker{url: url, cfg: cfg}
}

// Begin implements queue.Broker. Each session has a connection of its own.
func (b *Broker) Begin(ctx context.Context, ordered bool) error {
	b.End()
	if single, _ := b.cfg.Arguments[argSingle].(bool); ordered && !single {
		return b.refused("Arguments", "%s must be true for queue.Config.Ordered", argSingle)
	}
	ctx, cancel := context.WithTimeout(ctx, beginTimeout)
	defer cancel()
	stop, err := b.connect(ctx)
	if err != nil {
		return fmt.Errorf("rabbitqueue: connecting: %w", err)
	}
	defer stop()
	if err := b.begin(); err != nil {
		b.End()
		return fmt.Errorf("rabbitqueue: %w", b.explain(err))
	}
	return nil
}

func (b *Broker) begin() (err error) {
	if b.channel, err = b.conn.Channel(); err != nil {
		return err
	}
	b.closed, b.acked = b.channel.NotifyClose(make(chan *amqp.Error, 1)), 0
	version, _ := b.conn.Properties["version"].(string)
	if err := b.checkLimit(version); err != nil {
		return err
	}
	// The first one finds a queue that is not there, which the second one would make. The second
	// one has the server compare a queue that is there (Q3).
	if _, err := b.channel.QueueDeclarePassive(b.cfg.Queue, true, false, false, false, nil); err != nil {
		return err
	}
	arguments := amqp.Table{argType: "quorum"}
	maps.Copy(arguments, b.cfg.Arguments)
	if _, err := b.channel.QueueDeclare(b.cfg.Queue, true, false, false, false, arguments); err != nil {
		return err
	}
	if err := b.channel.Qos(b.cfg.Prefetch, 0, false); err != nil {
		return err
	}
	// With a single active consumer the server delivers to this one only when its predecessor is
	// gone, and then first what the predecessor had, in order (Q5).
	b.deliveries, err = b.channel.Consume(b.cfg.Queue, "", false, false, false, false, nil)
	return err
}

// connect connects, and cuts the connection if ctx ends before stop is called: the client's calls
// take no context.
func (b *Broker) connect(ctx context.Context) (stop func() bool, err error) {
	client, dial := b.cfg.Client, b.cfg.Client.Dial
	stop = func() bool { return true }
	client.Dial = func(network, addr string) (c net.Conn, err error) {
		if dial != nil {
			c, err = dial(network, addr)
		} else {
			c, err = (&net.Dialer{}).DialContext(ctx, network, addr)
		}
		if err == nil {
			stop = context.AfterFunc(ctx, func() { _ = c.Close() })
		}
		return c, err
	}
	b.conn, err = amqp.DialConfig(b.url, client)
	if err != nil {
		stop()
		b.conn = nil
	}
	return stop, err
}

// End ends a session: the server takes back what is not acknowledged. A Queue calls it.
func (b *Broker) End() {
	if b.conn != nil {
		_ = b.conn.CloseDeadline(time.Now().Add(closeTimeout)) // without it the server notices by itself
	}
	b.conn = nil
	b.channel = nil
	b.deliveries = nil
}

// Receive implements queue.Broker.
func (b *Broker) Receive(ctx context.Context, most int) (all []*queue.Delivery, err error) {
	timer := time.NewTimer(receiveTimeout)
	defer timer.Stop()
	for len(all) < most {
		select {
		case d, ok := <-b.deliveries:
			if !ok {
				return nil, b.lost() // they come again
			}
			if all = append(all, delivery(&d)); len(all) == 1 {
				timer.Reset(gather)
			}
		case <-timer.C:
			return all, nil
		case <-ctx.Done():
			return all, nil
		}
	}
	return all, nil
}

var errCancelled = errors.New("rabbitqueue: the server has cancelled the consumer: its queue was deleted, or has moved")

// lost returns why no more deliveries come.
func (b *Broker) lost() error {
	select {
	case err := <-b.closed:
		if err != nil {
			return fmt.Errorf("rabbitqueue: the channel is closed: %w", err)
		}
	default:
	}
	return errCancelled
}

// Ack implements queue.Broker. A delivery is acknowledged on the channel that it came from: a
// closed one takes no acknowledgement, and a new one has other messages under the same numbers.
func (b *Broker) Ack(_ context.Context, deliveries []*queue.Delivery) error {
	last := deliveries[len(deliveries)-1].Handle.(*amqp.Delivery)
	if last.DeliveryTag-b.acked == uint64(len(deliveries)) { // all up to the last one: one frame says so
		if err := last.Ack(true); err != nil {
			return fmt.Errorf("rabbitqueue: acknowledging: %w", err)
		}
		b.acked = last.DeliveryTag
		return nil
	}
	for _, d := range deliveries {
		if err := d.Handle.(*amqp.Delivery).Ack(false); err != nil {
			return fmt.Errorf("rabbitqueue: acknowledging: %w", err)
		}
	}
	return nil
}

// delivery makes a message a delivery. Without a message-id it has no id (Q2).
func delivery(d *amqp.Delivery) *queue.Delivery {
	return &queue.Delivery{ID: d.MessageId, Headers: headers(d), Body: d.Body, Redelivered: d.Redelivered, Handle: d}
}

// headers returns the message's headers, but not the count of its deliveries, which no two copies
// share, and then its properties.
func headers(d *amqp.Delivery) (all []consumer.Header) {
	for _, name := range slices.Sorted(maps.Keys(d.Headers)) {
		if name != "x-delivery-count" && !strings.HasPrefix(name, "Amqp-") {
			all = append(all, consumer.Header{Name: name, Value: value(d.Headers[name])})
		}
	}
	for _, p := range [][2]string{
		{"Content-Type", d.ContentType},
		{"Content-Encoding", d.ContentEncoding},
		{"Amqp-Type", d.Type},
		{"Amqp-App-Id", d.AppId},
		{"Amqp-Correlation-Id", d.CorrelationId},
		{"Amqp-Reply-To", d.ReplyTo},
		{HeaderExchange, d.Exchange},
		{HeaderRoutingKey, d.RoutingKey},
	} {
		if p[1] != "" {
			all = append(all, consumer.Header{Name: p[0], Value: []byte(p[1])})
		}
	}
	return all
}

// value returns a header's value: text and bytes as they are, numbers and times as text, tables and
// lists as JSON.
func value(v any) []byte {
	switch v := v.(type) {
	case nil:
		return []byte{}
	case string:
		return []byte(v)
	case []byte:
		return v
	case time.Time:
		return []byte(v.UTC().Format(time.RFC3339))
	case amqp.Table, []any:
		if text, err := json.Marshal(v); err == nil {
			return text
		}
	}
	return fmt.Append(nil, v)
}
