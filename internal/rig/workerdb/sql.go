package workerdb

import "strings"

// UserSchemas is a condition on pg_namespace n: a schema of the user's, not the server's, ours, or
// one in which this package keeps rows.
const UserSchemas = `n.nspname not in ('onlyonce', 'onlyonce_segments', 'onlyonce_saved', 'onlyonce_standby', 'information_schema') ` +
	`and n.nspname !~ '^pg_'`

// watchedSQL makes a database one that was always watched: in tests, retention follows the
// database's clock alone, and rows can be made old. Tests of watched time set it themselves.
const watchedSQL = `update onlyonce.watched set at = 'infinity'`

// saveSQL keeps the rows and sequences of all tables. It makes:
//
//	onlyonce_saved.tables     a row for each table, with the columns that can be inserted
//	onlyonce_saved.sequences  a row for each sequence
//	onlyonce_saved.rows_N     the rows of the table with the number N, if it has any
//	onlyonce_saved.restore()
//
// onlyonce_saved stands for the schema that the rows are kept in: see in.
const saveSQL = `
create table onlyonce_saved.tables (
  n integer primary key,
  oid oid not null,
  name text not null,
  cols text not null,
  kept boolean not null default false
);
create table onlyonce_saved.sequences (name text not null, value bigint, called boolean);

create function onlyonce_saved.shapes() returns table (oid oid, name text, cols text) language sql stable as $$
  select c.oid,
         format('%I.%I', n.nspname, c.relname),
         coalesce(string_agg(quote_ident(a.attname), ', ' order by a.attnum), '')
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    left join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
   where c.relkind = 'r'
     and (n.nspname in ('onlyonce', 'onlyonce_segments') or ` + UserSchemas + `)
     and c.relpersistence <> 't'
     and not exists (select from pg_depend d where d.objid = c.oid and d.deptype = 'e')
   group by c.oid, n.nspname, c.relname
$$;

-- Restores everything, or returns false if the tables are not those that were saved.
create function onlyonce_saved.restore() returns boolean language plpgsql set session_replication_role = replica as $$
declare t record; filled boolean;
begin
  if exists (select oid, name, cols
               from onlyonce_saved.shapes() except select oid, name, cols from onlyonce_saved.tables)
     or exists (select oid, name, cols
                  from onlyonce_saved.tables except select oid, name, cols from onlyonce_saved.shapes())
    then
    return false;
  end if;
  for t in select * from onlyonce_saved.tables loop
    execute format('select exists (select from %s)', t.name) into filled;
    if filled then execute 'delete from ' || t.name; end if;
    if t.kept and t.cols <> '' then
      execute format(
        'insert into %s (%s) overriding system value select %s from onlyonce_saved.rows_%s',
        t.name,
        t.cols,
        t.cols,
        t.n
      );
    end if;
  end loop;
  for t in select * from onlyonce_saved.sequences loop
    perform setval(t.name::regclass, t.value, t.called);
  end loop;
  return true;
end $$;

do $$ declare t record; filled boolean; i integer := 0; begin
  for t in select * from onlyonce_saved.shapes() loop
    i := i + 1;
    execute format('select exists (select from %s)', t.name) into filled;
    insert into onlyonce_saved.tables values (
      i,
      t.oid,
      t.name,
      t.cols,
      filled
    );
    if filled then execute format('create table onlyonce_saved.rows_%s as table %s', i, t.name); end if;
  end loop;
  for t in select format('%I.%I', n.nspname, c.relname) as name
             from pg_class c join pg_namespace n on n.oid = c.relnamespace
            where c.relkind = 'S' and (n.nspname in ('onlyonce', 'onlyonce_segments') or ` + UserSchemas + `) loop
    execute format('insert into onlyonce_saved.sequences select %L, last_value, is_called from %s', t.name, t.name);
  end loop;
end $$`

const restoreSQL = `select onlyonce_saved.restore()`

// Schemas that keep rows: of a new database, and of Keep.
const (
	saved   = "onlyonce_saved"
	standby = "onlyonce_standby"
)

// emptySQL makes such a schema anew. %s is its name.
const emptySQL = `drop schema if exists %[1]s cascade; create schema %[1]s`

// in returns saveSQL or restoreSQL for one of the schemas that keep rows.
func in(schema, sql string) string { return strings.ReplaceAll(sql, saved+".", schema+".") }

// dropSQL drops the user's schemas and makes an empty public.
const dropSQL = `
do $$ declare s text; begin
  for s in select n.nspname from pg_namespace n where ` + UserSchemas + ` loop
    execute format('drop schema %I cascade', s);
  end loop;
  create schema public;
  grant create, usage on schema public to public;
end $$`
