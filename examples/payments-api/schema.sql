-- The service's tables. Rules about money are constraints. The unique references are the second
-- line of defence: they also stop a client that asks for one thing under two keys.
create schema if not exists onlyonce_payments;
create table if not exists onlyonce_payments.charges (
  id         text primary key,
  account    text not null,
  reference  text not null,
  amount     bigint not null,
  currency   text not null,
  at_once    boolean not null,
  captured   bigint not null default 0,
  refunded   bigint not null default 0,
  created_at timestamptz not null default clock_timestamp(),
  constraint amount_positive check (amount > 0),
  constraint currency_known check (currency in ('eur', 'usd', 'gbp')),
  constraint captured_within_amount check (captured between 0 and amount),
  constraint refunded_within_captured check (refunded between 0 and captured)
);
create unique index if not exists charges_reference on onlyonce_payments.charges (account, reference)
  where reference <> '';
create table if not exists onlyonce_payments.captures (
  id         text primary key,
  charge     text not null references onlyonce_payments.charges (id) on delete cascade,
  account    text not null,
  reference  text not null,
  amount     bigint not null,
  created_at timestamptz not null default clock_timestamp(),
  constraint capture_positive check (amount > 0)
);
create index if not exists captures_charge on onlyonce_payments.captures (charge);
create unique index if not exists captures_reference on onlyonce_payments.captures (account, reference)
  where reference <> '';
create table if not exists onlyonce_payments.refunds (
  id         text primary key,
  charge     text not null references onlyonce_payments.charges (id) on delete cascade,
  account    text not null,
  reference  text not null,
  amount     bigint not null,
  created_at timestamptz not null default clock_timestamp(),
  constraint refund_positive check (amount > 0)
);
create index if not exists refunds_charge on onlyonce_payments.refunds (charge);
create unique index if not exists refunds_reference on onlyonce_payments.refunds (account, reference)
  where reference <> '';
create table if not exists onlyonce_payments.payouts (
  id          text primary key,
  account     text not null,
  reference   text not null,
  amount      bigint not null,
  destination text not null,
  created_at  timestamptz not null default clock_timestamp(),
  constraint payout_positive check (amount > 0)
);
create table if not exists onlyonce_payments.settlements (
  id         text primary key,
  account    text not null,
  reference  text not null,
  amount     bigint not null,
  created_at timestamptz not null default clock_timestamp(),
  constraint settlement_positive check (amount > 0)
);
create unique index if not exists settlements_reference on onlyonce_payments.settlements (account, reference)
  where reference <> '';
create unique index if not exists payouts_reference on onlyonce_payments.payouts (account, reference)
  where reference <> '';
