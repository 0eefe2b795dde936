package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// variant is one distribution of the rows of some tables.
type variant struct {
	name string
	fill []string // statements; ROWS stands for the number of rows. No trigger fires
}

// family is the variants of some tables that a shape has one of.
type family struct {
	name     string
	variants []variant
}

// stats says when the sessions have planned their statements, and what the server knows of the
// rows.
type stats int

const (
	analysed   stats = iota // ANALYZE has run after the rows were written
	unanalysed              // it has not, and no plan is older than the rows
	early                   // it has not, and the sessions keep the plans that they made while nothing was there
	statsEnd
)

func (s stats) String() string {
	texts := [...]string{"analysed", "never analysed", "planned while empty"}
	return texts[s]
}

// shape is a database that an outage, or time, has made: a variant of each family.
type shape struct {
	name     string
	variants []variant
	stats    stats
	old      bool // a snapshot from before the rows is open, and as many rows as there are have died under it
}

// shapes draws n shapes by a seed. With 0 there are as many as it takes to have every variant, each
// state of the statistics, and rows that died, in at least one.
func shapes(n int, seed uint64) (all []shape) {
	random := rand.New(rand.NewPCG(seed, 11)) //nolint:gosec // reproducible by intent
	least := 2 * int(statsEnd)
	orders := make([][]int, len(families))
	for i, f := range families {
		orders[i] = random.Perm(len(f.variants))
		least = max(least, len(f.variants))
	}
	if n == 0 {
		n = least
	}
	first := random.IntN(2 * int(statsEnd))
	for k := range n {
		at := (first + k) % (2 * int(statsEnd))
		s := shape{stats: stats(at % int(statsEnd)), old: at/int(statsEnd) == 1}
		var names []string
		for i, f := range families {
			v := f.variants[orders[i][k%len(f.variants)]]
			s.variants = append(s.variants, v)
			names = append(names, f.name+" "+v.name)
		}
		names = append(names, s.stats.String())
		if s.old {
			names = append(names, "dead rows under an old snapshot")
		}
		s.name = fmt.Sprintf("%d: %s", k+1, strings.Join(names, ", "))
		all = append(all, s)
	}
	return all
}

// dying makes rows die, as those of a queue whose consumer was fast: of each large table half. An
// old snapshot keeps them, and their entries in the indexes.
type dying struct{ table, sql string }

var dead = []dying{
	{"parked", `update onlyonce.parked set attempts = attempts + 1, next_attempt_at = next_attempt_at + interval '1 ms' where id % 2 = 0`},
	{"parked", `delete from onlyonce.parked where id % 2 = 0`},
	{"http_records", `delete from onlyonce.http_records where get_byte(uuid_send(id), 0) % 2 = 0`},
	{"webhook_ids", `delete from onlyonce.webhook_ids where get_byte(uuid_send(key), 0) % 2 = 0`},
	{"webhook_bodies", `delete from onlyonce.webhook_bodies where get_byte(digest, 0) % 2 = 0`},
	{"webhook_objects", `delete from onlyonce.webhook_objects where get_byte(uuid_send(object), 0) % 2 = 0`},
	{"audit", `delete from onlyonce.audit where id % 2 = 0`},
	{"operations", `delete from onlyonce.operations where get_byte(uuid_send(id), 0) % 2 = 0`},
}

// moved makes the rows die that work moves many times a second: an old snapshot keeps all their
// versions. They count for nothing: no statement may pass over them where it looks.
const moved = `
do $$ begin
  for i in 1 .. 1000 loop update onlyonce.lane_cursors set version = version + 1; end loop;
end $$`
