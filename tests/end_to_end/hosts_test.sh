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
on_hosts() {  # on_hosts RANKS NAME [FLAG...]: a run on two hosts, RANKS on each
  local ranks=$1 name=$2
  shift 2
  "$root/tests/support/hosts.sh" 2 "$folder" timeout 60 mpirun --host "h1:$ranks,h2:$ranks" -n $((2 * ranks)) \
    "$binary" train "${small[@]}" --run-dir "$folder/$name" "$@"
}

"$binary" train "${small[@]}" --run-dir "$folder/one" || fail "one rank ended with $?"
for backend in shared mpi; do
  code=0
  on_hosts 2 "$backend" --backend "$backend" | tee "$folder/out" || code=$?
  [ "$code" -ne 77 ] || exit 77
  [ "$code" -eq 0 ] || fail "mpirun on two hosts ended with $code"
  grep -qE '"ranks": *4\b' "$folder/$backend/summary.json" || fail "summary.json does not say 4 ranks"
  [ "$(hash_of "$folder/$backend")" = "$(hash_of "$folder/one")" ] ||
    fail "four ranks on two hosts ($backend) learn other weights than one: $(hash_of "$folder/$backend"), $(hash_of "$folder/one")"
  named=$backend
  [ "$backend" = mpi ] || named=shared+mpi
  grep -qF "backend $named" "$folder/out" || fail "the banner does not say backend $named"
done

code=0
on_hosts 1 alone --backend shared 2>"$folder/error" || code=$?
[ "$code" -eq 2 ] || fail "nobody to share memory with: ended with $code"
grep -q 'no two ranks of this job are on one host' "$folder/error" || fail "$(cat "$folder/error")"

# The doctor measures the network between hosts, and names the host that has no data.
write_digits='"$1/tests/support/on_host.sh" h1 "$2" generate /dev/shm/digits --train-limit 9 --test-limit 9'
doctor() {  # doctor CODE TEXT [FLAG...]
  local expected=$1 text=$2 code=0
  shift 2
  "$root/tests/support/hosts.sh" 2 "$folder" bash -c "$write_digits; shift 2; "'"$@"' sh "$root" "$binary" \
    timeout 60 mpirun --host h1:2,h2:2 -n 4 "$binary" doctor "$@" >"$folder/out" 2>&1 || code=$?
  [ "$code" -eq "$expected" ] || fail "doctor $*: ended with $code: $(cat "$folder/out")"
  for line in '4 ranks on 2 hosts' 'rank 0 on h1 *rank 2 on h2 .* us .*B/s' "$text"; do
    grep -q "$line" "$folder/out" || fail "doctor $*: no '$line' in $(cat "$folder/out")"
  done
}
doctor 0 'nothing is wrong'
doctor 1 'error: h2: /dev/shm/digits: no such folder' --data /dev/shm/digits

# A cut network: a rank says where it waits and ends the job, and launch ends the mpirun that waits for the lost host.
cut=$folder/cut
code=0
# shellcheck disable=SC2016  # expanded on the head, where the links are
"$root/tests/support/hosts.sh" 2 "$folder" bash -c '
  cut=$1
  (until [ -d "$cut/checkpoints/step-00000050" ]; do sleep 0.05; done; ip link set v2 down) &
  shift
  timeout 90 "$@"' sh "$cut" "$binary" launch --max-restarts 0 -- mpirun --host h1:2,h2:2 -n 4 "$binary" train \
  "${small[@]}" --epochs 1000000 --checkpoint-every 50 --timeout 2 --progress off --run-dir "$cut" \
  2>"$folder/error" || code=$?
[ "$code" -eq 137 ] || fail "a cut network: ended with $code, $(cat "$folder/error")"
for text in 'made no progress for' 'remedy:' 'hung after its ranks had ended' 'errorcode 86'; do
  grep -q "$text" "$folder/error" || fail "a cut network: no '$text' in $(cat "$folder/error")"
done
"$binary" train --resume "$cut" --resume-with steps=200 --progress off || fail "after a cut network: resume ended with $?"
echo "hosts: all passed"
