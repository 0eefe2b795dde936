package queuetest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/queue"
)

// ErrAway is what a [Memory] answers while it is away.
var ErrAway = errors.New("queuetest: the broker is away")

// Memory is a broker in memory, with faults, for tests of your handlers. The zero value is an empty
// queue. It is safe for concurrent use.
type Memory struct {
	mu         sync.Mutex
	messages   []*message // that are not acknowledged, in order
	away, deaf bool
	full       string
	lost       int
}

type message struct {
	of        queue.Delivery
	holder    *connection // to which it was delivered last
	delivered int
}

// Publish adds messages at the end. What the caller does with them later does not matter.
func (m *Memory) Publish(all ...queue.Delivery) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range all {
		m.messages = append(m.messages, &message{of: d})
	}
}

// SetAway has every call fail until it is set back.
func (m *Memory) SetAway(away bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.away = away
}

// SetDeaf has the broker lose every acknowledgement, and deliver such messages again at once.
func (m *Memory) SetDeaf(deaf bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.deaf = deaf
}

// SetFull has the broker say why it takes no more messages from producers; empty: it does. Publish
// goes on.
func (m *Memory) SetFull(why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.full = why
}

// Full implements what queue.Broker says of it.
func (c *connection) Full(context.Context) (why string, err error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.m.away {
		return "", ErrAway
	}
	return c.m.full, nil
}

// Lost returns how many acknowledgements were lost.
func (m *Memory) Lost() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lost
}

// Left returns how many messages are not acknowledged.
func (m *Memory) Left() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.messages)
}

// Connect returns one receiver's connection. A message that was delivered to a connection is not
// delivered to another one until its Begin or End gives it back: its own messages, or with ordered
// everybody's.
func (m *Memory) Connect() queue.Broker { return &connection{m} }

type connection struct{ m *Memory }

// Begin implements queue.Broker.
func (c *connection) Begin(_ context.Context, ordered bool) error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.m.away {
		return ErrAway
	}
	c.giveBack(ordered)
	return nil
}

// End gives back what the connection has not acknowledged.
func (c *connection) End() {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.giveBack(false)
}

func (c *connection) giveBack(all bool) {
	for _, x := range c.m.messages {
		if all || x.holder == c {
			x.holder = nil
		}
	}
}

// Receive implements queue.Broker.
func (c *connection) Receive(ctx context.Context, most int) ([]*queue.Delivery, error) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		all, err := c.take(most)
		if len(all) > 0 || err != nil {
			return all, err
		}
		select {
		case <-ctx.Done():
			return nil, nil
		case <-tick.C:
		}
	}
}

func (c *connection) take(most int) (all []*queue.Delivery, err error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.m.away {
		return nil, ErrAway
	}
	for _, x := range c.m.messages {
		if x.holder == nil && len(all) < most {
			x.holder = c
			x.delivered++
			d := x.of
			d.Headers = slices.Clone(d.Headers)
			d.Handle = x
			d.Redelivered = x.delivered > 1
			all = append(all, &d)
		}
	}
	return all, nil
}

// Ack implements queue.Broker.
func (c *connection) Ack(ctx context.Context, all []*queue.Delivery) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.m.away {
		return ErrAway
	}
	for _, d := range all {
		x := d.Handle.(*message)
		if c.m.deaf {
			x.holder = nil
			c.m.lost++
			continue
		}
		c.m.messages = slices.DeleteFunc(c.m.messages, func(y *message) bool { return x == y })
	}
	return nil
}
