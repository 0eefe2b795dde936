#!/usr/bin/env bash
# Installs schemathesis into an environment of its own, and plays it against examples/payments-api: see make schemathesis.
set -euo pipefail
cd "$(dirname "$0")"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir"
"$dir/bin/pip" install -q schemathesis==4.32.5
ONLYONCE_SCHEMATHESIS="$dir/bin/schemathesis" go test -count=1 -timeout 20m -run '^TestSchemathesis$' .
