#!/usr/bin/env bash
# Four ranks on two hosts train, and learn the weights that one rank learns.
#   tests/end_to_end/hosts_test.sh LOCKSTEP      the executable; exit code 77, with the reason, where it cannot run
set -euo pipefail
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
binary=$(realpath "${1:-$root/build/release/lockstep}")
[ -x "$binary" ] || { echo "SKIP: no executable $binary"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() { echo "FAILED: $*"; exit 1; }
hash_of() { grep -oP '"weights_hash": *"\K[0-9a-f]{16}' "$1/summary.json" | tail -n 1; }

small=(--data synthetic --train-limit 512 --test-limit 128 --layers 32 --epochs 1)
code=0
"$root/tests/support/hosts.sh" 2 "$folder" timeout 60 \
  mpirun --host h1:2,h2:2 -n 4 "$binary" train "${small[@]}" --run-dir "$folder/four" || code=$?
[ "$code" -ne 77 ] || exit 77
[ "$code" -eq 0 ] || fail "mpirun on two hosts ended with $code"
grep -qE '"ranks": *4\b' "$folder/four/summary.json" || fail "summary.json does not say 4 ranks"

"$binary" train "${small[@]}" --run-dir "$folder/one" || fail "one rank ended with $?"
if grep -qE 'reduction *= *["'\'']canonical' "$folder/four/config.toml"; then
  [ "$(hash_of "$folder/four")" = "$(hash_of "$folder/one")" ] ||
    fail "four ranks on two hosts learn other weights than one: $(hash_of "$folder/four"), $(hash_of "$folder/one")"
else
  echo "the reduction is not canonical: the weights' hashes are not compared"
fi
echo "hosts: all passed"
