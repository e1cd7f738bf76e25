#!/usr/bin/env bash
# Lockstep under Slurm, on an emulated cluster of three nodes: a job through scripts/slurm/train.sbatch, a launch that
# would be several worlds instead of one, ranks that are killed and nodes that fail, with --survive and without.
#   tests/end_to_end/slurm_test.sh LOCKSTEP      the executable; exit code 77, with the reason, where it cannot run
set -euo pipefail
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
source "$root/tests/support/runs.sh"

if [ "${1-}" != --on-head ]; then
  binary=$(realpath "${1:-$root/build/release/lockstep}")
  [ -x "$binary" ] || { echo "SKIP: no executable $binary"; exit 77; }
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  code=0
  "$root/tests/support/slurm_cluster.sh" 3 "$folder" "$root/tests/end_to_end/slurm_test.sh" --on-head "$folder" "$binary" || code=$?
  exit "$code"
fi

export LOCKSTEP=$3
cd "$2"
batch=$root/scripts/slurm/train.sbatch
small=(--data synthetic --train-limit 512 --test-limit 128 --layers 32)
long=(--data synthetic --train-limit 512 --test-limit 128 --layers 32 --epochs 1000000)

fail() {
  echo "FAILED: $*"
  tail -n 20 ./*.out slurm/*.log 2>/dev/null
  exit 1
}
until_true() {  # until_true SECONDS COMMAND...
  local deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$deadline" ] || return 1
    sleep 0.1
  done
}
state() { scontrol show job "$1" | grep -oP 'JobState=\K\w+'; }
ended() { [[ $(state "$1") != @(PENDING|CONFIGURING|RUNNING|COMPLETING) ]]; }
all_gone() { ! pgrep -x "$(basename "$LOCKSTEP")" >/dev/null; }  # the head sees the processes of all hosts
ranks_running() { [ "$(pgrep -cx "$(basename "$LOCKSTEP")")" -eq "$1" ]; }

echo "== a job on three nodes, of a run file as --print-config writes it"
printf 'epochs = 1\nrun-dir = "auto"\n' >run.toml
job=$(sbatch --parsable --nodes=3 "$batch" "$PWD/run.toml" "${small[@]}")
until_true 60 ended "$job" || fail "job $job is still $(state "$job") after 60 s"
[ "$(state "$job")" = COMPLETED ] || fail "job $job is $(state "$job")"
run=runs/slurm-$job
grep -qE '"ranks": *3\b' "$run/summary.json" || fail "summary.json does not say 3 ranks: $(cat "$run/summary.json")"
until_true 5 all_gone || fail "processes are left: $(pgrep -l .)"

echo "== the doctor"
timeout 60 srun --mpi=pmix -K --ntasks=3 "$LOCKSTEP" doctor >doctor.out 2>&1 || fail "doctor ended with $?: $(cat doctor.out)"
for text in 'started by srun' 'nothing is wrong'; do
  grep -q "$text" doctor.out || fail "doctor: no '$text' in $(cat doctor.out)"
done

echo "== srun without PMIx: several worlds of one rank"
code=0
timeout 60 srun --mpi=none --ntasks=2 "$LOCKSTEP" train "${small[@]}" --epochs 1 >no_pmix.out 2>&1 || code=$?
[ "$code" -eq 2 ] || fail "exit code $code instead of 2"
grep -q -e '--mpi=pmix' no_pmix.out || fail "the message does not name the remedy"

echo "== a rank is killed"
job=$(sbatch --parsable --nodes=3 "$batch" "${long[@]}" --run-dir "$PWD/killed")
until_true 30 ranks_running 3 || fail "three ranks did not start"
sleep 1
kill -KILL "$(pgrep -nx "$(basename "$LOCKSTEP")")"
until_true 10 ended "$job" || fail "ten seconds after a rank died the job is $(state "$job")"
[ "$(state "$job")" = FAILED ] || fail "job $job is $(state "$job")"
until_true 5 all_gone || fail "processes are left: $(pgrep -l .)"

echo "== a signal, a requeue, and the rest on fewer nodes"
train=("${small[@]}" --epochs 30 --checkpoint-every 20)
"$LOCKSTEP" train "${train[@]}" --progress off --run-dir "$PWD/whole"
job=$(sbatch --parsable --nodes=3 "$batch" "${train[@]}" --run-dir "$PWD/parts")
until_true 30 compgen -G "parts/checkpoints/step-*" >/dev/null || fail "no checkpoint was saved"
scancel --signal=USR1 "$job"
queued_again() { scontrol show job "$job" | grep -q 'Restarts=1' && [ "$(state "$job")" = PENDING ]; }
until_true 30 queued_again || fail "job $job is $(state "$job")"
grep -q '"status": "stopped"' parts/summary.json || fail "the run was complete before the signal: $(cat parts/summary.json)"
grep -q "stopped by SIGUSR1" "lockstep-$job.out" || fail "no word of the signal"
scancel "$job"  # it would begin again after two minutes
job=$(sbatch --parsable --nodes=2 "$batch" "${train[@]}" --run-dir "$PWD/parts")
until_true 90 ended "$job" || fail "job $job is still $(state "$job")"
[ "$(state "$job")" = COMPLETED ] || fail "job $job is $(state "$job")"
grep -qE '"ranks": *2\b' parts/summary.json || fail "the rest did not run on 2 ranks"
[ "$(hash_of whole)" = "$(hash_of parts)" ] || fail "hashes differ: $(hash_of whole), $(hash_of parts)"


# From here on nodes are lost for good. The job's records are those of a run that lost nothing.
kill_node() { kill -KILL "$(cat "$LOCKSTEP_HOSTS/$1.pid")"; }
kill_task() {
  local process
  for process in $(pgrep -x "$(basename "$LOCKSTEP")"); do
    if tr '\0' '\n' <"/proc/$process/environ" | grep -qx "SLURM_PROCID=$1"; then kill -KILL "$process"; fi
  done
}
steps_are() { [ -e "$1/metrics.jsonl" ] && [ "$(wc -l <"$1/metrics.jsonl")" -ge "$2" ]; }
require_same() {
  [ "$(hash_of whole_long)" = "$(hash_of "$1")" ] || fail "$1: hashes differ: $(hash_of whole_long), $(hash_of "$1")"
  [ "$(records_of whole_long)" = "$(records_of "$1")" ] || fail "$1: other records"
}
train=(--data synthetic --train-limit 2000 --test-limit 128 --layers 64,32 --batch-size 20 --epochs 20 --checkpoint-every 100
  --progress off)
"$LOCKSTEP" train "${train[@]}" --run-dir "$PWD/whole_long"

echo "== Ctrl-C on launch, of which srun would only list its tasks"
env --default-signal=INT "$LOCKSTEP" launch -- srun --mpi=pmix -K --ntasks=2 "$LOCKSTEP" train "${long[@]}" \
  --run-dir "$PWD/interrupted" >interrupted.out 2>&1 &
launch=$!
until_true 60 steps_are interrupted 20 || fail "no 20 steps: $(cat interrupted.out)"
kill -INT "$launch"
launch_ended() { ! kill -0 "$launch" 2>/dev/null; }
until_true 60 launch_ended || fail "it goes on: $(cat interrupted.out)"
code=0
wait "$launch" || code=$?
[ "$code" -eq 75 ] || fail "exit code $code instead of 75: $(cat interrupted.out)"
grep -q '"status": "stopped"' interrupted/summary.json || fail "not stopped: $(cat interrupted/summary.json)"

echo "== --survive needs variables that the tasks see"
code=0
timeout 60 srun --mpi=pmix --ntasks=2 "$LOCKSTEP" train "${train[@]}" --survive >refused.out 2>&1 || code=$?
[ "$code" -eq 2 ] || fail "exit code $code instead of 2"
grep -q 'SLURM_NO_KILL=set SLURM_KILL_BAD_EXIT=0 srun --mpi=pmix' refused.out || fail "no remedy in $(cat refused.out)"

echo "== --survive: the job goes on without a rank, and without a node"
job=$(sbatch --parsable --nodes=3 "$batch" "${train[@]}" --survive --run-dir "$PWD/survived")
until_true 60 steps_are survived 100 || fail "no 100 steps"
kill_task 1
until_true 30 steps_are survived 500 || fail "no 500 steps"
kill_node h3
until_true 60 ended "$job" || fail "job $job is still $(state "$job")"
[ "$(state "$job")" = COMPLETED ] || fail "job $job is $(state "$job")"
for text in 'rank 1 ended; 2 ranks go on' 'rank 2 ended; 1 rank goes on'; do
  grep -q "$text" "lockstep-$job.out" || fail "no '$text' in $(cat "lockstep-$job.out")"
done
require_same survived
until_true 5 all_gone || fail "processes are left: $(pgrep -l .)"

echo "== a node fails: training continues on the node that is left"
job=$(sbatch --parsable --nodes=2 "$batch" "${train[@]}" --run-dir "$PWD/continued")
until_true 60 compgen -G "continued/checkpoints/step-*" >/dev/null || fail "no checkpoint was saved"
kill_node h2
until_true 120 ended "$job" || fail "job $job is still $(state "$job")"
[ "$(state "$job")" = COMPLETED ] || fail "job $job is $(state "$job")"
grep -q '1 of 2 nodes failed' "lockstep-$job.out" || fail "no word of the node in $(cat "lockstep-$job.out")"
grep -qE '"ranks": *1\b' continued/summary.json || fail "the rest did not run on 1 rank"
require_same continued

echo "slurm: all passed"
