#!/bin/sh
# As that of the image postgres: it makes a cluster with POSTGRES_PASSWORD, and runs the command.
set -e
export PGDATA=/tmp/data
if ! test -f "$PGDATA/PG_VERSION"; then
  printf '%s\n' "$POSTGRES_PASSWORD" >/tmp/password
  initdb -U postgres -E UTF8 --no-locale --auth-local=trust --auth-host=scram-sha-256 --pwfile=/tmp/password
  echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
  echo "listen_addresses = '*'" >>"$PGDATA/postgresql.conf"
  echo "unix_socket_directories = '/tmp'" >>"$PGDATA/postgresql.conf"
fi
exec "$@"
