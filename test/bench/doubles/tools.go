package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/test/demo/servers"
)

// tool is a way to consume.
type tool struct {
	name  string // of -only
	label string // in the table
	how   string // as which documentation recommends, and what was set

	module  string // its library
	lacks   lacks
	noKafka bool // its messages are in Postgres from the start: there is no group to reset
	redis   bool

	prepare func(context.Context, *play) error
	work    func(context.Context, *worker) error // in the worker's process
	command []string                             // instead of work: the user's own
	left    string                               // returns whether its own store has work left; TOPIC is the topic's name
}

// lacks are the faults against which a library's documentation promises nothing.
type lacks struct{ kills, resets, copies, order bool }

const kafkaGo = "github.com/segmentio/kafka-go"

// tools are the ways that are compared. Loops by hand promise nothing: what they do is counted.
var tools = []tool{
	{
		name: "commit-before", label: "kafka-go, `ReadMessage`, then the handler", module: kafkaGo, work: commitBefore,
		how: "the first example of its README: the offset is committed before the handler runs",
	},
	{
		name: "commit-after", label: "kafka-go, handler, then `CommitMessages`", module: kafkaGo, work: commitAfter,
		how: "explicit commits, as its README shows them for work that must not be lost",
	},
	{
		name: "table-beside", label: "the same, with a table of processed ids beside", module: kafkaGo,
		prepare: withProcessed, work: tableBeside,
		how: "look for the id, run the handler, write the id, commit the offset",
	},
	{
		name: "redis", label: "the same, with Redis `SET NX` before", module: "github.com/redis/go-redis/v9", redis: true, work: redisSetNX,
		how: "a middleware that claims the id for a day, and deletes it if the handler fails",
	},
	{
		name: "table-inside", label: "kafka-go, ids in the handler's transaction", module: kafkaGo,
		prepare: withProcessed, work: tableInside,
		how: "`insert ... on conflict do nothing` in the transaction of the effect, then the offset",
	},
	{
		name: "watermill-kafka", label: "Watermill, Kafka, with its deduplicator",
		module: "github.com/ThreeDotsLabs/watermill-kafka/v3",
		lacks:  lacks{kills: true, resets: true, copies: true}, work: watermillKafka,
		how: "router, `middleware.Deduplicator` by UUID with its own repository, for an hour instead of a minute. " +
			"Its documentation: in memory, not shared between instances",
	},
	{
		name: "watermill-sql", label: "Watermill, SQL, in the subscriber's transaction",
		module: "github.com/ThreeDotsLabs/watermill-sql/v4",
		lacks:  lacks{copies: true}, noKafka: true, prepare: publishWatermill, work: watermillSQL,
		left: `select coalesce((select max("offset") from "watermill_TOPIC"), 0) > ` +
			`coalesce((select max(offset_acked) from "watermill_offsets_TOPIC"), 0)`,
		how: "`TxFromContext`, as its exactly-once example does. The stream is in its table from the start: there is no Kafka",
	},
	{
		name: "river", label: "River, a unique job for each record", module: "github.com/riverqueue/river",
		lacks: lacks{order: true}, prepare: migrateRiver, work: fromRiver,
		left: `select exists (select from river_job where state not in ('completed', 'cancelled', 'discarded'))`,
		how: "`UniqueOpts{ByArgs}` by the id, `JobCompleteTx` in the effect's transaction, 100 workers. " +
			"Stuck jobs are rescued after 10 s instead of an hour",
	},
	{
		name: "dbos", label: "DBOS, a workflow for each id", module: "github.com/dbos-inc/dbos-transact-golang",
		lacks: lacks{order: true}, prepare: migrateDBOS, work: withDBOS,
		left: `select exists (select from dbos.workflow_status where status in ('PENDING', 'ENQUEUED'))`,
		how: "`RunWorkflow` with the message's id, one `RunAsTransaction` on the pool of its system database, " +
			"an executor id for each seat",
	},
	{
		name: "onlyonce", label: "onlyonce", module: "github.com/onlyonce/onlyonce", work: withOnlyonce,
		how: "`kafkasource`, `consumer.Config` with `Scope` and `Key`, defaults",
	},
}

