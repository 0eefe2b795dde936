package ring

import "strconv"

// keySlots is how many segments a ring of keys has.
const keySlots = 10

// KeysLog is the ring of keys that consumers claim of Kafka's messages. It forgets by the log's time (K6).
func KeysLog() Ring {
	r := keys("keys_log")
	r.Needed, r.Mend = logNeeded, logMend
	r.Reads, r.Notes = []string{"onlyonce.cursors"}, []string{"onlyonce.frontiers"}
	return r
}

// KeysClock is the ring of all other keys: webhooks, calls that are enqueued outside of a consumer, dedupe.Claim, onlyonce.claim. It forgets by the database's
// clock. HTTP requests are in neither ring: their records live by Route.TTL (K3).
func KeysClock() Ring {
	r := keys("keys_clock")
	r.Needed = clockNeeded
	return r
}

func keys(name string) Ring {
	r := Ring{Name: name, Sequence: "onlyonce." + name + "_version", Horizon: true}
	for slot := range keySlots {
		r.Tables = append(r.Tables, "onlyonce."+name+"_"+strconv.Itoa(slot))
	}
	return r
}

// clockNeeded: the horizon has passed by the clock, and nothing else counts.
const clockNeeded = `select null::text from onlyonce.segments where ring = 'keys_clock' and slot = SLOT`

// logMend makes frontiers void that were noted while the clock was ahead: when it has caught up with them they would say that what was appended
// in between is handled. The owner's next sample stands in their place.
const logMend = `update onlyonce.frontiers set run = -1 where run >= 0 and frontier > clock_timestamp() + interval '1 minute'`

// logNeeded says which cursor may still come to copies of messages whose keys are in a segment. Out: one text, null where each has
// passed what was in its partition when the horizon had passed behind the closing of the segment.
//
// A cursor that was never sampled keeps every segment: it may be a new partition's, to which copies go from now on. One that an operator retired keeps
// what it kept for the horizon more, because it may be moved to another database, or brought back; then none. Nor do those that read the event log, whose keys are claimed when events are appended.
const logNeeded = `
select (
  select case when f.frontier is null then format('consumer %s has not said yet how far it is in %s, partition %s', c.scope, c.topic, c.partition)
              else format('consumer %s is in %s, partition %s, at what was appended until %s', c.scope, c.topic, c.partition, to_char(f.frontier, 'YYYY-MM-DD HH24:MI:SSOF')) end
    from onlyonce.cursors c
    left join onlyonce.frontiers f on f.cursor_id = c.id and f.run = c.run
   where (c.retired_at is null or c.retired_at > clock_timestamp() - r.horizon) and c.cluster_id is distinct from 'postgres'
     and (f.frontier is null or f.frontier < g.closed_at + r.horizon)
   order by f.frontier nulls first
   limit 1)
  from onlyonce.segments g join onlyonce.rings r on r.name = g.ring
 where g.ring = 'keys_log' and g.slot = SLOT`
