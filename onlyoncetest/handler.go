package onlyoncetest

import (
	"cmp"
	"context"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
)

// AnyHandler is a [consumer.Handler] or a [consumer.BatchHandler].
type AnyHandler interface {
	~func(context.Context, consumer.Tx, *consumer.Message) error |
		~func(context.Context, consumer.Tx, []*consumer.Message) error
}

// newConsumer makes a consumer of either kind.
func newConsumer[H AnyHandler](pool *pgxpool.Pool, source consumer.Source, handler H, cfg consumer.Config) (*consumer.Consumer, error) {
	v := reflect.ValueOf(handler)
	if single := reflect.TypeFor[consumer.Handler](); v.CanConvert(single) { // a type of the user's own too
		return consumer.New(pool, source, v.Convert(single).Interface().(consumer.Handler), cfg)
	}
	return consumer.NewBatch(pool, source, v.Convert(reflect.TypeFor[consumer.BatchHandler]()).Interface().(consumer.BatchHandler), cfg)
}

// tuned returns the configuration of a consumer in a test. Scope and Key get defaults, and what
// only costs time is shortened unless it is set. Everything else is the user's.
func tuned(cfg consumer.Config) consumer.Config {
	cfg.Scope = cmp.Or(cfg.Scope, "test")
	if cfg.Key == nil && !cfg.PositionsOnly {
		cfg.Key = idOf
	}
	cfg.Linger = cmp.Or(cfg.Linger, time.Millisecond)
	cfg.RetryMin = cmp.Or(cfg.RetryMin, time.Millisecond)
	cfg.RetryMax = max(cmp.Or(cfg.RetryMax, 10*time.Millisecond), cfg.RetryMin)
	return cfg
}

// idOf returns a message's id: that of FromMessage, or the header message-id.
func idOf(m *consumer.Message) (string, error) {
	if id := m.ID(); id != "" {
		return id, nil
	}
	return consumer.HeaderKey(idHeader)(m)
}
