-- Least privileges for what works on the schemas onlyonce and onlyonce_segments. Plain SQL, to be
-- run as often as you like, as a superuser or as a role with CREATEROLE that owns the database. Run
-- it before the first migration. Run it again after each migration, because a migration may add
-- tables, and before the code that needs it is deployed:
--
--   psql -1 -v ON_ERROR_STOP=1 -f docs/roles.sql
--
-- It is no migration. Roles belong to the whole cluster, you choose their names and who is a
-- member, and `onlyonce migrate` must not need the right to make them. Replace the names if you
-- have your own.
--
-- The seven roles cannot log in. Grant them to those that do (`grant onlyonce_app to
-- stock_service`), and give app the rights that your handlers need on your own tables. Migrate as a
-- member of onlyonce_migrator after `set role onlyonce_migrator`, or as a login whose `role`
-- setting is that (`alter role deploy set role onlyonce_migrator`), so that it owns what it makes.
--
--   onlyonce_migrator  makes and changes the schema. Nothing at run time has this role.
--   onlyonce_app       consumers with their handlers, and every program that enqueues calls or
--                      claims keys. Cannot change or delete claimed keys, enqueued calls, parked calls,
--                      or the text of a parked message or event. Cannot take or end a relay's lease.
--                      Can have parked messages and events tried again, and settle them.
--   onlyonce_http      the HTTP layer (package idempotency) and its operations, besides onlyonce_app.
--   onlyonce_relay     relays. Cannot write cursors, progress or keys. Cannot change what a call
--                      sends, nor a parked message or event. Cannot take or end a cursor's lease.
--   onlyonce_rotator   empties segments of the inbox, of the outbox and of the event log. Deletes
--                      settled parked rows, ids of webhooks and audit rows after their retention. Give
--                      it to the login of at least one relay, besides onlyonce_relay, and to at least
--                      one program that receives or consumes webhooks. A program without it warns,
--                      and leaves rotation to others.
--   onlyonce_operator  the command onlyonce, but `migrate`. Sees payloads.
--   onlyonce_viewer    the console and the command onlyonce, to look. Changes nothing. Could read
--                      payloads; the console hides them.
--
-- Row-level security limits these roles, and no other, in the tables parked and leases. A login
-- that is a member of two of them may do what either may. It does not apply to the schema's owner,
-- to superusers and to roles with BYPASSRLS: run pg_dump as one of those.
--
-- Functions of the schema run with the rights of their caller (SECURITY INVOKER). So the right to
-- execute them, which every role has, gives nothing that is not granted here. The one exception is
-- onlyonce.index_calls, which notes the keys of calls that are in the log, and nothing that its
-- caller says. Only the schema's owner can disable the trigger that refuses a COMMIT which the
-- engine did not allow. Only the owner and onlyonce_rotator can TRUNCATE.

do $roles$
declare
  name text;
  has  record;
