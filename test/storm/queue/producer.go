package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/onlyonce/onlyonce/test/storm/rig"
)

const (
	orderingKeys = 40
	copyOfLast   = 500 // copies are of these
	publishAgain = 100 * time.Millisecond
)

// producer publishes the stream, each message as often as it takes to be acknowledged.
type producer struct {
	broker   broker
	messages []rig.Message
	copies   float64
	random   *rand.Rand

	gate      atomic.Int64 // how many messages may be published
	published atomic.Int64
	stored    atomic.Int64 // what the broker has acknowledged
	again     atomic.Int64 // copies, and messages whose acknowledgement was lost
}

// stream makes the messages.
func stream(n int, random *rand.Rand) []rig.Message {
	all, seq := make([]rig.Message, n), map[string]int{}
	for i := range all {
		key := fmt.Sprintf("k%02d", random.IntN(orderingKeys))
		seq[key]++
		all[i] = rig.Message{ID: fmt.Sprintf("m%06d", i), Key: key, Seq: seq[key]}
	}
	return all
}

// let opens the gate for so many messages.
func (p *producer) let(n int64) { p.gate.Store(min(n, int64(len(p.messages)))) }

func (p *producer) run(ctx context.Context) error {
	for i, m := range p.messages {
		for int64(i) >= p.gate.Load() {
			if err := wait(ctx, 5*time.Millisecond); err != nil {
				return err
			}
		}
		if err := p.publish(ctx, m); err != nil {
			return err
		}
		p.published.Add(1)
		if p.random.Float64() < p.copies {
			p.again.Add(1)
			if err := p.publish(ctx, p.messages[i-p.random.IntN(min(i+1, copyOfLast))]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *producer) publish(ctx context.Context, m rig.Message) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	for {
		bounded, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := p.broker.publish(bounded, m, body)
		cancel()
		if err == nil {
			p.stored.Add(1)
			return nil
		}
		p.again.Add(1)
		if err := wait(ctx, publishAgain); err != nil {
			return err
		}
	}
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
