package main

import (
	"context"
	"time"
)

// pingTimeout bounds the check of the database for an answer about health.
const pingTimeout = 2 * time.Second

// pingEvery is how long its result counts for all who ask.
const pingEvery = time.Second

// pings asks whether a database answers, through the pool with which the relay works: at most once
// in pingEvery, however many ask for the relay's health. It is safe for concurrent use.
type pings struct {
	ping func(context.Context) error
	turn chan struct{} // holds a token while somebody asks, and the others wait for the result
	at   time.Time
	err  error
}

func newPings(ping func(context.Context) error) *pings {
	return &pings{ping: ping, turn: make(chan struct{}, 1)}
}

// answers returns nil if the database has answered within pingEvery, or else why it does not.
func (p *pings) answers() error {
	p.turn <- struct{}{}
	defer func() { <-p.turn }()
	if !p.at.IsZero() && time.Since(p.at) < pingEvery {
		return p.err
	}
	// Not by the context of who asks: the result is everybody's.
	ctx, cancel := context.WithTimeout(context.Background(), pingTimeout)
	defer cancel()
	p.err = p.ping(ctx)
	p.at = time.Now()
	return p.err
}
