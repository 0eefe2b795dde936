package reports

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/preflight"
	"github.com/onlyonce/onlyonce/internal/show"
)

// What the parts take beside the transactions that they work for.
const (
	consumerOwn   = 2 // reports and polls of a consumer, and its turn at rotation: see Consumer.Run
	relayOwn      = 2 // its turn at rotating keys and calls: see Relay.Run
	sinkOwn       = 2 // leases, polls and rates of a sink, and the transactions of its lanes, which are short
	consoleOwn    = 4 // ui's atOnce
	commandOwn    = 1 // onlyonce migrate, or an operator's command
	renewalsOwn   = 1 // leases of requests, beside the pool: see idempotency's leaseKeeper
	retriesOfPart = 1 // a partition's parked messages are tried again one at a time
)

// ConnectionQuestion is what works on one database. A part of which there are 0 processes is left
// out.
type ConnectionQuestion struct {
	Consumers   int
	Partitions  int
	Concurrency int
	Servers     int
	Requests    int
	Operations  int
	Relays      int
	Sinks       int
	Exporters   int
	Consoles    int
	Other       int
	Pooler      int // 0: there is none
}

// ConnectionPart is the processes of one kind.
type ConnectionPart struct {
	Part      string `json:"part"`
	Processes int    `json:"processes"`
	Pool      int    `json:"pool_max_conns" doc:"of each process"`
	Beside    int    `json:"beside_pool" doc:"connections that each process makes beside its pool"`
	Total     int    `json:"connections" doc:"of all of these processes"`
	Why       string `json:"why" doc:"what a process takes them for"`
}

// ConnectionPlan is how many connections a database needs.
type ConnectionPlan struct {
	Parts []ConnectionPart `json:"parts"`
	// of all parts: so many a pooler must be able to make, or the server must accept if there is
	// none
	Total  int      `json:"connections" doc:"above"`
	Server int      `json:"server_connections" doc:"connections that the server must accept"`
	Room   int      `json:"server_room" doc:"connections that the server accepts from programs"`
	Faults []string `json:"faults" doc:"which setting is too low, and what to set it to"`
}

// consumerPool is how many connections a consumer's pool needs, and what for. The others take the
// partitions of one that is down.
func (q *ConnectionQuestion) consumerPool() (conns int, why string) {
	left := max(1, q.Consumers-1)
	owned := (q.Partitions + left - 1) / left
	why = fmt.Sprintf("%s, each with %s and 1 for parked messages that are tried again; %d for itself",
		show.Count(int64(owned), "partition"),
		show.Count(int64(q.Concurrency), "transaction"),
		consumerOwn)
	if q.Consumers > 1 {
		why = fmt.Sprintf("while one of %d is down: ", q.Consumers) + why
	}
	return max(preflight.LeastConns, owned*(q.Concurrency+retriesOfPart)+consumerOwn), why
}

// PlanConnections computes how many connections each part needs so that no transaction waits for
// one, and none of the engine's own statements waits for a user's.
func PlanConnections(q *ConnectionQuestion, room *ServerRoom) *ConnectionPlan {
	p := &ConnectionPlan{Parts: []ConnectionPart{}, Faults: []string{}}
	add := func(part string, processes, pool, beside int, why string, args ...any) {
		if processes > 0 {
			p.Parts = append(p.Parts, ConnectionPart{
				part,
				processes,
				pool,
				beside,
				processes * (pool + beside),
				fmt.Sprintf(why, args...),
			})
			p.Total += processes * (pool + beside)
		}
	}
	if q.Consumers > 0 {
		pool, why := q.consumerPool()
		add("consumer", q.Consumers, pool, 0, "%s", why)
	}
	operations := ""
	if q.Operations > 0 {
		operations = fmt.Sprintf("%s at once; ", show.Count(int64(q.Operations), "operation"))
	}
	add(
		"server",
		q.Servers,
		q.Requests+q.Operations+preflight.SparedConns,
		renewalsOwn,
		"%s at once; %s%d to look at records; beside the pool 1 that renews leases",
		show.Count(int64(q.Requests), "request"),
		operations,
		preflight.SparedConns,
	)
	add("relay",
		q.Relays,
		max(preflight.LeastConns, q.Sinks*sinkOwn+relayOwn),
		0,
		"%s, each with 1 for leases and 1 for the transactions of its lanes; %d for itself",
		show.Count(int64(q.Sinks), "sink"),
		relayOwn)
	add("exporter", q.Exporters, 1, 0, "one round of queries at a time")
	add("console", q.Consoles, consoleOwn, 0, "%d queries at once", consoleOwn)
	add("command", 1, commandOwn, 0, "onlyonce migrate, or an operator")
	add("other", min(q.Other, 1), q.Other, 0, "all else, by -other")
	p.Server = p.Total
	if q.Pooler > 0 {
		p.Server = q.Pooler
		if q.Pooler < p.Total {
			p.Faults = append(
				p.Faults,
				fmt.Sprintf(
					"the pooler makes at most %d connections, and %d are needed: raise its pool "+
						"size (PgBouncer: default_pool_size) to %d, or transactions wait for each other",
					q.Pooler,
					p.Total,
					p.Total,
				),
			)
		}
	}
	if p.Room = room.Free(); p.Server > p.Room {
		p.Faults = append(
			p.Faults,
			fmt.Sprintf("the server accepts %d connections (%s), and %d are needed: %s",
				p.Room, room, p.Server, room.remedy(p.Server)),
		)
	}
	return p
}

// roomSQL reads how many connections the server accepts. One row. reserved_connections is new in
// PostgreSQL 16.
const roomSQL = `
select current_setting('max_connections')::int as most,
       current_setting('superuser_reserved_connections')::int + coalesce(
         current_setting('reserved_connections', true),
         '0'
       )::int as reserved,
       (select datconnlimit from pg_database where datname = current_database()) as database`

// ServerRoom is how many connections a server accepts.
type ServerRoom struct {
	Most     int32 // max_connections
	Reserved int32 // of these, for superusers and the like
	Database int32 // the limit of the database; -1: none
}

// ReadServerRoom reads it.
func ReadServerRoom(ctx context.Context, tx pgx.Tx) (room *ServerRoom, err error) {
	err = First(ctx, tx, &room, roomSQL)
	return room, err
}

// Free returns how many connections programs can have, with those that are in use now.
func (r *ServerRoom) Free() int {
	free := r.Most - r.Reserved
	if r.Database >= 0 {
		free = min(free, r.Database)
	}
	return int(free)
}

func (r *ServerRoom) String() string {
	s := fmt.Sprintf("max_connections is %d, of which %d are reserved", r.Most, r.Reserved)
	if r.Database >= 0 {
		s += fmt.Sprintf("; the database's connection limit is %d", r.Database)
	}
	return s
}

// remedy says which settings to raise for so many connections.
func (r *ServerRoom) remedy(needed int) string {
	s := ""
	if int(r.Most-r.Reserved) < needed {
		s = fmt.Sprintf("set max_connections to %d or more and start the server again, or put a pooler in front",
			needed+int(r.Reserved))
	}
	if r.Database >= 0 && int(r.Database) < needed {
		if s != "" {
			s += "; and "
		}
		s += fmt.Sprintf("alter database NAME connection limit %d", needed)
	}
	return s
}
