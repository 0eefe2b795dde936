package main

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// streamsSQL reads the streams of the event log, and who reads them. In: topic (null: any). Out: a row for each stream and scope; scope is null
// where nobody has begun to read it. By the unique indexes of the segments; a partition costs a few probes of each.
const streamsSQL = `
select s.topic, s.partitions::bigint as partitions, c.scope, c.group_id as "group",
       sum(b.next_offset - b.first_offset)::bigint as kept,
       case when c.scope is not null then sum(b.next_offset - coalesce(p.next_offset, b.first_offset))::bigint end as behind,
       count(*) filter (where c.scope is not null and p.scope is null) as unread,
       (select count(*) from onlyonce.parked k where k.kind = 'event' and k.settled_at is null and k.topic = s.topic
           and (k.scope = c.scope or c.scope is null and not exists (select 1 from onlyonce.cursors o where o.scope = k.scope and o.topic = k.topic))) as parked
  from onlyonce.streams s
  left join (select distinct x.topic, x.scope, max(x.group_id) over (partition by x.topic, x.scope) as group_id from onlyonce.cursors x
              where x.retired_at is null and (x.cluster_id is null or x.cluster_id = 'postgres')) c on c.topic = s.topic
  cross join lateral generate_series(0, s.partitions - 1) n
  cross join lateral onlyonce.stream_bounds(s.id, n::smallint) b
  left join onlyonce.positions p on p.scope = c.scope and p.topic = s.topic and p.partition = n and p.retired_at is null
 where $1::text is null or s.topic = $1
 group by s.id, s.topic, s.partitions, c.scope, c.group_id order by s.topic, c.scope`

// eventRingSQL reads the log's segments. The sizes hold indexes and bodies.
const eventRingSQL = `
select s.slot::bigint as slot, case when s.slot = r.cur then 'current' when s.slot = r.draining then 'draining' when s.slot = r.retired then 'retired'
                    when s.slot = any (r.closed) then 'closed' else 'free' end as state,
       s.opened_at, s.closed_at, pg_total_relation_size(format('onlyonce.event_log_%s', s.slot)::regclass) as bytes
  from onlyonce.rings r join onlyonce.segments s on s.ring = r.name
 where r.name = 'events' order by s.slot`

type streamRow struct {
	Topic      string  `json:"topic"`
	Partitions int64   `json:"partitions"`
	Scope      *string `json:"scope"`
	Group      *string `json:"group"`
	Kept       int64   `json:"kept"`
	Behind     *int64  `json:"behind"`
	Unread     int64   `json:"unread_partitions"`
	Parked     int64   `json:"parked"`
}

type eventSegment struct {
	Slot     int64      `json:"slot"`
	State    string     `json:"state"`
	OpenedAt *time.Time `json:"opened_at"`
	ClosedAt *time.Time `json:"closed_at"`
	Bytes    int64      `json:"bytes"`
}

func eventsStatusCommand() command {
	return command{
		name:    "events status",
		args:    "[-postgres URL] [-topic T] [-json]",
		summary: "show streams of events, who reads them, and the segments of the log",
		help: `
Shows the streams of the event log: those of webhook endpoints are named webhook.ENDPOINT. KEPT is how many events the log holds, BEHIND how many of
them a consumer has not handled, and PARKED how many of its events are set aside and not settled (on a line without a scope: by a receiver).
Then the segments. One is emptied when its retention has passed and every consumer has passed what is in it; what nobody reads is kept.

With -json, one object: streams (topic, partitions, scope, group, kept, behind, unread_partitions, parked; scope null: nobody has begun to read it) and
segments (slot, state, opened_at, closed_at, bytes).`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address, asJSON := postgresVar(fs), jsonVar(fs)
			var topic *string
			textVar(fs, &topic, "topic", "only the stream `T`")
			return func(ctx context.Context, a *app) error {
				all := struct {
					Streams  []streamRow    `json:"streams"`
					Segments []eventSegment `json:"segments"`
				}{}
				err := a.readSnapshot(ctx, *address, "reading streams", func(ctx context.Context, tx pgx.Tx) (err error) {
					if all.Streams, err = collect[streamRow](ctx, tx, streamsSQL, topic); err != nil {
						return err
					}
					all.Segments, err = collect[eventSegment](ctx, tx, eventRingSQL)
					return err
				})
				if err != nil {
					return err
				}
				for i := range all.Segments {
					utc(all.Segments[i].OpenedAt)
					utc(all.Segments[i].ClosedAt)
				}
				if *asJSON {
					return writeJSON(a.out, all)
				}
				a.writeStreams(all.Streams, all.Segments)
				return nil
			}
		},
	}
}

func (a *app) writeStreams(streams []streamRow, segments []eventSegment) {
	var rows [][]string
	for _, s := range streams {
		rows = append(rows, []string{s.Topic, number(s.Partitions), orDash(s.Scope), orDash(s.Group), number(s.Kept), numberOrDash(s.Behind), number(s.Parked)})
	}
	if len(rows) == 0 {
		a.complain("there is no stream that this asks for")
		return
	}
	writeTable(a.out, []string{"STREAM", "PARTITIONS", "SCOPE", "GROUP", "KEPT", "BEHIND", "PARKED"}, rows)
	var parts []string
	for _, s := range segments {
		since := ""
		if s.ClosedAt != nil {
			since = " since " + instant(*s.ClosedAt)
		} else if s.OpenedAt != nil {
			since = " since " + instant(*s.OpenedAt)
		}
		parts = append(parts, strconv.FormatInt(s.Slot, 10)+" "+s.State+since+", "+number(s.Bytes)+" bytes")
	}
	_, _ = fmt.Fprintf(a.out, "segments: %s\n", strings.Join(parts, "; "))
}
