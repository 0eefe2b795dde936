package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

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
	var r scopeRow
	err := c.queryRow(ctx, readScopeSQL, c.cfg.Scope).Scan(&r.topics, &r.copies, &r.firstTopic, &r.class, &r.classBefore)
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
		if err := c.exec(ctx, joinScopeSQL, c.cfg.Scope, topic, chosen, row.topics, row.copies); err != nil {
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
	if err := c.exec(ctx, makeScopeSQL, c.cfg.Scope, row.topics, row.copies, row.firstTopic, row.class); err != nil {
		return fmt.Errorf("noting what ids mean in the scope: %w", err)
	}
	return nil
}

// checkClass halts unless the scope has the class of Config.Horizon, or had it before and is still
// claimed in both rings: then the processes of a service may be deployed one after another.
func (w *worker) checkClass(row *scopeRow) error {
	mine := w.c.cfg.Horizon.class()
	if w.c.cfg.Key == nil || slices.Contains(classesOf(row.class, row.classBefore), mine) {
		return nil
	}
	err := w.haltError(HaltClass, "the scope's keys are of class %s, and this consumer's Config.Horizon is %s", row.class, mine)
	err.class = mine
	return err
}
