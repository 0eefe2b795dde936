package preflight

import (
	"context"
	"fmt"
	"slices"
)

// Role is a kind of work in the database, with the rights that it needs. For example, App is a
// consumer with its handlers.
type Role struct {
	name   string
	tables []string // parallel to rights: a table for each right on it
	rights []string // "UPDATE", or "UPDATE:state" for one column

	functions []function // of the server
}

// settleColumns are the columns of onlyonce.parked that a process writes when it tries a row again.
// The contents of a row are written once.
var settleColumns = []string{
	"state", "reason", "error", "attempts", "next_attempt_at", "first_attempt_at", "open",
	"settled_at", "order_key",
}

// withUpdates adds the right to update columns to rights on a table.
func withUpdates(columns []string, rights ...string) []string {
	for _, c := range columns {
		rights = append(rights, "UPDATE:"+c)
	}
	return rights
}

func newRole(name string, rights map[string][]string, functions ...function) Role {
	r := Role{name: name, functions: functions}
	if rights["inbox"] != nil {
		for _, ring := range []string{
			"consumer_",
			"consumer_short_",
			"consumer_long_",
			"standard_",
			"standard_short_",
			"standard_long_",
		} {
			for _, slot := range "0123456789" {
				rights[ring+"keys_"+string(slot)] = []string{"SELECT", "INSERT"}
			}
			rights[ring+"keys_version"] = []string{"SELECT"}
		}
		rights["horizons"] = []string{"SELECT"}
		rights["segments"] = []string{"SELECT"}
	}
	if slices.Contains(rights["batches"], "INSERT") {
		for _, slot := range "012345" {
			rights["batches_"+string(slot)] = []string{"INSERT"}
		}
	}
	for table, all := range rights {
		for _, right := range all {
			r.tables = append(r.tables, table)
			r.rights = append(r.rights, right)
		}
	}
	return r
}