begin
  perform pg_catalog.set_config('search_path', 'pg_catalog', true);
  foreach name in array array['onlyonce_migrator', 'onlyonce_app', 'onlyonce_http', 'onlyonce_relay',
                              'onlyonce_rotator', 'onlyonce_operator', 'onlyonce_viewer'] loop
    if not exists (select from pg_roles where rolname = name) then
      execute format('create role %I nologin', name);
    end if;
  end loop;
  execute format('grant create on database %I to onlyonce_migrator', current_database());
  -- A role that may create a function in a schema of another role's search_path becomes that role:
  -- PostgreSQL prefers cardinality(uuid[]) in public to its own cardinality(anyarray). Until
  -- version 14 each role may create in public, and an upgrade keeps that. `onlyonce doctor` names
  -- those who still may, in any schema of its search_path.
  if exists (select from pg_namespace where nspname = 'public') then
    revoke create on schema public from public;
  end if;

  if not exists (select from pg_namespace where nspname = 'onlyonce') then
    raise notice 'There is no schema onlyonce yet: run this file again when it was migrated.';
    return;
  end if;

  -- From nothing, so that a right which a later version takes away here is gone.
  revoke all on schema onlyonce, onlyonce_segments
    from onlyonce_app, onlyonce_http, onlyonce_relay, onlyonce_rotator, onlyonce_operator, onlyonce_viewer;
  revoke all on all tables in schema onlyonce, onlyonce_segments
    from onlyonce_app, onlyonce_http, onlyonce_relay, onlyonce_rotator, onlyonce_operator, onlyonce_viewer;
  grant usage on schema onlyonce, onlyonce_segments
    to onlyonce_app, onlyonce_http, onlyonce_relay, onlyonce_rotator, onlyonce_operator, onlyonce_viewer;
  revoke all on all sequences in schema onlyonce
    from onlyonce_app, onlyonce_http, onlyonce_relay, onlyonce_rotator, onlyonce_operator, onlyonce_viewer;
  grant select on all tables in schema onlyonce, onlyonce_segments to onlyonce_operator, onlyonce_viewer;
  grant select on all sequences in schema onlyonce to onlyonce_viewer;

  for has in select 'onlyonce' as schema, g.* from (values
    -- role, table, rights, why each beyond the plain one
    ('onlyonce_app',      'schema_version', 'select'),
    -- Takes cursors over; FOR SHARE needs UPDATE.
    ('onlyonce_app',      'leases',         'select, insert, update'),
    ('onlyonce_app',      'cursors',        'select, insert, update'),
    ('onlyonce_app',      'positions',      'select'),
    ('onlyonce_app',      'progress',       'select, insert, delete'),         -- prunes its own old rows
    -- A replay's end takes over what it interrupted.
    ('onlyonce_app',      'done',           'select, insert, update, delete'),
    ('onlyonce_app',      'attempts',       'select, insert, update, delete'),
    ('onlyonce_app',      'inbox',          'select, insert'),
    -- Tries parked messages again.
    ('onlyonce_app',      'parked',         'select, insert, update (state, reason, error, attempts, next_attempt_at, '
                                            'first_attempt_at, open, settled_at, order_key)'),
    ('onlyonce_app',      'batches',        'select, insert'),
    ('onlyonce_app',      'outbox_log',     'select'),
    -- Onlyonce.index_calls writes both, with its owner's rights.
    ('onlyonce_app',      'call_keys',      'select'),
    ('onlyonce_app',      'call_index',     'select'),
    ('onlyonce_app',      'outbox_id',      'usage'),
    ('onlyonce_app',      'outbox_version', 'select'),
    ('onlyonce_app',      'rings',          'select'),
    -- Until when a scope whose class has changed is looked for in both rings.
    ('onlyonce_app',      'segments',       'select'),
    ('onlyonce_app',      'consumer_keys_version', 'select'),
    ('onlyonce_app',      'consumer_short_keys_version', 'select'),
    ('onlyonce_app',      'consumer_long_keys_version', 'select'),
    ('onlyonce_app',      'standard_keys_version', 'select'),
    ('onlyonce_app',      'standard_short_keys_version', 'select'),
    ('onlyonce_app',      'standard_long_keys_version', 'select'),
    ('onlyonce_app',      'frontiers',      'select, insert, update'),
    -- What each process knows of its partitions.
    ('onlyonce_app',      'owners',         'select, insert, update, delete'),
    ('onlyonce_app',      'filters',        'select'),
    ('onlyonce_app',      'topics',         'select, insert'),
    ('onlyonce_app',      'scopes',         'select, insert, update'),
    -- In which ring a scope's keys are claimed.
    ('onlyonce_app',      'horizons',       'select'),
    -- Package shard: records new places; FOR SHARE needs UPDATE.
    ('onlyonce_app',      'places',         'select, insert, update, delete'),
    ('onlyonce_app',      'pauses',         'select, insert, update, delete'), -- Consumer.Pause and Resume

    ('onlyonce_app',      'streams',        'select, insert'),
    ('onlyonce_app',      'event_log',      'select, insert'),
    ('onlyonce_app',      'events_version', 'select'),
    ('onlyonce_app',      'stream_floors',  'select'),
    ('onlyonce_app',      'stream_offsets', 'select, insert, update'),
    ('onlyonce_app',      'watched',        'select'),
    -- Whether what a parked row holds is erased when it is settled.
    ('onlyonce_app',      'retentions',     'select'),
    ('onlyonce_app',      'webhook_ids',    'select, insert'),
    ('onlyonce_app',      'webhook_bodies', 'select, insert, update'),
    ('onlyonce_app',      'webhook_objects', 'select, insert, update'),
    ('onlyonce_app',      'webhook_endpoints', 'select, insert, update'),

    ('onlyonce_http',     'schema_version', 'select'),
    ('onlyonce_http',     'places',         'select, insert, update, delete'), -- as of onlyonce_app
    ('onlyonce_http',     'owners',         'select, insert, update, delete'), -- what keeps the layer from its work
    ('onlyonce_http',     'leases',         'select, insert, update, delete'), -- a request's lease ends with it
    ('onlyonce_http',     'watched',        'select, update'),
    ('onlyonce_http',     'http_records',   'select, insert, update, delete'), -- purges, and replaces what has expired
    ('onlyonce_http',     'http_steps',     'select, insert, update'),
    ('onlyonce_http',     'http_fingerprint_keys', 'select, insert, update (refused_at)'),
    ('onlyonce_http',     'parked',         'select'),                         -- whether a request's calls are settled
    ('onlyonce_http',     'batches',        'select'),
    ('onlyonce_http',     'lanes',          'select'),
    ('onlyonce_http',     'operations',     'select, insert, update, delete'), -- purges
    ('onlyonce_http',     'operation_signals', 'select, insert, update'),

    ('onlyonce_relay',    'schema_version', 'select'),
    -- What keeps a sink's calls from being sent.
    ('onlyonce_relay',    'owners',         'select, insert, update, delete'),
    ('onlyonce_relay',    'leases',         'select, insert, update'),
    ('onlyonce_relay',    'batches',        'select'),
    ('onlyonce_relay',    'outbox_log',     'select'),
    ('onlyonce_relay',    'sinks',          'select, insert, update (start_window)'),
    ('onlyonce_relay',    'lanes',          'select'),
    ('onlyonce_relay',    'sink_lanes',     'select, insert'),
    ('onlyonce_relay',    'lane_cursors',   'select, insert, update'),
    ('onlyonce_relay',    'rates',          'select, insert, update, delete'),
    ('onlyonce_relay',    'shares',         'select, insert, update, delete'),
    ('onlyonce_relay',    'rings',          'select'),
    ('onlyonce_relay',    'segments',       'select'),
    ('onlyonce_relay',    'watched',        'select'),
    ('onlyonce_relay',    'retentions',     'select'),                         -- as of onlyonce_app
    -- Tries calls again.
    ('onlyonce_relay',    'parked',         'select, insert, update (state, reason, error, attempts, next_attempt_at, '
                                            'first_attempt_at, open, settled_at, order_key, lane, picks, waits_for, '
                                            'waits_since, response_status, response_headers, response_body)'),

    ('onlyonce_rotator',  'leases',         'select, insert, update'),
    ('onlyonce_rotator',  'rings',          'select, update'),
    ('onlyonce_rotator',  'segments',       'select, update'),
    ('onlyonce_rotator',  'watched',        'select, update'),
    ('onlyonce_rotator',  'lanes',          'select'),
    -- Settled rows whose retention has passed.
    ('onlyonce_rotator',  'parked',         'select, delete'),
    ('onlyonce_rotator',  'retentions',     'select'),
    ('onlyonce_rotator',  'horizons',       'select'),
    -- A trigger keeps rows whose retention has not passed.
    ('onlyonce_rotator',  'audit',          'select, delete'),
    ('onlyonce_rotator',  'webhook_objects', 'select, delete'),
    ('onlyonce_rotator',  'outbox_version', 'usage, select, update'),
    ('onlyonce_rotator',  'batches',        'select'),

    ('onlyonce_rotator',  'webhook_ids',    'select, update, delete'),
    ('onlyonce_rotator',  'webhook_bodies', 'select, delete'),
    ('onlyonce_rotator',  'consumer_keys_version', 'usage, select, update'),
    ('onlyonce_rotator',  'consumer_short_keys_version', 'usage, select, update'),
    ('onlyonce_rotator',  'consumer_long_keys_version', 'usage, select, update'),
    ('onlyonce_rotator',  'standard_keys_version', 'usage, select, update'),
    ('onlyonce_rotator',  'standard_short_keys_version', 'usage, select, update'),
    ('onlyonce_rotator',  'standard_long_keys_version', 'usage, select, update'),
    -- Takes back what was noted while the clock was ahead.
    ('onlyonce_rotator',  'frontiers',      'select, insert, update'),
    ('onlyonce_rotator',  'filters',        'select, insert, delete'),
    ('onlyonce_rotator',  'streams',        'select'),
    ('onlyonce_rotator',  'cursors',        'select'),
    ('onlyonce_rotator',  'scopes',         'select'),                         -- which ring a consumer's keys are in
    ('onlyonce_rotator',  'positions',      'select'),
    ('onlyonce_rotator',  'stream_floors',  'select, insert, update'),
    ('onlyonce_rotator',  'events_version', 'usage, select, update'),
    ('onlyonce_rotator',  'event_log',      'select'),

    -- Fences out the owner of a cursor that is moved.
    ('onlyonce_operator', 'leases',         'select, insert, update'),
    ('onlyonce_operator', 'cursors',        'select, insert, update'),
    ('onlyonce_operator', 'watched',        'select'),
    ('onlyonce_operator', 'retentions',     'select, update'),
    -- Adopt keeps what is done above the new position, and brings it.
    ('onlyonce_operator', 'done',           'select, insert, update, delete'),
    ('onlyonce_operator', 'attempts',       'select, delete'),
    ('onlyonce_operator', 'inbox',          'select, insert'),
    ('onlyonce_operator', 'parked',         'select, update'),
    ('onlyonce_operator', 'batches',        'select, insert, update, delete'), -- rebase, erase
    ('onlyonce_operator', 'outbox_log',     'select'),
    ('onlyonce_operator', 'outbox_id',      'usage, select, update'),          -- rebase raises each sequence
    ('onlyonce_operator', 'leases_id_seq',  'select, update'),
    ('onlyonce_operator', 'audit_id_seq',   'select, update'),
    ('onlyonce_operator', 'parked_id_seq',  'select, update'),
    ('onlyonce_operator', 'streams_id_seq', 'select, update'),
    ('onlyonce_operator', 'streams',        'select'),
    ('onlyonce_operator', 'call_keys',      'select, delete'),                 -- rebase
    ('onlyonce_operator', 'call_index',     'select, update'),
    ('onlyonce_operator', 'calls',          'select'),
    ('onlyonce_operator', 'sinks',          'select, insert, update'),
    ('onlyonce_operator', 'lanes',          'select'),
    ('onlyonce_operator', 'sink_lanes',     'select'),
    ('onlyonce_operator', 'lane_cursors',   'select, update'),
    ('onlyonce_operator', 'rates',          'select, insert, update'),
    ('onlyonce_operator', 'shares',         'select'),
    ('onlyonce_operator', 'rings',          'select, update'),                 -- rebase
    ('onlyonce_operator', 'segments',       'select, update'),
    ('onlyonce_operator', 'outbox_version', 'usage, select, update'),
    ('onlyonce_operator', 'consumer_keys_version', 'select, update'),
    ('onlyonce_operator', 'consumer_short_keys_version', 'select, update'),
    ('onlyonce_operator', 'consumer_long_keys_version', 'select, update'),
    ('onlyonce_operator', 'standard_keys_version', 'select, update'),
    ('onlyonce_operator', 'standard_short_keys_version', 'select, update'),
    ('onlyonce_operator', 'standard_long_keys_version', 'select, update'),
    ('onlyonce_operator', 'topics',         'select, insert, update'),
    ('onlyonce_operator', 'scopes',         'select, insert, update'),         -- cursor adopt -from; inbox class
    ('onlyonce_operator', 'horizons',       'select, insert, update'),         -- inbox class; -standard-keys
    ('onlyonce_operator', 'pauses',         'select, insert, update, delete'),
    ('onlyonce_operator', 'places',         'select, insert, update'),         -- place leave, place adopt
    ('onlyonce_operator', 'http_records',   'select, insert, update, delete'), -- erase, resolve; place adopt
    ('onlyonce_operator', 'http_steps',     'select, insert, update, delete'),
    ('onlyonce_operator', 'operations',     'select, insert, update, delete'), -- erase; place adopt
    ('onlyonce_operator', 'operation_signals', 'select, update'),              -- erase
    ('onlyonce_operator', 'webhook_bodies', 'select, insert, update'),         -- place adopt
    ('onlyonce_operator', 'webhook_objects', 'select, insert, update'),        -- place adopt
    -- Erase; redrive of what a receiver has set aside.
    ('onlyonce_operator', 'event_log',      'select, insert, update'),
    ('onlyonce_operator', 'events_version', 'select, update'),
    -- A bulk act counts its transactions in one row.
    ('onlyonce_operator', 'audit',          'select, insert, update (detail)')
  ) as g (role, tab, rights)
    union all
    -- Segments of the inbox.
    select 'onlyonce_segments', r.role, format('%s_%s', k.ring, n.slot), r.rights
      from unnest(array['consumer_keys', 'consumer_short_keys', 'consumer_long_keys',
                        'standard_keys', 'standard_short_keys', 'standard_long_keys']) as k (ring),
           generate_series(0, 9) as n (slot),
           (values ('onlyonce_app', 'select, insert'),
                   ('onlyonce_operator', 'select, insert'),
                   ('onlyonce_rotator', 'select, insert, truncate')) as r (role, rights)
    union all
    -- Segments of the outbox's log and of the event log.
    select 'onlyonce_segments', 'onlyonce_rotator', format('%s_%s', k.log, n.slot), 'select, truncate'
      from unnest(array['batches', 'call_keys', 'event_log']) as k (log), generate_series(0, 5) as n (slot)
    union all
    select 'onlyonce_segments', 'onlyonce_app', format('batches_%s', n.slot), 'insert'
      from generate_series(0, 5) as n (slot)
  loop
    execute format(
      'grant %s on %s %I.%I to %I',
      has.rights,
      case (select relkind from pg_class where oid = to_regclass(has.schema || '.' || has.tab))
        when 'S' then 'sequence'
        else 'table'
      end,
      has.schema,
      has.tab,
      has.role
    );
  end loop;

  -- Functions of the server that PUBLIC may execute by default. Where that was taken away, a
  -- superuser has to run this file.
  if exists (select from pg_roles r,
                         unnest(array['pg_control_system()', 'pg_current_wal_insert_lsn()', 'pg_current_wal_lsn()',
                                      'pg_walfile_name(pg_lsn)']) f
              where r.rolname in ('onlyonce_app', 'onlyonce_http', 'onlyonce_relay', 'onlyonce_operator',
                                  'onlyonce_viewer')
                and not has_function_privilege(r.oid, f, 'execute')) then
    grant execute on function pg_control_system(), pg_current_wal_insert_lsn(), pg_current_wal_lsn(),
                              pg_walfile_name(pg_lsn)
      to onlyonce_app, onlyonce_http, onlyonce_relay, onlyonce_operator, onlyonce_viewer;
  end if;

  -- Which rows of parked and leases a role may write. Everybody who has the right on the table sees
  -- all rows: who claims keys has to know what is parked. The other policies are restrictive, so
  -- that a role of your own that is not among those below is limited by its rights only.
  alter table onlyonce.parked enable row level security;
  alter table onlyonce.leases enable row level security;
  for has in select * from (values
    ('parked', $$ case
                    when kind = 'call' then pg_has_role('onlyonce_relay', 'usage')
                    else pg_has_role('onlyonce_app', 'usage')
                  end
                  or pg_has_role('onlyonce_operator', 'usage')
                  or pg_has_role('onlyonce_rotator', 'usage') $$),
    ('leases', $$ case when name like 'relay/%' or name like 'relays/%' then pg_has_role('onlyonce_relay', 'usage')
                       when name like 'http/%' then pg_has_role('onlyonce_http', 'usage')
                       when name like 'cursor/%' or name like 'webhook/%' or name like 'queue/%'
                         or name like 'events/%' or name like 'readers/%' then pg_has_role('onlyonce_app', 'usage')
                       when name like 'ring/%' or name like 'filters/%' then pg_has_role('onlyonce_rotator', 'usage')
                       when name = 'observe' then
                         pg_has_role('onlyonce_app', 'usage') or pg_has_role('onlyonce_viewer', 'usage')
                       else false end
                  or pg_has_role('onlyonce_operator', 'usage') $$)) as p (tab, may)
  loop
    execute format('drop policy if exists everybody on onlyonce.%I', has.tab);
    execute format('drop policy if exists own_inserts on onlyonce.%I', has.tab);
    execute format('drop policy if exists own_updates on onlyonce.%I', has.tab);
    execute format('drop policy if exists own_deletes on onlyonce.%I', has.tab);
    execute format('create policy everybody on onlyonce.%I using (true) with check (true)', has.tab);
    execute format(
      'create policy own_inserts on onlyonce.%I as restrictive for insert '
      'to onlyonce_app, onlyonce_http, onlyonce_relay, onlyonce_rotator with check (%s)',
      has.tab, has.may);
    execute format(
      'create policy own_updates on onlyonce.%I as restrictive for update '
      'to onlyonce_app, onlyonce_http, onlyonce_relay, onlyonce_rotator using (%s) with check (%2$s)',
      has.tab, has.may);
    execute format(
      'create policy own_deletes on onlyonce.%I as restrictive for delete '
      'to onlyonce_app, onlyonce_http, onlyonce_relay, onlyonce_rotator using (%s)',
      has.tab, has.may);
  end loop;
end $roles$;
