package ops_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// report inserts what a process reports. At: its age.
const report = `insert into onlyonce.owners (
  id,
  scope,
  host,
  pid,
  started_at,
  seen_at,
  partitions,
  faults
)
 values (
   gen_random_uuid(),
   'stock',
   'h',
   1,
   clock_timestamp() - $1::interval - interval '1 h',
   clock_timestamp() - $1::interval,
   $2::jsonb,
   $3::jsonb
 )`

const (
	owns     = `[{"topic": "orders", "partition": 0}]`
	owns1    = `[{"topic": "orders", "partition": 1}]`
	ownsBoth = `[{"topic": "orders", "partition": 0}, {"topic": "orders", "partition": 1}]`
)

// What processes report is added up, by scope, kind and topic; a process that is silent reports
// nothing about the present, whichever way the clock was set.
func TestS3Faults(t *testing.T) {
	t.Parallel()
	const joins = `[{"kind": "group", "for": 45, "text": "group billing not joined: i/o timeout"}]`
	const gone = `[{"kind": "topic", "topic": "orders", "partitions": 2, "for": 7, "text": "unknown"}]`
	read := func(age, text string) string {
		return `[{"kind": "read", "topic": "orders", "partitions": 1, "for": ` + age + `, "text": "` + text + `"}]`
	}
	released := func(ago string) string {
		return `update onlyonce.cursors set released_at = clock_timestamp() - interval '` + ago + `'`
	}
	type process struct{ age, partitions, faults string }
	for name, c := range map[string]struct {
		setup     string
		processes []process
		want      []string
	}{
		"none": {"", []process{{"1 s", ownsBoth, `[]`}}, nil},
		"cannot join": {
			"",
			[]process{{"2 s", ownsBoth, joins}, {"3 s", `[]`, joins}},
			[]string{"cannot join: scope stock, 2 processes, for 48s: group billing not joined: i/o timeout"},
		},
		"cannot read": {
			"",
			[]process{{"0 s", owns, read("100", "gone")}, {"0 s", owns1, read("90", "newer")}},
			[]string{"cannot read: scope stock, 2 partitions of orders (2 processes), for 1m40s: gone"},
		},
		"no such topic": {
			"",
			[]process{{"0 s", ownsBoth, gone}},
			[]string{"no such topic: scope stock, 2 partitions of orders (1 process), for 7s: unknown"},
		},
		"gone and retired": {`update onlyonce.cursors set retired_at = clock_timestamp()`, []process{{"0 s", ownsBoth, gone}}, nil},
		"two kinds": {
			"",
			[]process{{"0 s", ownsBoth, joins[:len(joins)-1] + ", " + read("3", "gone")[1:]}},
			[]string{"cannot join", "cannot read"},
		},
		"silent":           {"", []process{{"31 s", ownsBoth, joins}}, nil},
		"of the future":    {"", []process{{"-2 min", ownsBoth, joins}}, nil},
		"clock a bit back": {"", []process{{"-5 s", ownsBoth, joins}}, []string{"cannot join: scope stock, 1 process, for 40s"}},

		"no owner": {
			released("12 s"),
			[]process{{"0 s", owns, `[]`}},
			[]string{"no owner: scope stock, 1 partition of orders, although 1 process runs, for 12s"},
		},
		"no owner of two": {
			released("12 s"),
			[]process{{"0 s", `[]`, `[]`}, {"0 s", `[]`, `[]`}},
			[]string{"no owner: scope stock, 2 partitions of orders, although 2 processes run, for 12s"},
		},
		"no owner, all killed": {
			released("12 s"),
			[]process{{"20 s", `[]`, `[]`}, {"20 s", `[]`, `[]`}},
			[]string{"although 2 processes reported until a moment ago, for 12s"},
		},
		"no owner, one killed": {
			released("12 s"),
			[]process{{"0 s", owns, `[]`}, {"20 s", `[]`, `[]`}},
			[]string{"although 1 process runs, and 1 process reported until a moment ago, for 12s"},
		},
		"changes hands": {released("1 s"), []process{{"0 s", `[]`, `[]`}}, nil},
		"released ahead": {
			released("-7 days"),
			[]process{{"0 s", owns, `[]`}},
			[]string{"no owner: scope stock, 1 partition of orders, although 1 process runs, for 0s"},
		},
		"its owner died": {
			released("9 days") + `; update onlyonce.cursors set released_at = null where partition = 1`,
			[]process{{"0 s", owns, `[]`}, {"40 s", owns1, `[]`}},
			[]string{"for 40s"},
		},
		"an owner yet unheard": {`update onlyonce.cursors set released_at = null`, []process{{"0 s", owns, `[]`}}, nil},
		"retired": {
			released("1 h") + `; update onlyonce.cursors set retired_at = clock_timestamp()`,
			[]process{{"0 s", `[]`, `[]`}},
			nil,
		},
		"paused": {
			released("1 h") + `; insert into onlyonce.pauses (scope, reason) values ('stock', 'why')`,
			[]process{{"0 s", `[]`, `[]`}},
			nil,
		},
		"nobody runs": {released("1 h"), nil, nil}, // needConsumer
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.DB(t)
			cursors(t, pool, 2)
			if c.setup != "" {
				if _, err := pool.Exec(t.Context(), c.setup, pgx.QueryExecModeSimpleProtocol); err != nil {
					t.Fatal(err)
				}
			}
			for _, p := range c.processes {
				exec(t, pool, report, p.age, p.partitions, p.faults)
			}
			r, err := ops.Status(t.Context(), pool, ops.StatusQuestion{})
			if err != nil {
				t.Fatal(err)
			}
			wantFaults(t, r.Faults, c.want)
			needs := 0
			for _, n := range r.Needs {
				if n.Kind == "fault" {
					needs++
				}
			}
			if needs != len(c.want) {
				t.Errorf("%d needs, want %d: %+v", needs, len(c.want), r.Needs)
			}
			found, err := ops.Examine(t.Context(), pool, ops.ExamineQuestion{})
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range found.Findings {
				if f.Check == "faults" && (f.Level == "ok") != (len(c.want) == 0) {
					t.Errorf("doctor: %+v", f)
				}
			}
		})
	}
}

// A database that takes no writes is a fault; a login or a session that is set to read only, as
// those of people who look, is none.
func TestS3ReadOnly(t *testing.T) {
	t.Parallel()
	for setup, want := range map[string]bool{
		`alter database DB set default_transaction_read_only = on`:                  true,
		`alter role postgres in database DB set default_transaction_read_only = on`: false,
	} {
		pool := pgtest.DB(t)
		cfg := pool.Config().ConnConfig
		exec(t, pool, strings.ReplaceAll(setup, "DB", pgx.Identifier{cfg.Database}.Sanitize()))
		r, err := ops.Status(t.Context(), pgtest.Pool(t, cfg.ConnString()), ops.StatusQuestion{})
		if err != nil {
			t.Fatal(err)
		}
		if got := len(r.Faults) == 1 && r.Faults[0].Kind == "read-only"; got != want || len(r.Faults) > 1 {
			t.Errorf("%s: %+v", setup, r.Faults)
		}
	}
}

// wantFaults checks that faults say what is wanted of each, in this order, and returns their texts.
func wantFaults(t *testing.T, faults []ops.Fault, wants []string) (got []string) {
	t.Helper()
	for i := range faults {
		got = append(got, faults[i].String())
	}
	if len(got) != len(wants) {
		t.Fatalf("%q, want %q", got, wants)
	}
	for i, want := range wants {
		if !strings.Contains(got[i], want) {
			t.Errorf("%q, want %q", got[i], want)
		}
	}
	return got
}
