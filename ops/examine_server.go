package ops

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/preflight"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
)

// settingsSQL reads settings that every role may read. One row. transaction_timeout is new in
// PostgreSQL 17. This transaction has its own idle_in_transaction_session_timeout (bound), so what
// its session began with is read.
const settingsSQL = `
select current_setting('track_commit_timestamp') as track,
       (select reset_val from pg_settings where name = 'idle_in_transaction_session_timeout') as idle_in_transaction,
       current_setting('idle_session_timeout') as idle,
       coalesce(current_setting('transaction_timeout', true), '0') as transaction,
       current_setting('max_prepared_transactions')::int as prepared`

type settings struct {
	Track, IdleInTransaction, Idle, Transaction string
	Prepared                                    int32
}

// openSQL lists the transactions of the whole server that have been open for long, oldest first. A
// rotator waits for every one that has an id, and vacuum for every one of a client that has a
// snapshot. In: age in seconds. If the activity of a login is hidden (hiddenSQL), it has no rows.
const openSQL = `
select pid,
       coalesce(usename::text, '') as login,
       coalesce(application_name, '') as application,
       state,
       extract(epoch from clock_timestamp() - xact_start)::float8 as age,
       backend_xid is not null as writes
  from pg_stat_activity
 where xact_start < clock_timestamp() - make_interval(secs => $1)
   and (backend_xid is not null or backend_xmin is not null)
   and backend_type = 'client backend'
   and pid <> pg_backend_pid()
 order by xact_start limit 5`

// hiddenSQL reads whether the activity of other logins is hidden from this one.
const hiddenSQL = `select not pg_has_role(current_user, 'pg_read_all_stats', 'usage')`

// slotsSQL lists replication slots that no client uses and that hold something back.
const slotsSQL = `
select slot_name::text as name,
       slot_type as type,
       xmin is not null or catalog_xmin is not null as rows,
       coalesce(wal_status, '') as wal
  from pg_replication_slots
 where not active and (restart_lsn is not null or xmin is not null or catalog_xmin is not null) order by 1`

// standbySQL reads whether the server is a standby. One row; replay: how old the last replayed
// change is, null on a primary or if nothing was replayed.
const standbySQL = `
select pg_is_in_recovery() as standby,
       extract(epoch from clock_timestamp() - pg_last_xact_replay_timestamp())::float8 as replay,
       (select count(*) from pg_stat_replication) as standbys,
       current_setting('synchronous_standby_names') <> '' as synchronous`

// strangeLanesSQL lists sinks with lanes that relays halt on (O3): their cursor belongs to another
// database cluster, or it or a row is ahead of the server. By name; rows by the index batches_new.
const strangeLanesSQL = `
select distinct l.sink from onlyonce.lanes l, pg_control_system() c
 where l.system_id <> c.system_identifier and l.copied
    or pg_snapshot_xmax(pg_current_snapshot()) < greatest(l.written, pg_snapshot_xmax(coalesce(l.target, l.prev)))
    or exists (select from onlyonce.batches r
                where r.sink = l.sink and r.lane = l.lane and r.xid >= pg_snapshot_xmax(pg_current_snapshot()))
 order by 1`

const (
	oldTransaction = 5 * time.Minute
	mostSkew       = 5 * time.Second
)

