package ring

import "strings"

// keySlots is how many segments a ring of keys has.
const keySlots = 10

// Classes of horizon (K10). The words are those of onlyonce.scopes.class.
const (
	Standard = "standard"
	Short    = "short"
	Long     = "long"
)

// Classes returns the classes of horizon, in the order of their rings in [Keys].
func Classes() []string { return []string{Standard, Short, Long} }

// Keys returns every ring of keys, in the order in which a transaction that claims in several must
// claim.
func Keys() []Ring { return append(Consumer(), Others()...) }

// Others returns the rings of the keys that no consumer claims, one for each class of horizon.
func Others() (all []Ring) {
	for _, class := range Classes() {
		all = append(all, StandardClass(class))
	}
	return all
}

// OfConsumers reports whether a ring is one of [Consumer].
func OfConsumers(name string) bool { return strings.HasPrefix(name, consumers) }

// The names of rings begin with whose keys they have.
const (
	consumers = "consumer"
	others    = "standard"
)

func className(whose, class string) string {
	if class == Standard {
		return whose + "_keys"
	}
	return whose + "_" + class + "_keys"
}

// Consumer returns the rings of the keys of messages that consumers claim, one for each class of
// horizon.
func Consumer() (all []Ring) {
	for _, class := range Classes() {
		all = append(all, ConsumerClass(class))
	}
	return all
}

// ConsumerKeys is the ring of the class standard: of all scopes that do not choose a class.
func ConsumerKeys() Ring { return ConsumerClass(Standard) }

// ConsumerClass is the ring of the keys of messages that consumers of a class claim. A segment is
// forgotten when every position of such consumers has passed what was appended until the segment
// was closed, and the horizon after that (K6).
func ConsumerClass(class string) Ring {
	r := keyRing(consumers, class)
	r.Needed = strings.NewReplacer("RING", r.Name, "CLASS", class).Replace(consumerNeeded)
	r.Reads = []string{"onlyonce.cursors", "onlyonce.scopes", "onlyonce.frontiers"}
	if class == Standard { // frontiers are those of all rings, and one rotator is enough
		r.Repair = consumerRepair
		r.Notes = []string{"onlyonce.frontiers"}
	}
	return r
}

// StandardKeys is the ring of all other keys of the class standard.
func StandardKeys() Ring { return StandardClass(Standard) }

// StandardClass is the ring of all other keys of a class: of webhooks, calls that are enqueued
// outside of a consumer, dedupe.Claim, onlyonce.claim. A segment is forgotten when the horizon has
// passed since it was closed, by the database's clock. HTTP requests are in no ring: their records
// are kept for Route.TTL (K3).
func StandardClass(class string) Ring {
	r := keyRing(others, class)
	r.Needed = clockNeeded
	r.Carry = clockCarry
	r.Reads = []string{"onlyonce.batches", "onlyonce.lanes"}
	return r
}

func keyRing(whose, class string) Ring {
	name := className(whose, class)
	return Ring{
		Name:     name,
		Sequence: "onlyonce." + name + "_version",
		Horizon:  true,
		Tables:   segments("onlyonce_segments."+name+"_", keySlots),
		Rare:     class != Standard,
	}
}

// clockNeeded keeps no segment: only the horizon, by the clock, does.
const clockNeeded = `select null::text where SLOT is not null`

