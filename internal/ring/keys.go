package ring

import "strconv"

// keySlots is how many segments a ring of keys has.
const keySlots = 10

// Keys returns every ring of keys, in the order in which a transaction that claims in several must
// claim.
func Keys() []Ring { return []Ring{ConsumerKeys(), StandardKeys()} }

// ConsumerKeys is the ring of the keys of messages that consumers claim. A segment is forgotten
// when every position has passed what was appended until the segment was closed, and the horizon
// after that (K6).
func ConsumerKeys() Ring {
	r := keyRing("consumer_keys")
	r.Needed, r.Repair = consumerNeeded, consumerRepair
	r.Reads, r.Notes = []string{"onlyonce.cursors"}, []string{"onlyonce.frontiers"}
	return r
}

// StandardKeys is the ring of all other keys: webhooks, calls that are enqueued outside of a
// consumer, dedupe.Claim, onlyonce.claim. A segment is forgotten when the horizon has passed since
// it was closed, by the database's clock. HTTP requests are in no ring: their records are kept for
// Route.TTL (K3).
func StandardKeys() Ring {
	r := keyRing("standard_keys")
	r.Needed = clockNeeded
	return r
}

func keyRing(name string) Ring {
	r := Ring{Name: name, Sequence: "onlyonce." + name + "_version", Horizon: true}
	for slot := range keySlots {
		r.Tables = append(r.Tables, "onlyonce."+name+"_"+strconv.Itoa(slot))
	}
	return r
}

// clockNeeded keeps no segment: only the horizon, by the clock, does.
const clockNeeded = `select null::text where SLOT is not null`

// consumerRepair makes frontiers void that were noted while the clock was ahead. When the clock has
// caught up with them, they would claim that what was appended in between is handled. The owner's
// next sample replaces them.
const consumerRepair = `update onlyonce.frontiers set run = -1 where run >= 0 and frontier > clock_timestamp() + interval '1 minute'`

// consumerNeeded reads which cursor may still come to copies of messages whose keys are in a
// segment. Out: one text. It is null if each cursor has passed what was in its partition when the
// horizon had passed after the closing of the segment.
//
// A cursor that was never sampled keeps every segment: it may be that of a new partition, which
// copies go to from now on. A cursor that an operator retired keeps what it kept for one horizon
// more, because it may be moved to another database or brought back; then it keeps nothing. Cursors
// that read the event log keep nothing either, because their keys are claimed when events are
// appended.
const consumerNeeded = `
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
 where g.ring = 'consumer_keys' and g.slot = SLOT`