func (d *examiner) server(ctx context.Context, tx pgx.Tx) error {
	notes, err := preflight.Server(ctx, tx)
	if err != nil {
		return err
	}
	for _, n := range notes {
		level := levelWarn
		if n.Fault && n.Name != "standby" { // a person who examines a standby means to
			level = levelFail
		}
		d.add(level, "server", "", "%s: %s", n.Name, n.Text)
	}
	all, err := reports.Collect[settings](ctx, tx, settingsSQL)
	if err != nil {
		return err
	}
	s := all[0]
	if s.Track != "on" {
		d.add(levelInfo, "server",
			"set track_commit_timestamp = on and restart the server, if exact times are worth some disk space",
			"track_commit_timestamp is off: onlyonce explain shows two times between which a key was "+
				"claimed, and not the time itself")
	}
	if s.IdleInTransaction == "0" {
		d.add(levelInfo, "server",
			"set idle_in_transaction_session_timeout = '5min' for logins of people and of other programs",
			"idle_in_transaction_session_timeout is 0: a session that forgets its transaction holds up "+
				"rotation and vacuum for ever; onlyonce's own transactions are bounded")
	}
	if s.Idle != "0" {
		d.add(levelInfo, "server",
			"set idle_session_timeout = 0 for the logins of consumers and relays",
			"idle_session_timeout is %s: connections of pools that idle for so long are cut, and made again",
			s.Idle)
	}
	if s.Transaction != "0" {
		d.add(levelInfo, "server",
			"make sure that it is longer than consumer.Config.BatchTimeout",
			"transaction_timeout is %s: it ends longer transactions, those of handlers too",
			s.Transaction)
	}
	if s.Prepared > 0 {
		d.add(levelInfo, "server",
			"set max_prepared_transactions = 0 unless something needs it",
			"max_prepared_transactions is %d: a prepared transaction that is left open holds up rotation; "+
				"onlyonce prepares none",
			s.Prepared)
	}
	d.unless("server", "its settings hold nothing back")
	return nil
}

func (d *examiner) roles(ctx context.Context, tx pgx.Tx) error {
	const check = "roles"
	lack, err := preflight.RolesLack(ctx, tx)
	if err != nil {
		return err
	}
	if len(lack) == 0 {
		d.add(levelInfo, check, "",
			"this server has none of the roles of docs/roles.sql: programs check their own rights when they start")
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(lack)) {
		if missing := lack[name]; len(missing) > 0 {
			d.add(levelFail, check, "run docs/roles.sql again", "role %s lacks %s", name, preflight.Rights(missing))
		}
	}
	d.unless(check, "%s have their rights", strings.Join(slices.Sorted(maps.Keys(lack)), ", "))
	return nil
}

// inUseSQL looks for what was written while the database's clock was ahead, and for the call that a
// relay has tried for the longest time. One row: how many leases end later than any lasts
// (lease.Longest), and how many parked rows got their due time then, or are due later than any
// waits; the latest of each; the call (null: there is none). Reads both tables' rows that are in
// use, each once.
const inUseSQL = `
select l.*,
       p.parked,
       p.last_due,
       p.tried[2] as tried_id,
       (select o.sink from onlyonce.parked o where o.id = p.tried[2]) as tried_sink,
       (extract(epoch from clock_timestamp()) - p.tried[1] / 1e6)::float8 as tried_age
  from (select count(*) filter (where until > clock_timestamp() + interval '1 hour') as leases, max(until) as last_lease
          from onlyonce.leases) l,
       (select count(*) filter (where timed_at > clock_timestamp() + interval '1 second'
                                   or onlyonce.due_ahead(next_attempt_at, reason, clock_timestamp())) as parked,
               max(next_attempt_at) filter (where reason <> 'scheduled') as last_due,
               min(case when kind = 'call'
                          and open
                          then array[(extract(epoch from first_attempt_at) * 1000000)::bigint, id] end) as tried
          from onlyonce.parked where id > 0 and settled_at is null) p`

type inUse struct {
	Leases, Parked     int64
	LastLease, LastDue *time.Time
	TriedID            *int64
	TriedSink          *string
	TriedAge           *float64
}

// readInUse reads it once.
func (d *examiner) readInUse(ctx context.Context, tx pgx.Tx) (*inUse, error) {
	if d.inUse == nil {
		all, err := reports.Collect[inUse](ctx, tx, inUseSQL)
		if err != nil {
			return nil, err
		}
		d.inUse = &all[0]
	}
	return d.inUse, nil
}

