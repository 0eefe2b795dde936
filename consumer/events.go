package consumer

import (
	"context"
	"time"
)

// traceAttempt and traceAttemptEnd call the pair of hooks around a transaction.
func (c *Consumer) traceAttempt(ctx context.Context, d BatchDone) context.Context {
	if c.cfg.Hooks.AttemptStart == nil {
		return ctx
	}
	return c.cfg.Hooks.AttemptStart(ctx, d)
}

func (c *Consumer) traceAttemptEnd(ctx context.Context, d BatchDone, err error) {
	if c.cfg.Hooks.AttemptEnd != nil {
		c.cfg.Hooks.AttemptEnd(ctx, d, err)
	}
}

// emitCommitted reports a committed transaction of messages from the log.
func (c *Consumer) emitCommitted(a *attempt) {
	for _, p := range a.parked {
		c.emitParked(p)
	}
	if c.cfg.Hooks.Batch != nil && len(a.msgs) > 0 {
		c.cfg.Hooks.Batch(a.done)
	}
}

func (c *Consumer) emitParked(p MessageEvent) {
	c.cfg.Logger.Warn("onlyonce: message parked", "scope", c.cfg.Scope, "topic", p.Topic, "partition", p.Partition,
		"offset", p.Offset, "reason", p.Reason, "state", p.State, "error", p.Err)
	if c.cfg.Hooks.Parked != nil {
		c.cfg.Hooks.Parked(p)
	}
}

// emitResolved reports a parked message that was applied.
func (c *Consumer) emitResolved(a *attempt, row *parkedRow) {
	m := row.m
	c.cfg.Logger.Info("onlyonce: parked message resolved", "scope", c.cfg.Scope, "topic", m.Topic, "partition", m.Partition,
		"offset", m.Offset, "attempts", row.attempt)
	if c.cfg.Hooks.Resolved != nil {
		c.cfg.Hooks.Resolved(MessageEvent{Topic: m.Topic, Partition: m.Partition, Offset: m.Offset, Attempt: row.attempt, Duplicate: a.done.Duplicates > 0})
	}
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
	l.last, l.at = now, time.Now()
	return true
}

// logHaltEvery is how often an unchanged halt is logged. Hooks.Halted is called each time.
const logHaltEvery = 5 * time.Minute
