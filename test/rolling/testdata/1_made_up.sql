-- The made-up next version of the schema. It only adds, as a migration does that workers of the
-- version before live through.
--
-- leases first: every transaction of an engine begins with its lease, so it waits there, while it
-- holds nothing that this transaction waits for.
lock table onlyonce.leases in access exclusive mode;

-- Workers have prepared their statements before, and must go on with them on tables that have
-- another shape.
do $$
declare
  grown regclass;
begin
  for grown in
    select c.oid from pg_class c
     where c.relnamespace in ('onlyonce'::regnamespace, 'onlyonce_segments'::regnamespace) and c.relkind in ('r', 'p')
       and not c.relispartition order by c.relname
  loop
    execute format('alter table %s add column made_up integer not null default 0', grown);
  end loop;
end $$;

create table onlyonce.made_up (id integer primary key);
comment on table onlyonce.made_up is 'What only code of the made-up version knows.';