func names() []string {
	var all []string
	for _, t := range tools {
		all = append(all, t.name)
	}
	return all
}

// cell writes a count. What a library does not promise stands in brackets.
func cell(n int, lacks bool) string {
	if lacks {
		return fmt.Sprintf("(%d)", n)
	}
	return fmt.Sprint(n)
}

// table is the table of the results.
func table(rows []row) string {
	var b strings.Builder
	b.WriteString("| Way | Doubled by kills | by resets | by copies | Lost | Overtaken | Command |\n|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		v := r.verdict
		resets := cell(v.ByReset, r.tool.lacks.resets)
		if r.tool.noKafka {
			resets = "-"
		}
		command := "`make doubles ONLY=" + r.tool.name + "`"
		if r.tool.command != nil {
			command = "yours"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %d | %s | %s |\n", r.tool.label, cell(v.ByKill, r.tool.lacks.kills), resets,
			cell(v.ByCopy, r.tool.lacks.copies), v.Lost, cell(v.Overtaken, r.tool.lacks.order), command)
	}
	return b.String()
}

func (cfg settings) describe(s *stream) string {
	return fmt.Sprintf("%d messages of %d keys, %d of them twice; %d workers, %d kills, %d resets; seed %d.",
		cfg.messages, keys, s.copies, workers, cfg.kills, cfg.resets, cfg.seed)
}

func serverVersion(ctx context.Context, srv *servers.Servers) (v string, err error) {
	err = srv.Postgres.Pool.QueryRow(ctx, `select split_part(current_setting('server_version'), ' ', 1)`).Scan(&v)
	return v, err
}

// versionOf returns the version of a module that this program is built of.
func versionOf(module string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, d := range info.Deps {
		if d.Path == module && d.Replace == nil {
			return " " + d.Version
		}
	}
	return ""
}

// commit names the commit that was played.
func commit() string {
	out, err := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*").Output()
	if err != nil {
		return "an unknown commit"
	}
	return strings.TrimSpace(string(out))
}

// page is docs/results/doubles.md.
func page(cfg settings, s *stream, rows []row, postgres, kafka string) string {
	var b strings.Builder
	fmt.Fprintf(&b, pageHead, time.Now().UTC().Format(time.DateOnly), commit(), cfg.describe(s), postgres, nameOf(kafka))
	b.WriteString(table(rows))
	b.WriteString(pageMiddle)
	for _, r := range rows {
		text := fmt.Sprintf("- %s (%s%s): %s. %.0f s.", r.tool.label, r.tool.module, versionOf(r.tool.module), r.tool.how, r.took.Seconds())
		b.WriteString(wrap(text) + "\n")
	}
	return b.String()
}

const pageHead = `# Does it double

` + "`make doubles WHOLE=1 PAGE=docs/results/doubles.md`" + ` wrote this page on %s,
at commit %s. [The guide](../guide/doubles.md) says how it is played, and how to play
a loop of yours.

![Effects doubled and lost, by the way to consume](../charts/doubles.svg)

%s
PostgreSQL %s without fsync, %s.

`

// kafkaVersion is what is known of a broker.
var kafkaVersion = regexp.MustCompile(`kafka-([0-9.]+[0-9])`)

// nameOf names a broker of which the line tells how it was found.
func nameOf(how string) string {
	if m := kafkaVersion.FindStringSubmatch(how); m != nil {
		return "Apache Kafka " + m[1]
	}
	return "a broker of the environment"
}

const pageMiddle = `
A number in brackets is of a fault against which the tool's own documentation promises nothing: it
is shown, and not counted against the tool. A dash: there is no such fault, because its messages are
in Postgres from the start. Doubled are effects beyond the first; lost are messages without one;
overtaken are messages whose first effect came after that of a later message of their key.

`

// wrap breaks a line of a list at 100 columns.
func wrap(text string) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
		case column+1+len(word) > 100:
			b.WriteString("\n  ")
			column = 2
		default:
			b.WriteString(" ")
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}
