package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/natssink"
)

// natsConnection is a sink that connects when it is first used, so that checking a configuration
// needs no server. It owns the connection, which then connects again by itself.
type natsConnection struct {
	servers string
	options []nats.Option
	cfg     natssink.Config

	mu     sync.Mutex
	nc     *nats.Conn
	sink   *natssink.Sink
	closed bool
}

func (c *natsConnection) Name() string { return c.cfg.Name }

// Limits are the configuration's, with the sink's default.
func (c *natsConnection) Limits() outbox.Limits {
	return outbox.Limits{KeyWindow: c.cfg.KeyWindow, Timeout: cmp.Or(c.cfg.Timeout, natssink.DefaultTimeout)}
}

// connected returns the sink. It waits for a server for [nats.DefaultTimeout] at most, and once.
func (c *natsConnection) connected() (*natssink.Sink, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.New("the sink is closed")
	}
	if c.sink != nil {
		return c.sink, nil
	}
	nc, err := nats.Connect(c.servers, c.options...)
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err == nil {
		c.sink, err = natssink.New(js, c.cfg)
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	c.nc = nc
	return c.sink, nil
}

// Send makes one attempt.
func (c *natsConnection) Send(ctx context.Context, a *outbox.Attempt) outbox.Result {
	sink, err := c.connected()
	if err != nil {
		err = fmt.Errorf("connecting to NATS: %w", err)
		return outbox.BrokerFailure(err.Error(), err, true)
	}
	return sink.Send(ctx, a)
}

// Preflight asks the servers' monitors.
func (c *natsConnection) Preflight(ctx context.Context) []string {
	if len(c.cfg.Monitors) == 0 {
		return nil
	}
	sink, err := c.connected()
	if err != nil {
		return []string{err.Error()}
	}
	return sink.Preflight(ctx)
}

// Close closes the connection. Later calls are postponed.
func (c *natsConnection) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.nc != nil {
		c.nc.Close()
	}
}
