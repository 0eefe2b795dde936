package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Copies is the meaning of an id in a consumer of several topics.
type Copies int

const (
	copiesUnset Copies = iota

	// WithinTopic means that an id counts within its topic. The same id in another topic is another
	// message. For example, the id is an order's, and the topics are `created` and `paid`.
	WithinTopic

	// AcrossTopics means that an id counts across the topics of the scope. The same id in another
	// topic is a copy. For example, a tool moves messages from one topic to another.
	AcrossTopics
)

// databaseWord returns the choice's word in the database.
func (c Copies) databaseWord() *string {
	word := map[Copies]string{WithinTopic: "within", AcrossTopics: "across"}[c]
	if word == "" {
		return nil
	}
	return &word
}

// copiesName returns the choice's name in a program.
func copiesName(noted *string) string {
	switch {
	case noted == nil:
		return "not set"
	case *noted == "within":
		return "WithinTopic"
	}
	return "AcrossTopics"
}

// copiesFault returns what is wrong with the choice. Events need none, because each topic gives out
// its own ids.
func (c Config) copiesFault(events bool, topics []string) error {
	rule := ""
	switch {
	case c.Copies < copiesUnset || c.Copies > AcrossTopics:
		rule = fmt.Sprintf("is %d: must be WithinTopic or AcrossTopics, or 0 for not set", c.Copies)
	case c.Copies != copiesUnset && events:
		rule = "must not be set: the source is one of events, whose ids count within their topic"
	case c.Copies != copiesUnset && c.PositionsOnly:
		rule = "is set, and PositionsOnly is too: there are no ids"
	case c.Copies == copiesUnset && !events && c.Key != nil && len(topics) > 1:
		rule = fmt.Sprintf("is not set, and the source reads %d topics: choose WithinTopic if the same id in two of them means two messages (an order's id in `created` and in `paid`), "+
			"AcrossTopics if it means one", len(topics))
	default:
		return nil
	}
	return fmt.Errorf("%w: Config.Copies: %s", ErrConfig, rule)
}

// sourceTopics returns the topics that a source reads, nil if it does not name them.
func sourceTopics(s Source) []string {
	if t, ok := s.(interface{ Topics() []string }); ok {
		return slices.Compact(slices.Sorted(slices.Values(t.Topics())))
	}
	return nil
}

// readScopeSQL reads what ids mean in a scope. In: scope. Out: at most one row, by the primary key.
const readScopeSQL = `select topics, copies, first_topic, class, onlyonce.class_before(scope) from onlyonce.scopes where scope = $1`

// makeScopeSQL records what ids mean in a scope for the first time. In: scope, topics, choice
// (null: none), first topic, class of horizon. An existing row stays as it is.
const makeScopeSQL = `
insert into onlyonce.scopes (scope, topics, copies, first_topic, class) values ($1, $2, $3, $4, $5) on conflict do nothing`

// joinScopeSQL adds a topic, and the choice if none was made. In: scope, topic, choice, topics and
// choice as they were read. Out: a row, unless another consumer has changed it meanwhile.
const joinScopeSQL = `
update onlyonce.scopes set topics = case when $2::text = any (topics) then topics else topics || $2::text end, copies = coalesce(copies, $3)
 where scope = $1 and topics = $4::text[] and copies is not distinct from $5::text`

// scopeRow is a row of onlyonce.scopes.
type scopeRow struct {
	topics     []string
	copies     *string
	firstTopic string

	class       string
	classBefore *string // nil: the ring of class suffices
}

// idInTopic reports whether a topic's ids count within it, so that the topic is part of their keys.
// The result never changes for a topic. If the scope began with one topic, the keys of that topic
// never contain it, whatever is chosen for a second one, so no key is forgotten.
func (r *scopeRow) idInTopic(topic string) bool {
	return r.copies != nil && *r.copies == *WithinTopic.databaseWord() && topic != r.firstTopic
}

// readScope returns nil if there is no row.
func (c *Consumer) readScope(ctx context.Context) (*scopeRow, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	var r scopeRow
	err := c.pool.QueryRow(ctx, readScopeSQL, c.cfg.Scope).Scan(&r.topics, &r.copies, &r.firstTopic, &r.class, &r.classBefore)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading what ids mean in the scope: %w", err)
	}
	return &r, nil
}

// joinScope records which topic is read and what ids mean in it. It halts if other consumers of the
// scope have made another choice (K8).
func (w *worker) joinScope(ctx context.Context) error {
	c, topic := w.c, w.id.Topic
	if c.cfg.Key == nil && !c.events {
		return nil
	}
	chosen := c.cfg.Copies.databaseWord()
	if c.events { // each topic is an endpoint and gives out its own ids
		chosen = WithinTopic.databaseWord()
	}
	for range 10 {
		row, err := c.readScope(ctx)
		if err != nil {
			return err
		}
		switch {
		case row == nil:
			if err := w.makeScope(ctx, chosen); err != nil {
				return err
			}
			continue
		case w.checkClass(row) != nil:
			return w.checkClass(row)
		case chosen == nil && !slices.Contains(row.topics, topic):
			return w.haltError(HaltCopies, "the scope has read %s, this consumer reads %s, and its Config.Copies is not set (the scope's: %s)",
				strings.Join(row.topics, ", "), topic, copiesName(row.copies))
		case chosen != nil && row.copies != nil && *chosen != *row.copies:
			return w.haltError(HaltCopies, "the scope's ids were claimed under %s (topics: %s), and this consumer's Config.Copies is %s",
				copiesName(row.copies), strings.Join(row.topics, ", "), copiesName(chosen))
		case slices.Contains(row.topics, topic) && (chosen == nil || row.copies != nil):
			w.idInTopic = row.idInTopic(topic)
			return nil
		}
		bounded, cancel := c.bounded(ctx)
		_, err = c.pool.Exec(bounded, joinScopeSQL, c.cfg.Scope, topic, chosen, row.topics, row.copies)
		cancel()
		if err != nil {
			return fmt.Errorf("noting what ids mean in the scope: %w", err)
		}
	}
	return fmt.Errorf("others change what ids mean in scope %q again and again", c.cfg.Scope)
}

// makeScope writes the scope's row for the first time. If another shard has one, it copies that
// row, because a partition that moves takes its keys along. No key of the scope is here, so the
// ring of the class before is not asked here.
func (w *worker) makeScope(ctx context.Context, chosen *string) error {
	c := w.c
	row := scopeRow{topics: []string{w.id.Topic}, copies: chosen, class: c.cfg.Horizon.class()}
	if topics := sourceTopics(c.source); len(topics) == 1 || topics == nil && chosen == nil {
		row.firstTopic = w.id.Topic
	}
	for _, other := range c.shards {
		if other == c {
			continue
		}
		there, err := other.readScope(ctx)
		if err != nil {
			return fmt.Errorf("asking shard %q: %w", other.shard, err)
		}
		if there != nil {
			row = *there
			break
		}
	}
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	if _, err := c.pool.Exec(ctx, makeScopeSQL, c.cfg.Scope, row.topics, row.copies, row.firstTopic, row.class); err != nil {
		return fmt.Errorf("noting what ids mean in the scope: %w", err)
	}
	return nil
}
