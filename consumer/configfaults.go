package consumer

import (
	"fmt"
	"slices"
	"strings"
	"time"

	brakes "github.com/onlyonce/onlyonce/internal/brake"
	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/shard"
)

// maxConcurrency is the most transactions of one partition at once: more than any server has
// connections to spare for.
const maxConcurrency = 256

// maxScope is the most bytes of a scope, so that it fits the names and metadata that contain it.
const maxScope = 200

// scopeFault refuses the scopes of receivers to a consumer of another source: both would claim ids
// there, and take each other's for copies (S5).
func (c Config) scopeFault() error {
	if !names.IsReceiver(c.Scope) {
		return nil
	}
	l := &fields.List{Sentinel: ErrConfig, Struct: "Config"}
	l.Add("Scope", "is %q: the scopes in which webhook endpoints and queues claim their ids begin so", c.Scope)
	return l.Err()
}

func (c Config) faults(events bool) error {
	l := &fields.List{Sentinel: ErrConfig, Struct: "Config"}
	if c.Scope == "" {
		l.Add("Scope", "must not be empty: it names this consumer, and keys and positions are kept under it")
	}
	if len(c.Scope) > maxScope {
		l.Add("Scope", "has %d bytes: must have at most %d", len(c.Scope), maxScope)
	}
	identifies := c.Key != nil || c.PositionsOnly || c.Tenant != nil
	switch {
	case events && identifies:
		l.Add("Key",
			"must not be set, nor PositionsOnly and Tenant: the source is one of events, which have their "+
				"ids and tenants from where they were appended")
	case events:
	case c.Key == nil && !c.PositionsOnly:
		l.Add("Key",
			"is not set: choose where a message's id is (HeaderKey, CloudEventKey, JSONKey or a function of "+
				"yours), or set PositionsOnly to run without ids")
	case c.Key != nil && c.PositionsOnly:
		l.Add("PositionsOnly", "is set, and Key is too: choose one")
	case c.Key != nil:
		l.Join(keyFuncFault(c.Key))
	}
	if c.Start.policy == "time" && c.Start.at.UnixMilli() <= 0 {
		l.Add("Start", "is At(%v): must be a time after 1970", c.Start.at)
	}
	c.checkTooOld(l)
	c.checkHorizon(l)
	if strings.ContainsRune(c.Scope, 0) {
		l.Add("Scope", "must not hold a NUL character: PostgreSQL stores none")
	}
	if !slices.Contains([]FailurePolicy{ParkMessage, ParkOrderingKey, BlockPartition}, c.OnFailure) {
		l.Add("OnFailure", "is %d: must be ParkMessage, ParkOrderingKey or BlockPartition", c.OnFailure)
	}
	if c.CopiesWithin > 0 && (c.CopiesWithin < time.Second || c.Key == nil) {
		l.Add("CopiesWithin", "is %v: must be at least a second, or 0 for not declared, and needs Key", c.CopiesWithin)
	}
	if c.Fingerprint != nil && c.Key == nil {
		l.Add("Fingerprint", "is set, and Key is not: there are no ids whose messages are compared")
	}
	for i, m := range c.Middleware {
		if m == nil {
			l.Add("Middleware", "has nil at index %d", i)
		}
	}
	l.Signs(c)
	w := c.withDefaults()
	brakes.Settings(w.Brake).Check(l)
	if w.Concurrency > maxConcurrency {
		l.Add("Concurrency", "is %d: must be at most %d", w.Concurrency, maxConcurrency)
	}
	if w.Window < w.Concurrency && c.BatchSize >= 0 { // else its default is wrong only because of that
		l.Add("Window", "is %d: must be at least Concurrency, %d", w.Window, w.Concurrency)
	}
	if w.Backoff.Min > w.Backoff.Max {
		l.Add("Backoff.Max", "is %v: must be at least Backoff.Min, %v", w.Backoff.Max, w.Backoff.Min)
	}
	if w.HandlerTimeout > w.BatchTimeout {
		l.Add("BatchTimeout",
			"is %v: must be at least HandlerTimeout, %v, which it would cut short",
			w.BatchTimeout,
			w.HandlerTimeout)
	}
	return l.Err()
}

// checkTooOld checks that TooOld is set if and only if ids have times.
func (c *Config) checkTooOld(l *fields.List) {
	timed := c.Key != nil && isTimed(c.Key)
	switch {
	case c.TooOld < tooOldUnset || c.TooOld > ApplyTooOld:
		l.Add("TooOld", "is %d: must be ParkTooOld or ApplyTooOld, or 0 without TimedKey", c.TooOld)
	case timed && c.TooOld == tooOldUnset:
		l.Add("TooOld",
			"is not set, and Key is one of TimedKey: choose ParkTooOld, or ApplyTooOld if a copy that comes "+
				"past the horizon may take effect again")
	case !timed && c.TooOld != tooOldUnset:
		l.Add("TooOld", "is set, and Key is none of TimedKey: no message has a time that could be compared")
	}
}

// checkHorizon checks that the class exists, and that there are keys to remember.
func (c *Config) checkHorizon(l *fields.List) {
	switch {
	case c.Horizon < HorizonStandard || c.Horizon > HorizonLong:
		l.Add("Horizon", "is %d: must be HorizonStandard, HorizonShort or HorizonLong", c.Horizon)
	case c.Horizon != HorizonStandard && c.Key == nil:
		l.Add("Horizon", "is set, and Key is not: no keys are claimed in the consumers' rings")
	}
}

// copiesFault returns what is wrong with the choice. Events need none, because each topic gives out
// its own ids.
func (c Config) copiesFault(events bool, topics []string) error {
	rule := ""
	severalIDs := !events && c.Key != nil && len(topics) > 1
	switch {
	case c.Copies < copiesUnset || c.Copies > AcrossTopics:
		rule = fmt.Sprintf("is %d: must be WithinTopic or AcrossTopics, or 0 for not set", c.Copies)
	case c.Copies != copiesUnset && events:
		rule = "must not be set: the source is one of events, whose ids count within their topic"
	case c.Copies != copiesUnset && c.PositionsOnly:
		rule = "is set, and PositionsOnly is too: there are no ids"
	case c.Copies == copiesUnset && severalIDs:
		rule = fmt.Sprintf(
			"is not set, and the source reads %d topics: choose WithinTopic if the same id in two of them "+
				"means two messages (an order's id in `created` and in `paid`), "+
				"AcrossTopics if it means one",
			len(topics),
		)
	default:
		return nil
	}
	return fmt.Errorf("%w: Config.Copies: %s", ErrConfig, rule)
}

// sourceTopics returns the topics that a source reads, nil if it does not name them.
func sourceTopics(s Source) []string {
	if t, ok := s.(SourceTopics); ok {
		return slices.Compact(slices.Sorted(slices.Values(t.Topics())))
	}
	return nil
}

// setFault returns what is wrong with the databases of a consumer.
func setFault(set *shard.Set, events bool) error {
	if set == nil {
		return fmt.Errorf("%w: set: must not be nil", ErrConfig)
	}
	if _, partitions := set.Routes(); !partitions {
		return fmt.Errorf("%w: set: shard.Config.OfPartition: must not be nil: it names the database of a partition",
			ErrConfig)
	}
	if events {
		return fmt.Errorf("%w: set: must not be given with a source of events: those lie in one database "+
			"and are claimed there, so use New", ErrConfig)
	}
	return nil
}
