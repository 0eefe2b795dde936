package rig

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// MakeEffects makes the table of effects.
func MakeEffects(ctx context.Context, c *pgxpool.Conn) error {
	_, err := c.Exec(ctx, EffectsSQL, pgx.QueryExecModeSimpleProtocol)
	return err
}

// Message is what a message says, or an event, of a stream from outside.
type Message struct {
	ID  string `json:"id"`
	Key string `json:"key"`
	Seq int    `json:"seq"` // within its key, from 1
}

// EffectsSQL makes the table that the workers write. It has no unique constraint, so that a
// repeated effect is possible and shows. n records the order: the effects of one ordering key are
// written by one transaction after the other.
const EffectsSQL = `
create schema storm;
create table storm.effects (n bigserial primary key, id text not null, key text not null, seq int not null);
create index on storm.effects (id)`

// EffectSQL is the handler's own write. $1 to $3 the message.
const EffectSQL = `insert into storm.effects (id, key, seq) values ($1, $2, $3)`

// WrittenSQL returns the effects as messages, in their order.
const WrittenSQL = `select id, key, seq from storm.effects order by n`

// Faults are the ids of messages whose effects are wrong.
type Faults struct {
	Lost     []string // no effect
	Double   []string // more than one
	Unknown  []string // an effect, and never sent
	Inverted []string // after a later message of their key
}

// Compare judges the effects of messages, in the order in which they were written.
func Compare(sent, effects []Message) (f Faults) {
	times := map[string]int{}
	last := map[string]int{}
	known := map[string]bool{}
	for _, m := range sent {
		known[m.ID] = true
	}
	for _, e := range effects {
		times[e.ID]++
		if !known[e.ID] {
			f.Unknown = append(f.Unknown, e.ID)
		}
		if e.Seq < last[e.Key] {
			f.Inverted = append(f.Inverted, e.ID)
		}
		last[e.Key] = max(last[e.Key], e.Seq)
	}
	for _, m := range sent {
		switch times[m.ID] {
		case 0:
			f.Lost = append(f.Lost, m.ID)
		case 1:
		default:
			f.Double = append(f.Double, m.ID)
		}
	}
	return f
}

// Breaches names the rules that are broken, with some of the messages.
func (f Faults) Breaches() (breaches []string) {
	for _, b := range []struct {
		what string
		ids  []string
	}{
		{"I1 lost", f.Lost},
		{"I2 applied more than once", f.Double},
		{"I3 applied, and never sent", f.Unknown},
		{"I6 applied after a later message of their key", f.Inverted},
	} {
		if n := len(b.ids); n > 0 {
			breaches = append(breaches, fmt.Sprintf("%s: %d (%s)", b.what, n, strings.Join(b.ids[:min(n, 10)], " ")))
		}
	}
	return breaches
}