// clocks compares the database's clock with this machine's. The error of the comparison is at most
// the time between the two questions.
func (d *examiner) clocks(ctx context.Context, tx pgx.Tx) error {
	const check = "clocks"
	var theirs time.Time
	before := d.now()
	if err := tx.QueryRow(ctx, `select clock_timestamp()`).Scan(&theirs); err != nil {
		return err
	}
	after := d.now()
	a, err := d.readInUse(ctx, tx)
	if err != nil {
		return err
	}
	const correct = "make sure that the database's clock is right, and keep it so (NTP); programs of this " +
		"version treat these leases as ended, and go on"
	if a.Leases > 0 {
		d.add(
			levelFail,
			check,
			correct,
			"%d leases end more than an hour ahead, the last one at %s: they were written while the clock was ahead",
			a.Leases,
			show.Instant(*a.LastLease),
		)
	}
	if a.Parked > 0 {
		d.add(
			levelFail,
			check,
			correct,
			"%d parked rows got their due time while the clock was ahead, the last one is due at %s: "+
				"consumers and relays that run have them wait anew, within seconds",
			a.Parked,
			show.Instant(*a.LastDue),
		)
	}
	skew := max(before.Sub(theirs), theirs.Sub(after), 0)
	if skew > mostSkew {
		d.add(
			levelWarn,
			check,
			"synchronise both (NTP): signatures of webhooks are judged by the clocks of "+
				"their receivers, all else by the database's",
			"the database's clock and this machine's differ by %s",
			skew.Round(time.Millisecond),
		)
		return nil
	}
	d.unless(check, "the database's clock and this machine's agree to within %s", mostSkew)
	return nil
}

// address judges how this process connects, which the programs usually do too.
func (d *examiner) address(_ context.Context, tx pgx.Tx) error {
	if tx.Conn().Config().ValidateConnect == nil {
		d.add(levelInfo, "address",
			"add target_session_attrs=read-write to the addresses of programs",
			"without target_session_attrs, a connection that is made during a switchover may lead to a "+
				"standby, where each write fails")
	}
	d.unless("address", "the address chooses servers by target_session_attrs")
	return nil
}

// usedSQL counts the connections to the server, and those to this database. One row.
// pg_stat_activity would not do: without pg_read_all_stats it shows a login only its own.
const usedSQL = `
select coalesce(sum(numbackends), 0)::int,
       coalesce(max(numbackends) filter (where datname = current_database()), 0)::int
  from pg_stat_database`

// connections compares how many there are with how many the server and the database accept.
func (d *examiner) connections(ctx context.Context, tx pgx.Tx) error {
	const check = "connections"
	room, err := reports.ReadServerRoom(ctx, tx)
	if err != nil {
		return err
	}
	var used, here int
	if err := tx.QueryRow(ctx, usedSQL).Scan(&used, &here); err != nil {
		return err
	}
	most := int(room.Most - room.Reserved)
	if limit := int(room.Database); limit >= 0 && limit-here < most-used {
		used = here
		most = limit
	}
	if used*10 >= most*9 {
		d.add(
			levelWarn,
			check,
			"onlyonce plan connections -consumers N -partitions N; and raise "+
				"max_connections, or put a pooler in front",
			"%d of %d connections that the server accepts are in use (%s)",
			used,
			most,
			room,
		)
	}
	d.unless(check, "%d of %d that the server accepts are in use", used, most)
	return nil
}

// obstacles looks for what holds up rotation and vacuum.
func (d *examiner) obstacles(ctx context.Context, tx pgx.Tx) error {
	if err := d.transactions(ctx, tx, oldTransaction); err != nil {
		return err
	}
	if err := d.strangers(ctx, tx); err != nil {
		return err
	}
	return d.slots(ctx, tx)
}