// The roles of docs/roles.sql that programs have; TestRolesFileGrantsWhatIsNeeded compares them. A
// table that the schema does not have is not checked: the check of the schema's version reports
// that.
var (
	// App is a consumer with its handlers (S2).
	App = newRole("onlyonce_app", map[string][]string{
		"schema_version": {"SELECT"},
		"leases":         {"SELECT", "INSERT", "UPDATE"},
		"cursors":        {"SELECT", "INSERT", "UPDATE"},
		"positions":      {"SELECT"},
		"progress":       {"SELECT", "INSERT", "DELETE"},
		"done":           {"SELECT", "INSERT", "UPDATE", "DELETE"},
		"attempts":       {"SELECT", "INSERT", "UPDATE", "DELETE"},
		"inbox":          {"SELECT"}, // and its segments, see role
		"frontiers":      {"SELECT", "INSERT", "UPDATE"},
		"owners":         {"SELECT", "INSERT", "UPDATE", "DELETE"},
		"filters":        {"SELECT"},
		"parked":         withUpdates(settleColumns, "SELECT", "INSERT"),
		"topics":         {"SELECT", "INSERT"},
		"scopes":         {"SELECT", "INSERT", "UPDATE"},
		"batches":        {"SELECT", "INSERT"}, // and its segments, see role
		"outbox_log":     {"SELECT"},
		"call_keys":      {"SELECT"},
		"call_index":     {"SELECT"},
		"rings":          {"SELECT"},
		"segments":       {"SELECT"},
		"watched":        {"SELECT"},
		"retentions":     {"SELECT"},
		"pauses":         {"SELECT"}, // INSERT and DELETE only if the program calls Consumer.Pause
	}, systemFunction("", "a handler that enqueues calls fails if its message is handled again"))
	// HTTP is the layer of package idempotency, besides App for its handlers.
	HTTP = newRole("onlyonce_http", map[string][]string{
		"schema_version": {"SELECT"},
		"owners":         {"SELECT", "INSERT", "UPDATE", "DELETE"},
		"leases":         {"SELECT", "INSERT", "UPDATE", "DELETE"},
		"watched":        {"SELECT", "UPDATE"},
		"http_records":   {"SELECT", "INSERT", "UPDATE", "DELETE"},
		"http_steps":     {"SELECT", "INSERT", "UPDATE"},
		"operations":     {"SELECT"},
		"parked":         {"SELECT"}, // whether what a request has begun is settled
		"batches":        {"SELECT"},
		"lanes":          {"SELECT"},

		"http_fingerprint_keys": withUpdates([]string{"refused_at"}, "SELECT", "INSERT"),
	})
	// Operations works on what HTTP handlers have accepted, besides App and Events.
	Operations = newRole("onlyonce_http", map[string][]string{
		"operations":        {"SELECT", "INSERT", "UPDATE", "DELETE"},
		"operation_signals": {"SELECT", "INSERT", "UPDATE"},
	})
	// Places is for programs whose places live in several databases, besides the others.
	Places = newRole("onlyonce_app", map[string][]string{
		"places": {"SELECT", "INSERT", "UPDATE", "DELETE"},
	})
	// Events reads streams of the event log: a consumer's source, besides App (S2).
	Events = newRole("onlyonce_app", map[string][]string{
		"schema_version": {"SELECT"},
		"leases":         {"SELECT", "INSERT", "UPDATE"},
		"streams":        {"SELECT", "INSERT"},
		"event_log":      {"SELECT"},
		"stream_floors":  {"SELECT"},
		"stream_offsets": {"SELECT", "INSERT", "UPDATE"},
	})
	// Receiver receives webhooks, or messages of a queue (S2).
	Receiver = newRole("onlyonce_app", map[string][]string{
		"schema_version":    {"SELECT"},
		"owners":            {"SELECT", "INSERT", "UPDATE", "DELETE"},
		"leases":            {"SELECT", "INSERT", "UPDATE"},
		"inbox":             {"SELECT"}, // and its segments, see role
		"parked":            {"SELECT", "INSERT"},
		"streams":           {"SELECT", "INSERT"},
		"event_log":         {"SELECT", "INSERT"},
		"stream_floors":     {"SELECT"},
		"rings":             {"SELECT"},
		"watched":           {"SELECT"},
		"webhook_ids":       {"SELECT", "INSERT"},
		"webhook_bodies":    {"SELECT", "INSERT", "UPDATE"},
		"webhook_objects":   {"SELECT", "INSERT", "UPDATE"},
		"webhook_endpoints": {"SELECT", "INSERT", "UPDATE"},
	})
	// Relay sends what is in the outbox (S2).
	Relay = newRole("onlyonce_relay", map[string][]string{
		"schema_version": {"SELECT"},
		"owners":         {"SELECT", "INSERT", "UPDATE", "DELETE"},
		"leases":         {"SELECT", "INSERT", "UPDATE"},
		"batches":        {"SELECT"},
		"outbox_log":     {"SELECT"},
		"sinks":          withUpdates([]string{"start_window"}, "SELECT", "INSERT"),
		"lanes":          {"SELECT"},
		"sink_lanes":     {"SELECT", "INSERT"},
		"lane_cursors":   {"SELECT", "INSERT", "UPDATE"},
		"rings":          {"SELECT"},
		"segments":       {"SELECT"},
		"rates":          {"SELECT", "INSERT", "UPDATE", "DELETE"},
		"shares":         {"SELECT", "INSERT", "UPDATE", "DELETE"},
		"watched":        {"SELECT"},
		"retentions":     {"SELECT"},
		"parked": withUpdates(
			append(
				[]string{
					"lane",
					"picks",
					"response_status",
					"response_headers",
					"response_body",
					"waits_for",
					"waits_since",
				},
				settleColumns...,
			),
			"SELECT",
			"INSERT",
		),
	}, walFunctions("", unknownHistory, systemFunction("relays", ""))...)
	// Standbys is for relays that wait for standbys, besides Relay (O9).
	Standbys = newRole("onlyonce_relay",
		nil,
		walFunctions("RelayConfig.WaitFor", "", function{
			"pg_current_wal_lsn()",
			"select pg_current_wal_lsn() is null",
			"RelayConfig.WaitFor",
			"",
		})...)
	// Cache is for layers with a cache of answers, besides HTTP (H21).
	Cache = newRole("onlyonce_http", nil, walFunctions("Config.Cache", "", systemFunction("Config.Cache", ""))...)
)

