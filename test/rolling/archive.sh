#!/usr/bin/env bash
# Archives the source that a worker needs, as of a commit, for the test of rolling deploys:
#
#	test/rolling/archive.sh COMMIT SCHEMA_VERSION
#
# Made again from the same commit and worker it has the same bytes. Run it when a schema version is released, and set `released` in
# rolling_test.go to the version. Nothing is released yet, so there is no archive.
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
commit=$1 version=$2
out=test/rolling/testdata/v$version.tar.gz
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
paths=(consumer dedupe internal/codec internal/fault internal/guard internal/jsonpointer internal/preflight migrations go.mod go.sum LICENSE)
if git cat-file -e "$commit:test/rolling/worker/main.go" 2>/dev/null; then
  paths+=(test/rolling/worker)
fi
git archive "$commit" "${paths[@]}" | tar -x -C "$dir"
if [[ ! -e $dir/test/rolling/worker/main.go ]]; then # a commit older than the worker takes the present one
  mkdir -p "$dir/test/rolling/worker"
  cp test/rolling/worker/main.go "$dir/test/rolling/worker/"
fi
find "$dir" -name '*_test.go' -delete
find "$dir" -name testdata -type d -prune -exec rm -rf {} +
tar -C "$dir" --sort=name --mtime='2000-01-01 00:00Z' --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -c . | gzip -9n >"$out"
size=$(stat -c %s "$out")
echo "$out: $size bytes, $(git rev-parse --short "$commit")"
((size < 200000)) || { echo "larger than 200 KB" >&2; exit 1; }