// transactions looks for those that have been open for so long.
func (d *examiner) transactions(ctx context.Context, tx pgx.Tx, age time.Duration) error {
	const check = "transactions"
	type open struct {
		Pid         int32
		Login       string
		Application string
		State       *string
		Age         float64
		Writes      bool
	}
	old, err := reports.Collect[open](ctx, tx, openSQL, age.Seconds())
	if err != nil {
		return err
	}
	for _, o := range old {
		what := "vacuum"
		if o.Writes {
			what = "rotation and vacuum"
		}
		d.add(
			levelWarn,
			check,
			fmt.Sprintf("end it, or make sure that it ends: select pg_terminate_backend(%d)", o.Pid),
			"process %d of login %s (%s) has a transaction open for %s, in state %s: it holds up %s",
			o.Pid,
			o.Login,
			o.Application,
			show.Seconds(o.Age),
			show.OrDash(o.State),
			what,
		)
	}
	var hidden bool
	if err := tx.QueryRow(ctx, hiddenSQL).Scan(&hidden); err != nil {
		return err
	}
	if hidden {
		d.add(levelInfo, check, "grant pg_read_all_stats to this login",
			"how long other logins' transactions are open is hidden from this one")
	}
	d.unless(check, "none has been open for longer than %s", age)
	return nil
}

// slots looks for replication slots that were abandoned.
func (d *examiner) slots(ctx context.Context, tx pgx.Tx) error {
	const check = "slots"
	type slot struct {
		Name, Type string
		Rows       bool
		Wal        string
	}
	slots, err := reports.Collect[slot](ctx, tx, slotsSQL)
	if err != nil {
		return err
	}
	for _, s := range slots {
		what := "the server's log"
		if s.Rows {
			what += ", and vacuum"
		}
		d.add(
			levelWarn,
			check,
			fmt.Sprintf("bring its reader back, or drop the slot: select pg_drop_replication_slot('%s')",
				strings.ReplaceAll(s.Name, "'", "''")),
			"no client reads the %s replication slot %s: it holds back %s (wal_status %s)",
			s.Type,
			s.Name,
			what,
			s.Wal,
		)
	}
	d.unless(check, "no replication slot is left behind")
	return nil
}

// history checks what the server is, and whether cursors of the outbox belong to it.
func (d *examiner) history(ctx context.Context, tx pgx.Tx) error {
	type server struct {
		Standby     bool
		Replay      *float64
		Standbys    int64
		Synchronous bool
	}
	all, err := reports.Collect[server](ctx, tx, standbySQL)
	if err != nil {
		return err
	}
	// If pg_control_system cannot be called, the check server says so.
	var strange []string
	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) (err error) {
		strange, err = reports.Texts(ctx, reports.Unprepared{Tx: tx}, strangeLanesSQL)
		return err
	})
	if err != nil && !slices.Contains([]string{"42501", "55000", "42883"}, guard.SQLState(err)) {
		return err
	}
	for _, sink := range strange {
		d.add(levelFail, "history",
			"onlyonce outbox rebase -reason WHY (docs/operations/restore.md, After a restore)",
			"cursors or rows of sink %s belong to another database cluster: relays send no calls of their lanes",
			sink)
	}
	if err := d.leftBehind(ctx, tx); err != nil {
		return err
	}
	if err := d.published(ctx, tx); err != nil {
		return err
	}
	s := all[0]
	switch {
	case s.Standby:
		age := "it has replayed nothing yet"
		if s.Replay != nil {
			age = "its data are " + show.Seconds(*s.Replay).String() + " old"
		}
		d.add(levelInfo, "history", "", "a standby; %s", age)
	default:
		d.unless("history", "a primary, with %d standbys connected", s.Standbys)
	}
	if s.Standbys > 0 && !s.Synchronous {
		d.add(levelInfo, "replication",
			"set synchronous_standby_names, if a failover must lose nothing",
			"standbys are asynchronous: a failover undoes the last commits, with their keys and positions")
	} else {
		d.ok("replication", "no asynchronous standby would lose commits in a failover")
	}
	return nil
}
