package ops

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
)

// advisorySQL lists sessions that hold advisory locks of ours, and whose logins have no right that
// an engine needs: the right to change a lease. PostgreSQL lets every login take every such lock.
// A lock of one number is an owner's if it is that of a lease; those of two numbers have a class of
// ours. By process; names: what the locks are of. Reads onlyonce.leases as a whole if there is such
// a session.
const advisorySQL = `
with held as materialized (
  select k.pid, k.objsubid, k.classid::bigint as class, k.classid::bigint << 32 | k.objid::bigint as key
    from pg_locks k
   where k.locktype = 'advisory'
     and k.granted
     and k.database = (select d.oid from pg_database d where d.datname = current_database())),
strange as materialized (
  select h.*,
         a.usename::text as login,
         a.application_name as application,
         extract(epoch from clock_timestamp() - a.backend_start)::float8 as age
    from held h
    join pg_stat_activity a on a.pid = h.pid
   where not has_any_column_privilege(a.usesysid, 'onlyonce.leases', 'update')),
ours as (
  select s.*, l.name from strange s join onlyonce.leases l on s.objsubid = 1 and onlyonce.owner_lock(l.id) = s.key
  union all
  select s.*, c.name from strange s
    join (values (` + names.PlaceLocks + `::bigint, 'places'),
                 (` + names.PurgeLocks + `, 'deleting what is settled'),
                 (` + names.StripeLocks + `, 'ordering keys of calls'),
                 (` + names.RequestLocks + `, 'requests'),
                 (` + names.AppendLocks + `, 'streams'),
                 (` + names.MigrationLocks + `, 'migrations')) c (class, name)
      on s.objsubid = 2 and c.class = s.class)
select pid,
       coalesce(login, '') as login,
       coalesce(application, '') as application,
       coalesce(age, 0)::float8 as age,
       count(*) as locks,
       min(name) as name
  from ours group by pid, login, application, age order by pid limit 5`

// strangers looks for sessions that stop an engine by a lock that needs no right (S2).
func (d *examiner) strangers(ctx context.Context, tx pgx.Tx) error {
	const check = "locks"
	type stranger struct {
		Pid         int32
		Login       string
		Application string
		Age         float64
		Locks       int64
		Name        string
	}
	all, err := reports.Collect[stranger](ctx, tx, advisorySQL)
	if err != nil {
		return err
	}
	for _, s := range all {
		d.add(
			levelFail,
			check,
			fmt.Sprintf("end it: select pg_terminate_backend(%d); and take from its login the right to "+
				"connect: revoke connect on database ... from public", s.Pid),
			"process %d of login %s (%s), connected for %s, holds %d advisory locks of onlyonce, for "+
				"example of %s, and its login has no right on onlyonce.leases: no process of onlyonce can "+
				"take them meanwhile",
			s.Pid,
			s.Login,
			s.Application,
			show.Seconds(s.Age),
			s.Locks,
			s.Name,
		)
	}
	d.unless(check, "no login without rights holds an advisory lock of onlyonce")
	return nil
}

// leftBehind looks for sequences that a move by logical replication has left behind.
func (d *examiner) leftBehind(ctx context.Context, tx pgx.Tx) error {
	const check = "sequences"
	var behind []SequenceBehind
	err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) (err error) {
		behind, err = sequencesBehind(ctx, reports.Unprepared{Tx: tx})
		return err
	})
	if guard.SQLState(err) == "42501" {
		d.add(levelInfo, check, "run doctor as onlyonce_viewer or onlyonce_operator",
			"this login may not read the sequences of onlyonce")
		return nil
	}
	if err != nil {
		return err
	}
	for _, s := range behind {
		d.add(
			levelFail,
			check,
			"onlyonce outbox rebase -reason WHY (docs/operations/restore.md, Move a database)",
			"the sequence %s is at %d, and %d is in use: logical replication does not copy sequences. "+
				"New rows get ids that are taken",
			s.Name,
			s.Stands,
			s.Needs,
		)
	}
	d.unless(check, "none is behind")
	return nil
}

// publishedSQL lists the publications that have tables of ours, with those tables whose rows
// cannot be told apart by a subscriber: PostgreSQL refuses to change or delete them.
const publishedSQL = `
with none as (
  select c.oid::regclass::text as name from pg_class c
   where c.relnamespace in ('onlyonce'::regnamespace, 'onlyonce_segments'::regnamespace) and c.relkind = 'r'
     and (c.relreplident = 'n'
          or c.relreplident = 'd' and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)
          or c.relreplident = 'i'
          and not exists (select from pg_index i where i.indrelid = c.oid and i.indisreplident)))
select p.pubname::text as name,
       count(*) as tables,
       coalesce((select string_agg(n.name, ', ' order by n.name) from none n), '') as refused
  from pg_publication_tables p
 where p.schemaname in ('onlyonce', 'onlyonce_segments') group by p.pubname order by p.pubname`

// published looks for publications that have tables of ours, such as Debezium makes by default.
func (d *examiner) published(ctx context.Context, tx pgx.Tx) error {
	const check = "publications"
	type publication struct {
		Name    string
		Tables  int64
		Refused string
	}
	all, err := reports.Collect[publication](ctx, tx, publishedSQL)
	if err != nil {
		return err
	}
	for _, p := range all {
		if p.Refused != "" {
			d.add(levelFail, check, "alter table TABLE replica identity full, for each of them",
				"publication %s has tables of onlyonce whose rows have no replica identity: PostgreSQL "+
					"refuses to change or delete them (%s)",
				p.Name,
				p.Refused)
			continue
		}
		d.add(
			levelInfo,
			check,
			"if it is not for a move of this database, publish your own tables only "+
				"(Debezium: publication.autocreate.mode=filtered)",
			"publication %s has %d tables of onlyonce: each message, call and request goes through its readers too",
			p.Name,
			p.Tables,
		)
	}
	d.unless(check, "no publication has tables of onlyonce")
	return nil
}
