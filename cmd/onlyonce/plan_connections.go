package main

import (
	"context"
	"flag"
	"reflect"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
)

func planConnectionsCommand() command {
	return command{
		name: "plan connections",
		args: "[-consumers N -partitions N [-concurrency N]] [-servers N -requests N [-operations N]] " +
			"[-relays N -sinks N] [-exporters N] [-consoles N] [-other N] [-pooler N] [-max-connections N | " +
			"-postgres URL] [-json]",
		summary: "work out how many connections a database needs",
		json:    []reflect.Type{reflect.TypeFor[reports.ConnectionPlan]()},
		help: `
Works out from what runs against one database how many connections each process needs, so that no
transaction waits for one: set that as pool_max_conns in the address of its database. A process
never has more, but for those beside the pool. With fewer nothing is lost: transactions wait for
each other. Then it compares the sum with what the server accepts: max_connections without what is
reserved, and the limit of the database. It reads these from the server unless -max-connections is
given, and changes nothing.

Give how many processes run at once, with those of a rolling update that start before old ones end.
A part without processes is left out.

-consumers: processes of consumers, of a webhook endpoint or of a queue. -partitions are those of
all topics that they consume (an endpoint or a queue has 16 unless its Config.Partitions says
otherwise), and -concurrency is Config.Concurrency. If one process is down, the others have its
partitions. Handlers must take no connections of the same pool. -servers: processes of the HTTP
layer or of a webhook endpoint's handler. -requests are those that one of them works on at once, and
-operations is OperationsConfig.Partitions, all of which one process may run. If a server and a
consumer share a pool, add up both. -relays: processes of "onlyonce-relay". Each serves all -sinks.
-other: all other programs on this server, for example the application's own pools and backups.
-pooler: the most connections that a pooler in transaction mode makes to this database (PgBouncer:
default_pool_size). Programs then wait for the pooler, and the server sees only its connections.

Status 1 if the pooler or the server has too few.

Examples:
  onlyonce plan connections -consumers 3 -partitions 24 -relays 2 -sinks 2 -exporters 1 -consoles 1
  onlyonce plan connections -consumers 6 -partitions 48 -concurrency 4 -servers 4 -requests 20
      -pooler 300 -max-connections 400`,
		setup: setUpPlanConnections,
	}
}

func setUpPlanConnections(fs *flag.FlagSet) func(context.Context, *app) error {
	address := postgresVar(fs)
	asJSON := jsonVar(fs)
	q := reports.ConnectionQuestion{Concurrency: 1}
	var most int32
	fieldsVar(fs, append(operate.ConnectionFields(&q),
		operate.At(&most, "max-connections", "N", "the server's max_connections, N, in place of asking it").Between(
			1,
			100_000,
		)))
	return func(ctx context.Context, a *app) error {
		if q.Consumers+q.Servers+q.Relays+q.Exporters+q.Consoles == 0 {
			return usagef("say what runs: -consumers, -servers, -relays, -exporters or -consoles")
		}
		for _, pair := range []struct {
			processes, work   int
			processFlag, flag string
		}{
			{q.Consumers, q.Partitions, "-consumers", "-partitions"},
			{q.Servers, q.Requests, "-servers", "-requests"},
			{q.Relays, q.Sinks, "-relays", "-sinks"},
		} {
			if (pair.processes > 0) != (pair.work > 0) {
				return usagef("%s needs %s, and the other way round", pair.processFlag, pair.flag)
			}
		}
		room := &reports.ServerRoom{Most: most, Reserved: 3, Database: -1} // 3: superuser_reserved_connections' default
		if most == 0 {
			err := a.ask(
				ctx,
				*address,
				"reading the server's limits",
				func(ctx context.Context, db ops.DB) (err error) {
					room, err = reports.Look(ctx, db, func(tx pgx.Tx) (*reports.ServerRoom, error) {
						return reports.ReadServerRoom(ctx, tx)
					})
					return err
				},
			)
			if err != nil {
				return err
			}
		}
		return a.writeConnections(reports.PlanConnections(&q, room), *asJSON)
	}
}

// writeConnections writes the plan, and fails if it has faults.
func (a *app) writeConnections(p *reports.ConnectionPlan, asJSON bool) error {
	if asJSON {
		if err := a.writeJSON(p); err != nil {
			return err
		}
	} else {
		var rows [][]string
		for _, part := range p.Parts {
			pool := strconv.Itoa(part.Pool)
			if part.Beside > 0 {
				pool += " + " + strconv.Itoa(part.Beside)
			}
			rows = append(rows, []string{
				part.Part,
				strconv.Itoa(part.Processes),
				pool,
				strconv.Itoa(part.Total),
				part.Why,
			})
		}
		a.table([]string{"PART", "PROCESSES", "POOL_MAX_CONNS", "CONNECTIONS", "OF A PROCESS"}, rows)
		a.say("%d connections; the server must accept %d, and accepts %d", p.Total, p.Server, p.Room)
		for _, f := range p.Faults {
			a.say("too few: %s", f)
		}
	}
	if len(p.Faults) > 0 {
		return &refusal{"there are too few connections"}
	}
	return nil
}
