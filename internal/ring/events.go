package ring

// Events is the ring of the event log (E2).
func Events() Ring {
	return Ring{
		Name:     "events",
		Sequence: "onlyonce.events_version",
		Tables: []string{
			"onlyonce_segments.event_log_0",
			"onlyonce_segments.event_log_1",
			"onlyonce_segments.event_log_2",
			"onlyonce_segments.event_log_3",
			"onlyonce_segments.event_log_4",
			"onlyonce_segments.event_log_5",
		},
		Needed: eventsNeeded,
		Reads:  []string{"onlyonce.streams", "onlyonce.cursors", "onlyonce.positions"},
		Keep:   eventsKeep,
		Notes:  []string{"onlyonce.stream_floors"},
	}
}

// partitionsPresent finds each (stream, partition) that has rows in a segment, by one probe each of
// its unique index.
const partitionsPresent = `
with recursive present as (
  (select s.stream, s.partition from SEGMENT s order by s.stream, s.partition limit 1)
  union all
  select n.stream, n.partition from present p cross join lateral (
    select s.stream, s.partition
      from SEGMENT s where (s.stream, s.partition) > (p.stream, p.partition) order by s.stream, s.partition limit 1) n),
ends as (
  select p.stream, p.partition, e."offset" + 1 as next_offset from present p cross join lateral (
    select s."offset"
      from SEGMENT s where s.stream = p.stream and s.partition = p.partition order by s."offset" desc limit 1) e)`

// eventsNeeded reads which consumer has not passed a segment of the event log. Out: one text, null
// if every cursor has.
//
// If no cursor was ever made for a partition, its events are kept until one is. A cursor that an
// operator retired keeps nothing. A cursor without a topic id, because an operator has set its
// position, counts for the stream unless its cluster says that it is of a Kafka topic with the same
// name. What was parked has a copy of its own. Rows of a stream that was deleted keep nothing.
const eventsNeeded = partitionsPresent + `
select (
  select case when c.scope is null then format('events of %s, which no consumer has begun to read', st.topic)
              else format(
                'events of %s, partition %s, which consumer %s has not passed',
                st.topic,
                e.partition,
                c.scope
              ) end
    from ends e
    join onlyonce.streams st on st.id = e.stream
    left join onlyonce.positions c on c.topic = st.topic and c.partition = e.partition
     and (c.topic_id = st.incarnation or c.topic_id is null and coalesce(c.cluster_id, 'postgres') = 'postgres')
   where c.scope is null or c.retired_at is null and c.next_offset < e.next_offset
   limit 1)`

// eventsKeep records the offset at which each partition of a segment continued. Otherwise a
// partition that has nothing in the other segments would begin again at offset 0. Its cursors are
// past that, so they would skip its next events.
const eventsKeep = partitionsPresent + `
insert into onlyonce.stream_floors as f (stream, partition, next_offset)
select e.stream, e.partition, e.next_offset from ends e
on conflict (stream, partition) do update set next_offset = greatest(f.next_offset, excluded.next_offset)`