// rightsSQL returns a line for each right that a role ($3) lacks: on both schemas, on tables ($1,
// with the right $2 each), on functions. A function without an ACL may be executed by every role,
// and is not asked about one by one; $4 are functions of the server. It reads the catalogs, which
// every role may do. Without rights on the schema, onlyonce.x itself could not be named. No table
// of one schema has the name of one in the other.
const rightsSQL = `
with s as (select oid, nspname::text as name from pg_namespace where nspname in ('onlyonce', 'onlyonce_segments'))
select 'USAGE on schema ' || s.name from s where not has_schema_privilege($3::name, s.oid, 'USAGE')
union all
select needed.privilege || coalesce(' (' || needed.col || ')', '') || ' on ' || s.name || '.' || needed.name
  from s, (select n.name, split_part(n.privilege, ':', 1), nullif(split_part(n.privilege, ':', 2), '')
             from unnest($1::text[], $2::text[]) as n(name, privilege))
          as needed(name, privilege, col)
  join pg_class c on c.relname = needed.name
  left join pg_attribute a on a.attrelid = c.oid and a.attname = needed.col
 where c.relnamespace = s.oid
   and case when needed.col is null then not has_table_privilege($3::name, c.oid, needed.privilege)
            else a.attnum is not null and not has_column_privilege($3::name, c.oid, a.attnum, needed.privilege) end
union all
select 'EXECUTE on function onlyonce.' || p.proname::text from s join pg_proc p on p.pronamespace = s.oid
 where p.proacl is not null and not has_function_privilege($3::name, p.oid, 'EXECUTE')
union all
select 'EXECUTE on function ' || f.name
  from pg_catalog.unnest($4::text[]) f(name)
 where not pg_catalog.has_function_privilege($3::name, to_regprocedure('pg_catalog.' || f.name)::oid, 'EXECUTE')
order by 1`

// missingRights returns which rights a role lacks, on functions of the server too if they are
// given. Check gives none: it calls them instead.
func missingRights(ctx context.Context, db unnamedQuerier, as Role, who string, functions ...string) ([]string, error) {
	return db.strings(ctx, rightsSQL, as.tables, as.rights, who, functions)
}

// existingRolesSQL lists those roles of docs/roles.sql that exist. In: names.
const existingRolesSQL = `select rolname::text from pg_roles where rolname = any ($1::text[]) order by 1`

// RolesLack returns which rights are missing, for each role of docs/roles.sql that programs have
// and that exists on the server. For example, a migration may have added tables since an operator
// ran the file.
func RolesLack(ctx context.Context, conn Conn) (map[string][]string, error) {
	db := unnamedQuerier{conn}
	all := []Role{App, Events, Receiver, HTTP, Operations, Cache, Relay, Standbys}
	var names []string
	for _, r := range all {
		names = append(names, r.name)
	}
	present, err := db.strings(ctx, existingRolesSQL, names)
	if err != nil {
		return nil, fmt.Errorf("reading roles: %w", err)
	}
	lack := map[string][]string{}
	for _, name := range present {
		lack[name] = nil
		for _, r := range all {
			if r.name != name {
				continue
			}
			var functions []string
			for _, f := range r.functions {
				functions = append(functions, f.name)
			}
			missing, err := missingRights(ctx, db, r, name, functions...)
			if err != nil {
				return nil, fmt.Errorf("reading the rights of %s: %w", name, err)
			}
			lack[name] = append(lack[name], missing...)
		}
		slices.Sort(lack[name])
		lack[name] = slices.Compact(lack[name])
	}
	return lack, nil
}
