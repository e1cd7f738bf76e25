#!/usr/bin/env bash
# Four ranks on two hosts train, and learn the weights that one rank learns.
#   tests/end_to_end/hosts_test.sh LOCKSTEP [RANK_LEAVES]
#                                   the executables; exit code 77, with the reason, where it cannot run
set -euo pipefail
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
source "$root/tests/support/runs.sh"
binary=$(realpath "${1:-$root/build/release/lockstep}")
[ -x "$binary" ] || { echo "SKIP: no executable $binary"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() { echo "FAILED: $*"; exit 1; }

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

# A rank that calls fewer collectives than those of the other host, which wait for it over MPI.
for backend in auto mpi; do
  [ -n "${2-}" ] || break
  for case in returns if sleeps; do
    expected=86 code=0
    [ "$case" != sleeps ] || expected=0
    "$root/tests/support/hosts.sh" 2 "$folder" timeout 60 mpirun --host h1:2,h2:2 -n 4 "$2" "$backend" "$case" \
      2>"$folder/error" || code=$?
    [ "$code" -eq "$expected" ] || fail "rank_leaves $backend $case: ended with $code: $(cat "$folder/error")"
    [ "$code" -eq 0 ] || grep -q 'all_reduce: rank [123] has left the group' "$folder/error" ||
      fail "rank_leaves $backend $case: $(cat "$folder/error")"
  done
done

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
doctor 1 'error: h2: /dev/shm/digits: no such file or folder' --data /dev/shm/digits

# A cut network: a rank says where it waits and ends the job, and launch ends the mpirun that waits for the lost host.
# It is cut within an epoch of 1024 steps: in an evaluation rank 0 waits longer, and a rank of the lost host may speak first.
cut=$folder/cut
code=0
# shellcheck disable=SC2016  # expanded on the head, where the links are
"$root/tests/support/hosts.sh" 2 "$folder" bash -c '
  cut=$1
  (until [ -d "$cut/checkpoints/step-00000050" ]; do sleep 0.05; done; ip link set v2 down) &
  shift
  timeout 90 "$@"' sh "$cut" "$binary" launch --max-restarts 0 -- mpirun --host h1:2,h2:2 -n 4 "$binary" train \
  --data synthetic --train-limit 4096 --test-limit 128 --layers 32 --batch-size 4 --epochs 1000000 \
  --checkpoint-every 50 --timeout 2 --progress off --run-dir "$cut" \
  2>"$folder/error" || code=$?
[ "$code" -eq 86 ] || fail "a cut network: ended with $code, $(cat "$folder/error")"
[ "$(grep -c 'made no progress for' "$folder/error")" -ge 2 ] ||
  fail "a cut network: rank and launcher do not both say why: $(cat "$folder/error")"
for text in 'remedy:' 'the job ended with code 86' 'errorcode 86'; do
  grep -q "$text" "$folder/error" || fail "a cut network: no '$text' in $(cat "$folder/error")"
done
"$binary" train --resume "$cut" --resume-with steps=200 --progress off || fail "after a cut network: resume ended with $?"
# --survive: ranks, and then a whole host with rank 0, are lost; or the network between the hosts is cut, and then one
# side goes on. The weights and records are those of a run that nobody left, and launch ends mpirun with the job's code.
job=(--data synthetic --train-limit 2000 --test-limit 128 --layers 64,32 --batch-size 20 --epochs 20 --checkpoint-every 100)
"$binary" train "${job[@]}" --progress off --run-dir "$folder/whole" || fail "one rank ended with $?"
without() {  # without NAME LOSSES TEXT...: LOSSES is a script, run once training has begun
  local run=$folder/$1 losses=$2 code=0 text
  shift 2
  # shellcheck disable=SC2016  # expanded on the head
  "$root/tests/support/hosts.sh" 2 "$folder" bash -c '
    run=$1 losses=$2
    shift 2
    until_step() { until [ "$(cat "$run/metrics.jsonl" 2>/dev/null | wc -l)" -ge "$1" ]; do sleep 0.02; done; }
    kill_rank() {
      for process in /proc/[0-9]*; do
        grep -qs lockstep "$process/comm" && grep -qsz "^OMPI_COMM_WORLD_RANK=$1\$" "$process/environ" &&
          kill -9 "${process#/proc/}"
      done
      true
    }
    (eval "$losses") &
    timeout 120 "$@" || exit
    for _ in {1..100}; do pgrep -x lockstep >/dev/null || exit 0; sleep 0.1; done
    echo "ranks still run"
    exit 99' sh "$run" "$losses" "$binary" launch --max-restarts 0 -- mpirun --mca orte_enable_recovery 1 \
    --host h1:2,h2:2 -n 4 "$binary" train "${job[@]}" --survive --progress off --run-dir "$run" >"$folder/out" 2>&1 ||
    code=$?
  [ "$code" -eq 0 ] || fail "$run: ended with $code, $(cat "$folder/out")"
  for text in "$@"; do grep -q "$text" "$folder/out" || fail "$run: no '$text' in $(cat "$folder/out")"; done
  [ "$(hash_of "$run")" = "$(hash_of "$folder/whole")" ] || fail "$run: other weights, $(cat "$folder/out")"
  [ "$(records_of "$run")" = "$(records_of "$folder/whole")" ] || fail "$run: other records"
}
# shellcheck disable=SC2016
without losses 'until_step 100; kill_rank 3; until_step 500; kill -9 "$(cat "$LOCKSTEP_HOSTS/h1.pid")"' \
  'rank 3 ended; 3 ranks go on' 'ranks 0-1 ended; 1 rank goes on' 'training goes on after step'
[ "$(python3 -c 'import json, sys; print([lost["rank"] for lost in json.load(open(sys.argv[1]))["ranks_lost"]])' \
  "$folder/losses/summary.json")" = "[3, 0, 1]" ] || fail "summary.json does not name the lost ranks"
without parted 'until_step 100; ip link set v2 down' 'ranks 2-3 ended; 2 ranks go on' 'training goes on after step'
[ "$(xargs <"$folder/parted/.members")" = "0 1" ] || fail "ranks $(xargs <"$folder/parted/.members") go on, not 0 and 1"

# All ranks on a host that is not mpirun's: the job ends, and launch returns the code of an error, which mpirun does not.
elsewhere() {  # elsewhere CODE NAME FLAG...
  local expected=$1 name=$2 code=0
  shift 2
  "$root/tests/support/hosts.sh" 2 "$folder" timeout 60 "$binary" launch -- mpirun --mca orte_enable_recovery 1 \
    --host h1:2 -n 2 "$binary" train "${small[@]}" --survive --progress off --run-dir "$folder/$name" "$@" \
    2>"$folder/error" || code=$?
  [ "$code" -eq "$expected" ] || fail "$name: launch ended with $code: $(cat "$folder/error")"
}
elsewhere 0 elsewhere
[ "$(hash_of "$folder/elsewhere")" = "$(hash_of "$folder/one")" ] || fail "on another host: other weights"
elsewhere 2 refused --leaf 5 --micro-batch 3
"$binary" train "${small[@]}" --progress off --run-dir "$folder/refused" || fail "the folder of a refused job is taken"
grep -q 'error: --micro-batch 3' "$folder/error" || fail "the error is lost: $(cat "$folder/error")"
elsewhere 2 unread --label-column 0  # found before the ranks survive
grep -q 'restart 1 follows' "$folder/error" && fail "a refused job is repeated: $(cat "$folder/error")"

# Without --survive a lost host ends the job, and launch starts it again on the host that answers.
run=$folder/restarted
code=0
# shellcheck disable=SC2016  # expanded on the head
"$root/tests/support/hosts.sh" 2 "$folder" bash -c '
  run=$1
  shift
  (until [ -d "$run/checkpoints/step-00000300" ]; do sleep 0.05; done; kill -9 "$(cat "$LOCKSTEP_HOSTS/h2.pid")") &
  timeout 90 "$@"' sh "$run" "$binary" launch --max-restarts 3 -- mpirun --host h1:2,h2:2 -n 4 "$binary" train \
  "${job[@]}" --timeout 5 --progress off --run-dir "$run" >"$folder/out" 2>&1 || code=$?
[ "$code" -eq 0 ] || fail "a lost host: launch ended with $code, $(cat "$folder/out")"
text='h2 does not answer over .*: the job is started on the other hosts, with -n 2'
grep -q "$text" "$folder/out" || fail "a lost host: no '$text' in $(cat "$folder/out")"
grep -qE '"ranks": *2\b' "$run/summary.json" || fail "a lost host: the rest did not run on 2 ranks"
[ "$(hash_of "$run")" = "$(hash_of "$folder/whole")" ] || fail "a lost host: other weights, $(cat "$folder/out")"
[ "$(records_of "$run")" = "$(records_of "$folder/whole")" ] || fail "a lost host: other records"
echo "hosts: all passed"
