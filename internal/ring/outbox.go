package ring

// outboxSlots is how many segments the outbox log has.
const outboxSlots = 6

// Outbox is the ring of the outbox log. Notes about its calls' keys are emptied with it.
func Outbox() Ring {
	return Ring{
		Name:     "outbox",
		Sequence: "onlyonce.outbox_version",
		Tables:   segments("onlyonce_segments.batches_", outboxSlots),
		With:     segments("onlyonce_segments.call_keys_", outboxSlots),
		Needed:   outboxNeeded,
		Reads:    []string{"onlyonce.lanes"},
	}
}

// outboxNeeded reads which lane has not passed a segment of the log. Out: one text, null if every
// batch of the segment is visible in its lane's prev, which means that it is done.
//
// It looks at the rows and not only at segments.bound, for two reasons. First, a lane that has
// nothing in the segment need not move for it: otherwise a sink without calls, or one that no relay
// lists any more, would keep every segment. Second, bounds of another cluster mean nothing after a
// restore from a dump, while `onlyonce outbox rebase` stamps rows anew. Rows of a (sink, lane)
// without a row in onlyonce.lanes are kept, because no relay has listed the sink yet.
//
// It is a loose index scan on (sink, lane, xid, id): one probe to find each pair, and one for each
// transaction that was in progress in its prev. It relies on the settings of its transaction
// against sequential scans, because a segment's statistics are those of an earlier use. It must be
// READ COMMITTED: under the lock its snapshot is taken after the lock was granted.
const outboxNeeded = `
with recursive present as (
  (select s.sink, s.lane from SEGMENT s order by s.sink, s.lane limit 1)
  union all
  select n.sink, n.lane from present p cross join lateral (
    select s.sink, s.lane from SEGMENT s where (s.sink, s.lane) > (p.sink, p.lane) order by s.sink, s.lane limit 1) n)
select (
  select case when l.id is null then format('calls to sink %s, which no relay has listed yet', p.sink)
              else format('calls of lane %s of sink %s, which are not done', p.lane, p.sink) end
    from present p left join onlyonce.lanes l on l.sink = p.sink and l.lane = p.lane
   where l.id is null
      or exists (select from SEGMENT s where s.sink = p.sink and s.lane = p.lane and s.xid >= pg_snapshot_xmax(l.prev))
      or exists (select from pg_snapshot_xip(l.prev) x cross join lateral (
                   select from SEGMENT s where s.sink = p.sink and s.lane = p.lane and s.xid = x limit 1) late)
   limit 1)`
