-- onlyonce schema, version 1: every chapter was applied.

-- Tables without a primary key: if a publication has them (FOR ALL TABLES, as Debezium makes by
-- default, and as a move by logical replication needs), PostgreSQL refuses UPDATE and DELETE of
-- rows that a subscriber could not tell apart. The old row goes into the log in their place, only
-- where wal_level is logical. A table that a chapter makes is included, whatever it is (S6).
do $$
declare
  t record;
begin
  for t in
    select c.oid::regclass as name from pg_class c
     where c.relnamespace in ('onlyonce'::regnamespace, 'onlyonce_segments'::regnamespace) and c.relkind in ('r', 'p')
       and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)
  loop
    execute format('alter table %s replica identity full', t.name);
  end loop;
end $$;

insert into onlyonce.schema_version (version) values (1);
