package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/primary"
)

// begin calls the first hook of a pair, and returns the context of the step. end calls the second.
func begin[S any](ctx context.Context, start func(context.Context, S) context.Context, step S) context.Context {
	if start == nil {
		return ctx
	}
	return start(ctx, step)
}

func end[S any](ctx context.Context, end func(context.Context, S, error), step S, err error) {
	if end != nil {
		end(ctx, step, err)
	}
}

// emit calls a hook, if there is one.
func emit[E any](hook func(E), event E) {
	if hook != nil {
		hook(event)
	}
}

// behindLogged is how often it is logged that messages wait behind parked ones: the parked one's
// line has said so, and a busy key would log one with each message.
const behindLogged = time.Minute

func (c *Consumer) emitParked(p ParkedEvent) {
	c.logParked(p)
	emit(c.cfg.Hooks.Parked, p)
}

// logParked logs a parked message, once. Those that wait behind it are a line a minute and
// partition, which counts them.
func (c *Consumer) logParked(p ParkedEvent) {
	of := []any{"scope", c.cfg.Scope, "topic", p.Topic, "partition", p.Partition, "offset", p.Offset}
	if p.Reason != ParkedBehind {
		c.cfg.Logger.Warn("onlyonce: message parked",
			append(of, "reason", p.Reason, "state", p.State, "error", p.Err)...)
		return
	}
	if held, yes := c.behind.Let(fmt.Sprintf("%s/%d", p.Topic, p.Partition), time.Now(), behindLogged); yes {
		c.cfg.Logger.Info("onlyonce: messages wait behind a parked one of their ordering key",
			append(of, "not_logged", held)...)
	}
}

// emitResolved reports a parked message that was applied.
func (c *Consumer) emitResolved(o *outcome, row *parkedRow) {
	m := row.m
	c.cfg.Logger.Info("onlyonce: parked message resolved",
		"scope", c.cfg.Scope, "topic", m.Topic, "partition", m.Partition, "offset", m.Offset,
		"attempts", row.attempt)
	emit(c.cfg.Hooks.Resolved, ResolvedEvent{
		TopicPartition: source.TopicPartition{Topic: m.Topic, Partition: m.Partition},
		Offset:         m.Offset,
		Attempt:        row.attempt,
		Duplicate:      o.result.Duplicates > 0,
	})
}

// haltLog keeps an unchanged halt from being logged again and again.
type haltLog struct {
	last loggedHalt
	at   time.Time
}

// loggedHalt identifies a halt that was logged.
type loggedHalt struct {
	reason   HaltReason
	detail   string
	position int64
}

// due reports whether a halt is to be logged now, and records that it is.
func (l *haltLog) due(halt *HaltError) bool {
	now := loggedHalt{halt.Reason, halt.Detail, halt.Position}
	if now == l.last && time.Since(l.at) < logHaltEvery {
		return false
	}
	l.last = now
	l.at = time.Now()
	return true
}

// logHaltEvery is how often an unchanged halt is logged. Hooks.Halted is called each time.
const logHaltEvery = 5 * time.Minute

// reportRetry reports that something is tried again, and returns the wait before that.
func (e *engine) reportRetry(r RetryEvent, b backoff.BackOff) time.Duration {
	r.Topic = e.id.Topic
	r.Partition = e.id.Partition
	r.Wait = primary.Wait(r.Err, waitAtLeast(r.Err, b.NextBackOff()))
	e.c.cfg.Logger.Warn("onlyonce: trying again", "scope", e.c.cfg.Scope, "topic", r.Topic, "partition", r.Partition,
		"offset", r.Offset, "messages", r.Messages, "attempt", r.Attempt, "wait", r.Wait, "error", r.Err)
	emit(e.c.cfg.Hooks.Retry, r)
	return r.Wait
}
