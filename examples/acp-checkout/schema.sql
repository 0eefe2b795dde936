-- The shop's tables. That a session has one order is a constraint: it also holds if an agent
-- completes a session under two keys.
select pg_advisory_xact_lock(hashtext('acp-checkout'));
create table if not exists acp_sessions (
  id         text primary key,
  agent      text not null,
  status     text not null default 'ready_for_payment' check (status in ('ready_for_payment', 'completed', 'canceled')),
  item       text not null,
  quantity   integer not null check (quantity between 1 and 1000),
  unit_price bigint not null,
  created_at timestamptz not null default clock_timestamp()
);
create table if not exists acp_orders (
  id         text primary key,
  session    text not null unique references acp_sessions (id),
  amount     bigint not null,
  created_at timestamptz not null default clock_timestamp()
);