// clockCarry claims anew the keys of calls that are still to be sent, for example because their
// sink is paused. Otherwise the key of a call that waits for longer than the horizon would be
// forgotten, and a transaction that enqueues it again would make a second call. Calls that are
// parked need no claim, because onlyonce.enqueued_before asks for those too. So nothing but such
// calls makes keys live longer.
//
// It reads a portion of a lane's batches, by the index batches_new, as a relay finds what is new.
// In: sink, lane, the transaction and the id of the last batch that was read, how many calls make a
// portion. Out: one row: how many calls were read, and the last batch of the portion; nulls if
// there is none (K6).
const clockCarry = `
with portion as materialized (
  select p.* from (
    select b.xid,
           b.id,
           b.n,
           b.keys,
           l.target,
           l.last_id,
           sum(b.n) over (order by b.xid, b.id) - b.n as before
      from (select 1) one left join onlyonce.lanes l on l.sink = $1 and l.lane = $2
     cross join lateral (
       select b.xid, b.id, b.n, b.keys from onlyonce.batches b
        where b.sink = $1
          and b.lane = $2
          and (b.xid, b.id) > ($3::text::xid8, $4::bigint)
          and b.xid >= coalesce(pg_snapshot_xmin(l.prev), '0'::xid8)
          and not coalesce(pg_visible_in_snapshot(b.xid, l.prev), false)
        order by b.xid, b.id limit $5) b) p
   where p.before < $5),
carried as (
  insert into CURRENT (key, fingerprint)
  select c.key, c.fingerprint
    from portion b cross join lateral unnest(b.keys) with ordinality u(key, i)
   cross join lateral (select s.key, s.fingerprint from SEGMENT s where s.key = u.key limit 1) c
   where not coalesce(pg_visible_in_snapshot(b.xid, b.target) and b.id + u.i - 1 <= b.last_id, false)
  on conflict do nothing)
select sum(b.n)::bigint,
       (array_agg(b.xid order by b.xid desc))[1]::text,
       (array_agg(b.id order by b.xid desc, b.id desc))[1]
  from portion b`

// consumerRepair makes frontiers void that were noted while the clock was ahead. When the clock has
// caught up with them, they would claim that what was appended in between is handled. The owner's
// next sample replaces them (K6).
const consumerRepair = `
update onlyonce.frontiers
   set run = -1
 where run >= 0 and frontier > clock_timestamp() + interval '1 minute'`

// consumerNeeded reads which cursor may still come to copies of messages whose keys are in a
// segment. Out: one text. It is null if each cursor has passed what was in its partition when the
// horizon had passed after the closing of the segment.
//
// A cursor that was never sampled keeps every segment: it may be that of a new partition, which
// copies go to from now on. A cursor that an operator retired keeps what it kept for one horizon
// more, because it may be moved to another database or brought back; then it keeps nothing. Cursors
// that read the event log keep nothing either, because their keys are claimed when events are
// appended.
//
// RING is replaced by the ring, and CLASS by its class. A cursor keeps segments of the ring in
// which its scope claims. In the ring in which the scope claimed before its class was changed, it
// keeps those that were open until then: what it has claimed there since is in the other ring too
// (K10). A scope without a row claims no ids of messages; its cursors keep consumer_keys (K6).
const consumerNeeded = `
select (
  select case when f.frontier is null
                then format(
                  'consumer %s has not said yet how far it is in %s, partition %s',
                  c.scope,
                  c.topic,
                  c.partition
                )
              else format(
                'consumer %s is in %s, partition %s, at what was appended until %s',
                c.scope,
                c.topic,
                c.partition,
                to_char(f.frontier, 'YYYY-MM-DD HH24:MI:SSOF')
              ) end
    from onlyonce.cursors c
    left join onlyonce.frontiers f on f.cursor_id = c.id and f.run = c.run
    left join onlyonce.scopes s on s.scope = c.scope
   where (coalesce(s.class, 'standard') = 'CLASS'
          or s.class_before = 'CLASS' and g.opened_at <= s.class_changed_at + interval '1 minute')
     and (c.retired_at is null
          or c.retired_at > (select least(clock_timestamp(), w.at) from onlyonce.watched w) - r.horizon)
     and c.cluster_id is distinct from 'postgres'
     and (f.frontier is null or f.frontier < g.closed_at + r.horizon)
   order by f.frontier nulls first
   limit 1)
  from onlyonce.segments g join onlyonce.rings r on r.name = g.ring
 where g.ring = 'RING' and g.slot = SLOT`
