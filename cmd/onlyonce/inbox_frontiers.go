package main

import "time"

// ahead is by how much a frontier may be ahead of the database's clock: what is more was noted before that went back.
const ahead = time.Minute

// frontiersSQL lists the cursors that hold back the retention of consumer_keys most, and before them those whose frontier is ahead of the clock, which hold back
// too little. Out: scope, topic, partition, seconds behind the clock (null: not known; below 0: ahead). In: how many seconds count as ahead.
const frontiersSQL = `
select c.scope, c.topic, c.partition, extract(epoch from clock_timestamp() - f.frontier)::float8 as behind
  from onlyonce.cursors c left join onlyonce.frontiers f on f.cursor_id = c.id and f.run = c.run
 where c.retired_at is null and c.cluster_id is distinct from 'postgres'
 order by (f.frontier > clock_timestamp() + make_interval(secs => $1)) is true desc, f.frontier nulls first, 1, 2, 3 limit 10`

type frontierRow struct {
	Scope     string   `json:"scope"`
	Topic     string   `json:"topic"`
	Partition int32    `json:"partition"`
	Behind    *float64 `json:"behind_seconds"`
}

// ahead says that the frontier lies in the database's future: it was noted before the clock went back.
func (f *frontierRow) ahead() bool { return f.Behind != nil && *f.Behind < -ahead.Seconds() }

func (f *frontierRow) behind() string {
	switch {
	case f.Behind == nil:
		return "unknown"
	case f.ahead():
		return "ahead by " + seconds(-*f.Behind).String()
	}
	return seconds(max(*f.Behind, 0)).String()
}
