package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
)

// watched checks the offset commits between the consumer and its source, for I8. A commit may name
// only a partition that its process owns at that time, in the generation in which it got it.
//
// What a source hands over is bound to a generation, which the broker checks on the wire. So two
// things are checked here: no commit begins on, or outlives, a partition that was given back, and
// no partition is handed over twice at a time. The sources' own tests check that a generation's
// assignment is what the coordinator said.
type watched struct {
	consumer.Source
	breach func(format string, args ...any)

	mu   sync.Mutex
	held map[string]bool
}

func watch(s consumer.Source, breach func(format string, args ...any)) *watched {
	return &watched{Source: s, breach: breach, held: map[string]bool{}}
}

// Validate is what consumer.New calls on a source that can find its own faults.
func (w *watched) Validate() error {
	if v, ok := w.Source.(consumer.SourceValidate); ok {
		return v.Validate()
	}
	return nil
}

// Run hands over partitions that watch their commits.
func (w *watched) Run(ctx context.Context, own func(ctx context.Context, p source.Partition[*consumer.Message]) error) error {
	return w.Source.Run(ctx, func(ctx context.Context, p source.Partition[*consumer.Message]) error {
		o := &ownedPartition{Partition: p, w: w}
		if id, err := p.Identity(ctx); err == nil {
			name := fmt.Sprintf("%s/%d", id.Topic, id.Partition)
			w.mu.Lock()
			twice := w.held[name]
			w.held[name] = true
			w.mu.Unlock()
			if twice {
				w.breach("I8 %s was handed over twice", name)
			}
			defer func() {
				w.mu.Lock()
				delete(w.held, name)
				w.mu.Unlock()
			}()
		}
		err := own(ctx, o)
		o.mu.Lock()
		defer o.mu.Unlock()
		o.over = true
		if o.underWay > 0 {
			w.breach("I8 a partition was given back with %d offset commits under way", o.underWay)
		}
		return err
	})
}

// ownedPartition is one partition, from the time it is handed over until it is given back.
type ownedPartition struct {
	source.Partition[*consumer.Message]
	w *watched

	mu       sync.Mutex
	over     bool
	underWay int
}

// Commit commits an offset, and watches.
func (o *ownedPartition) Commit(ctx context.Context, offset int64, metadata string) error {
	o.mu.Lock()
	over := o.over
	o.underWay++
	o.mu.Unlock()
	if over {
		o.w.breach("I8 offset %d was committed for a partition that was given back", offset)
	}
	err := o.Partition.Commit(ctx, offset, metadata)
	o.mu.Lock()
	o.underWay--
	o.mu.Unlock()
	return err
}
