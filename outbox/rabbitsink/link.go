package rabbitsink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

var (
	errBlocked = errors.New("the server blocks publishers: it has no memory or disk left")
	errClosed  = errors.New("the sink is closed")
	// errNotStored is a negative confirmation. The channel goes on working.
	errNotStored = errors.New("rabbitsink: the server has not stored the message")
)

// unroutable is why the server gave a message back, on a channel that goes on working.
type unroutable string

func (r unroutable) Error() string { return "rabbitsink: no queue has taken the message: " + string(r) }

// link is a connection that is made again whenever it is lost, with channels for one message at a
// time: so an answer on a channel is that of its message.
type link struct {
	url    string
	login  func(ctx context.Context) (user, password string, err error) // nil: url's
	client amqp.Config

	mu      sync.Mutex
	conn    *amqp.Connection
	raw     net.Conn
	blocked *atomic.Bool // the server takes nothing from publishers
	idle    []*channel
	closed  bool
}

// channel is a channel in confirm mode.
type channel struct {
	*amqp.Channel
	of       *amqp.Connection
	raw      net.Conn
	returned chan amqp.Return
	closed   chan *amqp.Error
}

// take returns an idle channel, or makes one.
func (l *link) take(ctx context.Context) (*channel, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := ctx.Err(); err != nil { // others have waited for the server meanwhile
		return nil, err
	}
	if l.closed {
		return nil, errClosed
	}
	if l.conn == nil || l.conn.IsClosed() {
		if err := l.connect(ctx); err != nil {
			return nil, err
		}
	}
	if l.blocked.Load() {
		return nil, errBlocked
	}
	for n := len(l.idle); n > 0; n = len(l.idle) {
		ch := l.idle[n-1]
		l.idle = l.idle[:n-1]
		if !ch.IsClosed() {
			return ch, nil
		}
	}
	defer cut(ctx, l.raw)()
	ch, err := l.conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		return nil, err
	}
	return &channel{
		ch,
		l.conn,
		l.raw,
		ch.NotifyReturn(make(chan amqp.Return, 1)),
		ch.NotifyClose(make(chan *amqp.Error, 1)),
	}, nil
}

// cut cuts a connection if ctx ends before the returned function is called: the client's calls take
// no context.
func cut(ctx context.Context, c net.Conn) func() bool {
	return context.AfterFunc(ctx, func() { _ = c.Close() })
}

func (l *link) connect(ctx context.Context) error {
	client, dial := l.client, l.client.Dial
	if l.login != nil {
		user, password, err := l.login(ctx)
		if err != nil {
			return fmt.Errorf("the login cannot be read: %w", err)
		}
		client.SASL = []amqp.Authentication{&amqp.PlainAuth{Username: user, Password: password}}
	}
	stop := func() bool { return true }
	client.Dial = func(network, addr string) (c net.Conn, err error) {
		if dial != nil {
			c, err = dial(network, addr)
		} else {
			c, err = (&net.Dialer{}).DialContext(ctx, network, addr)
		}
		if err == nil {
			l.raw, stop = c, cut(ctx, c)
		}
		return c, err
	}
	conn, err := amqp.DialConfig(l.url, client)
	stop()
	if err != nil {
		return err
	}
	blocked, told := &atomic.Bool{}, conn.NotifyBlocked(make(chan amqp.Blocking, 1))
	go func() {
		for b := range told { // which ends with the connection
			blocked.Store(b.Active)
		}
	}()
	l.conn = conn
	l.blocked = blocked
	l.idle = nil
	return nil
}

// give gives a channel back for the next message.
func (l *link) give(ch *channel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ch.of == l.conn {
		l.idle = append(l.idle, ch)
	}
}

// drop gives up a channel on which an answer may still come.
func (l *link) drop(ch *channel) {
	go func() { _ = ch.Close() }() // it waits for the server
}

func (l *link) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.conn == nil || l.conn.IsClosed() {
		return nil
	}
	return l.conn.CloseDeadline(time.Now().Add(closeTimeout))
}

const closeTimeout = 2 * time.Second

// publish publishes a message, and returns nil once the server has confirmed it.
func (c *channel) publish(ctx context.Context, exchange, key string, msg amqp.Publishing) error {
	stop := cut(ctx, c.raw)
	sent, err := c.PublishWithDeferredConfirmWithContext(ctx, exchange, key, true, false, msg)
	stop()
	if err != nil {
		return fmt.Errorf("rabbitsink: publishing: %w", err)
	}
	confirmed, err := sent.WaitContext(ctx)
	if err != nil {
		return fmt.Errorf("rabbitsink: no confirmation: %w", err)
	}
	select {
	case r, ok := <-c.returned: // which comes before the confirmation
		if ok {
			return unroutable(r.ReplyText)
		}
	default:
	}
	if confirmed {
		return nil
	}
	select {
	case err := <-c.closed:
		if err == nil {
			err = amqp.ErrClosed
		}
		return fmt.Errorf("rabbitsink: the channel is closed: %w", err)
	default:
		return errNotStored
	}
}
