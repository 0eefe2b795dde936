package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// scopeSQL reads what ids mean in a scope. In: scope. At most one row; by the primary key.
const scopeSQL = `select topics, copies, home from onlyonce.scopes where scope = $1`

// joinScopeSQL brings that of another database. In: scope, topics, choice (null: none), home. By the primary key.
const joinScopeSQL = `
insert into onlyonce.scopes as s (scope, topics, copies, home) values ($1, $2::text[], $3, $4)
on conflict (scope) do update set copies = coalesce(s.copies, excluded.copies),
  topics = (select array_agg(distinct t) from unnest(s.topics || excluded.topics) t)`

// scopeRow is a row of onlyonce.scopes.
type scopeRow struct {
	Topics []string
	Copies *string
	Home   string
}

func (r *scopeRow) text() string {
	choice := "no choice"
	if r.Copies != nil {
		choice = *r.Copies
	}
	if r.Home == "" {
		return choice + ", begun with several topics"
	}
	return choice + ", begun with " + r.Home
}

// readScope returns nil where the scope has no row: it claims no ids.
func readScope(ctx context.Context, tx pgx.Tx, scope *string) (*scopeRow, error) {
	rows, err := collect[scopeRow](ctx, tx, scopeSQL, scope)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return &rows[0], nil
}

// agrees refuses to bring keys to where they would not be found: ids mean something else there (K8).
func (r *scopeRow) agrees(ctx context.Context, tx pgx.Tx, scope *string, from string) error {
	here, err := readScope(ctx, tx, scope)
	if err != nil || here == nil || r == nil {
		return err
	}
	if here.Home != r.Home || here.Copies != nil && r.Copies != nil && *here.Copies != *r.Copies {
		return &refusal{fmt.Sprintf("ids of the scope do not mean here what they mean in %s (here: %s; there: %s), and nothing was done: keys that came along would not be found. "+
			"See onlyonce.scopes in both", from, here.text(), r.text())}
	}
	return nil
}
