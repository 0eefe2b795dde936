package webhook

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/claimed"
	"github.com/onlyonce/onlyonce/internal/process"
)

var (
	_ consumer.Source = (*Endpoint)(nil)
	_ claimed.Source  = (*Endpoint)(nil)
)

// errNoSource is why an endpoint is no consumer's source.
func (ep *Endpoint) errNoSource() error {
	switch {
	case ep.set != nil:
		return errors.New("is an endpoint of several databases: consume the events of each with webhook.NewSource")
	case ep.events == nil:
		return errors.New("is an endpoint that stores no events: its Config.Mode is not Stored")
	}
	return nil
}

// ServeScope implements claimed.Source.
func (ep *Endpoint) ServeScope(scope string, mark claimed.Mark) error {
	if err := ep.errNoSource(); err != nil {
		return err
	}
	ep.consumed.Store(true)
	return ep.events.ServeScope(scope, mark)
}

// Group implements [consumer.Source]. It is empty before consumer.New if Config.Group is.
func (ep *Endpoint) Group() string {
	if ep.events == nil {
		return ep.cfg.Group
	}
	return ep.events.Group()
}

// Topics returns the endpoint's stream.
func (ep *Endpoint) Topics() []string { return []string{Topic(ep.cfg.Name)} }

// GroupMetadata returns the metadata of the offsets that the group has committed in the stream.
func (ep *Endpoint) GroupMetadata(ctx context.Context) (map[source.TopicPartition]string, error) {
	if err := ep.errNoSource(); err != nil {
		return nil, fmt.Errorf("webhook: endpoint %s: %w", ep.cfg.Name, err)
	}
	return ep.events.GroupMetadata(ctx)
}

// Run implements [consumer.Source]: it hands over partitions of the stored events, and does the
// work of [Endpoint.Upkeep]. It ends with an error if that does.
func (ep *Endpoint) Run(
	ctx context.Context,
	own func(context.Context, source.Partition[*consumer.Message]) error,
) error {
	if err := ep.errNoSource(); err != nil {
		return fmt.Errorf("webhook: endpoint %s: %w", ep.cfg.Name, err)
	}
	return process.Beside(ctx, ep.Upkeep, func(ctx context.Context) error { return ep.events.Run(ctx, own) })
}

// Ready is for a readiness probe; [consumer.Consumer.Ready] calls it. It returns nil while Run or
// Upkeep works: the database was checked, and, if the endpoint is a consumer's source, this process
// has joined the group. Before that, and from the moment that their context ends, it returns an
// error. It makes no query: if the database goes away later, the endpoint answers requests with
// 503, and their senders try again.
func (ep *Endpoint) Ready() error {
	for name, one := range ep.shards {
		if err := one.Ready(); err != nil {
			return fmt.Errorf("database %q: %w", name, err)
		}
	}
	if ep.shards != nil {
		return nil
	}
	if err := ep.begun.Err(); err != nil {
		return fmt.Errorf("webhook: endpoint %s: not ready: %w", ep.cfg.Name, err)
	}
	if ep.consumed.Load() {
		return ep.events.Ready()
	}
	return nil
}

// Healthy returns nil, or why the last event could not be stored, and since when none could. Use it
// for alerts and status pages. Events that are stored are applied meanwhile: see
// [consumer.Consumer.Healthy].
func (ep *Endpoint) Healthy() error {
	for name, one := range ep.shards {
		if err := one.Healthy(); err != nil {
			return fmt.Errorf("database %q: %w", name, err)
		}
	}
	if since, err := ep.storing.Trouble(); err != nil {
		return fmt.Errorf("webhook: endpoint %s: no event was stored since %s: %w",
			ep.cfg.Name, since.UTC().Format(time.RFC3339), err)
	}
	return nil
}
