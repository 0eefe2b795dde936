package onlyoncetest

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/rig/workerdb"
)

// columnsSQL returns a row for each table of the user's, with its columns, and with those whose
// values are drawn: identity columns, those whose default calls the clock, a sequence or a random
// function of the server's or of an extension, and those that the case names. $1 these names.
//
// Which functions a default calls is read from its parsed expression, where a literal is a list of
// bytes and cannot be taken for a call: pg_depend has no rows for the server's own functions. The
// ops 0 to 8 of a SQLVALUEFUNCTION are CURRENT_DATE to LOCALTIMESTAMP, the others are names of
// roles. A function of the user's own may be volatile by default only, so its column is compared.
const columnsSQL = `
with defaults as (
  select d.adrelid, d.adnum, d.adbin::text as tree from pg_attrdef d
), drawn as (
  select d.adrelid, d.adnum from defaults d
   where d.tree ~ '\{NEXTVALUEEXPR |\{SQLVALUEFUNCTION :op [0-8] '
      or exists (
        select from regexp_matches(d.tree, ':funcid (\d+)', 'g') f
          join pg_proc p on p.oid = f[1]::oid
         where (p.oid < 16384 or exists (select from pg_depend e where e.objid = p.oid and e.deptype = 'e'))
           and (p.provolatile = 'v'
             or p.proname in ('now', 'transaction_timestamp', 'statement_timestamp',
                              'txid_current', 'pg_current_xact_id')))
)
select c.oid,
       case n.nspname when 'public' then c.relname::text else n.nspname || '.' || c.relname end,
       format('%I.%I', n.nspname, c.relname),
       c.relkind = 'r',
       array_agg(a.attnum order by a.attnum),
       array_agg(a.attname::text order by a.attnum),
       array_agg(format_type(a.atttypid, null) order by a.attnum),
       array_agg(
         a.attidentity <> ''
         or a.attgenerated = '' and exists (select from drawn d where d.adrelid = c.oid and d.adnum = a.attnum)
         or c.relname || '.' || a.attname = any ($1::text[])
         or n.nspname || '.' || c.relname || '.' || a.attname = any ($1::text[])
         or c.relname || '.*' = any ($1::text[])
         order by a.attnum)
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
  join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
 where c.relkind in ('r', 'p') and c.relpersistence <> 't' and ` + workerdb.UserSchemas + `
   and not exists (select from pg_depend x where x.objid = c.oid and x.deptype = 'e')
 group by c.oid, n.nspname, c.relname, c.relkind order by 2`

// linksSQL returns a row for each foreign key: the table, its columns, the table that it refers to,
// and the columns there.
const linksSQL = `
select conrelid, conkey, confrelid, confkey
  from pg_constraint
 where contype = 'f'
 order by conrelid, conname`

// maxLinks is how many links are followed, one behind the other.
const maxLinks = 3

// catalog is the user's tables.
type catalog struct {
	tables []*relation
	byOID  map[uint32]*relation
}

// relation is a table, and how its rows are compared.
type relation struct {
	oid    uint32
	name   string // as Run shows it
	quoted string
	rows   bool // it has rows of its own, and is not partitioned
	nums   []int16
	cols   []string
	types  []string
	drawn  []bool
	links  []link
}

// link is a foreign key.
type link struct {
	cols []int16
	to   *relation
	keys []int16
}

// readCatalog reads the tables. volatile are columns that the case leaves out.
func readCatalog(ctx context.Context, pool *pgxpool.Pool, volatile []string) (*catalog, error) {
	rows, err := pool.Query(ctx, columnsSQL, append([]string{}, volatile...)) // null would leave every column out
	if err != nil {
		return nil, err
	}
	c := &catalog{byOID: map[uint32]*relation{}}
	c.tables, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (*relation, error) {
		r := &relation{}
		return r, row.Scan(&r.oid, &r.name, &r.quoted, &r.rows, &r.nums, &r.cols, &r.types, &r.drawn)
	})
	if err != nil {
		return nil, err
	}
	for _, r := range c.tables {
		c.byOID[r.oid] = r
	}
	if rows, err = pool.Query(ctx, linksSQL); err != nil {
		return nil, err
	}
	var from, to uint32
	var cols, keys []int16
	_, err = pgx.ForEachRow(rows, []any{&from, &cols, &to, &keys}, func() error {
		r := c.byOID[from]
		target := c.byOID[to]
		if r != nil && target != nil {
			r.links = append(r.links, link{cols, target, keys})
		}
		return nil
	})
	return c, err
}

// column returns the index of a column by its number.
func (r *relation) column(num int16) int {
	for i, n := range r.nums {
		if n == num {
			return i
		}
	}
	return -1
}

// drawnLink reports whether a link leads to a drawn value, by a column that is not drawn itself.
func (r *relation) drawnLink(l link) bool {
	leads := false
	for i, num := range l.cols {
		leads = leads || l.to.drawn[l.to.column(l.keys[i])]
		if r.drawn[r.column(num)] {
			return false
		}
	}
	return leads
}

// text is an expression: what is compared of a row of the relation, under an alias. A column that
// refers to a drawn one differs in each run, so what the link leads to takes its place.
func (r *relation) text(depth int) string {
	alias := fmt.Sprintf("t%d", depth)
	refers := map[int16]bool{}
	var linked []string
	for _, l := range r.links {
		if !r.drawnLink(l) {
			continue
		}
		same := make([]string, len(l.cols))
		for i, num := range l.cols {
			key := l.to.column(l.keys[i])
			refers[num] = refers[num] || l.to.drawn[key]
			same[i] = fmt.Sprintf("t%d.%s = %s.%s",
				depth+1, quoted(l.to.cols[key]), alias, quoted(r.cols[r.column(num)]))
		}
		if depth < maxLinks {
			linked = append(
				linked,
				fmt.Sprintf("(select %s from %s t%d where %s)", l.to.text(depth+1), l.to.quoted, depth+1,
					strings.Join(same, " and ")),
			)
		}
	}
	var all []string
	for i, col := range r.cols {
		if !r.drawn[i] && !refers[r.nums[i]] {
			all = append(all, timed(alias+"."+quoted(col), r.types[i]))
		}
	}
	all = append(all, linked...)
	if len(all) == 0 {
		return "''"
	}
	return "row(" + strings.Join(all, ", ") + ")::text"
}

// timed returns what is compared of a column: a time between $1 and $2 is one of this run, and
// equal to any other. Most programs note when a row was written, by their clock or the server's,
// and no fault follows from that. A column without a time zone holds UTC or the session's time.
func timed(column, kind string) string {
	within := ""
	switch kind {
	case "timestamp with time zone":
		within = column + " between $1 and $2"
	case "timestamp without time zone":
		within = fmt.Sprintf("%[1]s::timestamptz between $1 and $2 or %[1]s at time zone 'UTC' between $1 and $2",
			column)
	default:
		return column
	}
	return fmt.Sprintf("case when %s then 'a time of the run' else %s::text end", within, column)
}

func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }

// leftOut are the columns that are not compared, as table.column.
func (c *catalog) leftOut() (all []string) {
	for _, r := range c.tables {
		for i, drawn := range r.drawn {
			if drawn && r.rows {
				all = append(all, r.name+"."+r.cols[i])
			}
		}
	}
	return all
}
