#!/usr/bin/env bash
# Everything that needs a GPU, in one call: builds, tests, compares hashes, runs compute-sanitizer, and measures beside
# PyTorch. Prints a Markdown table, then what passed, failed and was skipped, and why.
#   scripts/gpu_check.sh [--peers FOLDER] [--rounds N] [--quick]
#     --peers FOLDER   of scripts/peers/install.sh, for PyTorch; else the python3 that is found, if it has PyTorch
#     --rounds N       of the measurements, 3 otherwise
#     --quick          leaves out racecheck, which takes minutes, and batch 16384
# Works in build/gpu, and leaves its measurements in build/gpu/gpu_check.json. One GPU is enough; more are not used.
# Exit code 77: there is no GPU, or no toolkit to build with. 1: something failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { echo "usage: scripts/gpu_check.sh [--peers FOLDER] [--rounds N] [--quick]" >&2; exit 2; }
peers='' rounds=3 quick=false
while [ $# -gt 0 ]; do
  case $1 in
    --peers | --rounds) [ $# -gt 1 ] || usage ;;&
    --peers) peers=$2; shift ;;
    --rounds) rounds=$2; shift ;;
    --quick) quick=true ;;
    *) usage ;;
  esac
  shift
done

PATH=$PATH:/usr/local/cuda/bin
leave() { echo "gpu_check: SKIPPED, $1" >&2; exit 77; }
command -v nvidia-smi >/dev/null || leave "there is no GPU here: no nvidia-smi"
nvidia-smi -L 2>/dev/null | grep -q '^GPU' || leave "there is no GPU here: nvidia-smi lists none"
command -v nvcc >/dev/null || leave "there is a GPU, but no CUDA toolkit: no nvcc"

build=build/gpu
lockstep=$build/lockstep
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

notes=() passed=0 failed=0
good() { passed=$((passed + 1)); notes+=("passed: $1"); }
bad() { failed=$((failed + 1)); notes+=("FAILED: $1"); }
skip() { notes+=("skipped: $1"); }
section() { printf '\n== %s\n' "$1"; }
finish() {
  section summary
  printf '%s\n' "${notes[@]}"
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ] || exit 1
  exit 0
}

# verdict NAME COMMAND...: passed or failed by the command's exit code.
verdict() {
  local name=$1 code=0
  shift
  "$@" || code=$?
  if [ "$code" -eq 0 ]; then good "$name"; else bad "$name: exit code $code"; fi
}

section build
configure() {
  cmake --preset cuda -B "$build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS=-g1 --log-level=WARNING "$@"
}
nccl=true
if ! configure; then
  nccl=false
  configure -DLOCKSTEP_NCCL=OFF || { bad configure; finish; }
  skip "NCCL: it is not installed, see above; built without"
fi
verdict "build, release flags" cmake --build "$build" --target lockstep gpu_tests
[ "$failed" -eq 0 ] || finish

section tests
verdict "tests labelled gpu" ctest --test-dir "$build" -L gpu --output-on-failure --no-tests=error --timeout 600

# weights_hash LAUNCHER... -- FLAGS...: prints it, after 40 steps; what the run says goes to stderr.
weights_hash() {
  local launch=() run
  while [ "$1" != -- ]; do launch+=("$1"); shift; done
  shift
  run=$(mktemp -d "$scratch/run.XXXXXX")
  timeout 600 "${launch[@]}" "$lockstep" train --steps 40 --test-limit 100 --seed 22 --progress off \
    --run-dir "$run/run" "$@" >&2 || return
  python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["weights_hash"])' "$run/run/summary.json"
}

# one_hash NAME REFERENCE LAUNCHER... -- FLAGS...: the run must end in the reference's weights; without one, in any.
# Leaves the hash in `found`, nothing where the run failed.
one_hash() {
  local name=$1 reference=$2 words
  shift 2
  words=$*
  echo "\$ ${words/-- /lockstep train }"
  if ! found=$(weights_hash "$@"); then
    found=''
    bad "$name: the run failed"
  elif [ -n "$reference" ] && [ "$found" != "$reference" ]; then
    bad "$name: $found, not $reference"
  else
    good "$name: $found"
  fi
}

section hashes
found=''
if $nccl; then
  one_hash "1 rank, NCCL" '' -- --device cuda --backend nccl
else
  skip "1 rank, NCCL: built without"
  one_hash "1 rank" '' -- --device cuda
fi
reference=$found
if [ -z "$reference" ]; then
  skip "2 and 4 ranks: nothing to compare with"
else
  one_hash "2 ranks, staged" "$reference" -- --device cuda --ranks 2 --share-device
  one_hash "4 ranks, staged" "$reference" -- --device cuda --ranks 4 --share-device
  if command -v mpirun >/dev/null; then
    one_hash "2 ranks by mpirun, staged" "$reference" mpirun --oversubscribe -n 2 -- --device cuda --share-device
  else
    skip "2 ranks by mpirun: there is no mpirun; ranks as threads ran instead"
  fi
fi
one_hash "strict, CPU" '' -- --device cpu --products strict
reference=$found
if [ -z "$reference" ]; then
  skip "strict, GPU: nothing to compare with"
else
  one_hash "strict, GPU" "$reference" -- --device cuda --products strict
  one_hash "strict, GPU, 2 ranks staged" "$reference" -- --device cuda --products strict --ranks 2 --share-device
fi

section compute-sanitizer
gpu_tests=$(find "$build" -type f -name gpu_tests -perm -u+x -print -quit)
if ! command -v compute-sanitizer >/dev/null; then
  skip "memcheck and racecheck: there is no compute-sanitizer"
elif [ -z "$gpu_tests" ]; then
  bad "memcheck and racecheck: $build has no gpu_tests"
else
  verdict memcheck timeout 900 compute-sanitizer --tool memcheck --error-exitcode 1 "$gpu_tests"
  if $quick; then
    skip "racecheck: --quick"
  else
    verdict racecheck timeout 900 compute-sanitizer --tool racecheck --error-exitcode 1 "$gpu_tests"
  fi
fi

section measurements
python=$(command -v python3)
[ -z "$peers" ] || python=$peers/bin/python
python_flags=()
if "$python" -c 'import numpy, torch' 2>/dev/null; then
  python_flags=(--python "$python")
else
  skip "PyTorch: $python has none; scripts/peers/install.sh FOLDER brings it, --peers FOLDER names it"
fi
sizes=128,1024,16384
if $quick; then
  sizes=128,1024
  skip "batch 16384: --quick"
fi
verdict measurements python3 scripts/peers/gpu_compare.py --lockstep "$lockstep" "${python_flags[@]}" \
  --rounds "$rounds" --batch-sizes "$sizes" --save "$build/gpu_check.json"
finish
