# README's steps, in the outside module's directory, $1. sh -eu runs it.
cd "$1"
bin/onlyonce migrate
bin/check create stock.sql
bin/produce
bin/stock &
consumer=$!
trap 'kill $consumer 2>/dev/null || true' EXIT
bin/check held 3
kill -TERM $consumer
wait $consumer # its status 0 is a drain that ended
bin/check held 3
