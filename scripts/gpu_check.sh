#!/usr/bin/env bash
# Everything that needs a GPU, in one call: builds, tests, compares hashes, runs compute-sanitizer, and measures beside
# PyTorch. Prints a Markdown table, then what passed, failed and was skipped, and why.
#   scripts/gpu_check.sh [--deps FOLDER] [--peers FOLDER] [--rounds N] [--quick]
#     --deps FOLDER    of scripts/gpu_deps.sh, where this machine lacks Debian's packages and has no network
#     --peers FOLDER   of scripts/peers/install.sh, for PyTorch; else the python3 that is found, if it has PyTorch
#     --rounds N       of the measurements, 3 otherwise
#     --quick          leaves out racecheck, which takes minutes, and batch 16384
# Works in build/gpu, unpacks into build/deps, and leaves its measurements in build/gpu/gpu_check.json. One GPU is
# enough; tests use more of them where CUDA_VISIBLE_DEVICES names them.
# Exit code 77: there is no GPU, or no toolkit to build with. 1: something failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { echo "usage: scripts/gpu_check.sh [--deps FOLDER] [--peers FOLDER] [--rounds N] [--quick]" >&2; exit 2; }
deps='' peers='' rounds=3 quick=false
while [ $# -gt 0 ]; do
  case $1 in
    --deps | --peers | --rounds) [ $# -gt 1 ] || usage ;;&
    --deps) deps=$(cd "$OLDPWD" && realpath -m "$2"); shift ;;
    --peers) peers=$(cd "$OLDPWD" && realpath -m "$2"); shift ;;
    --rounds) rounds=$2; shift ;;
    --quick) quick=true ;;
    *) usage ;;
  esac
  shift
done

PATH=$PATH:/usr/local/cuda/bin
leave() { echo "gpu_check: SKIPPED, $1" >&2; exit 77; }
command -v nvidia-smi >/dev/null || leave "there is no GPU here: no nvidia-smi"
nvidia-smi -L 2>/dev/null | grep '^GPU' >/dev/null || leave "there is no GPU here: nvidia-smi lists none"
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

# Where the packages of --deps are found: by CMake, pkg-config, the linker and the loader.
unpack_deps() {
  local folder=$PWD/build/deps libraries=$PWD/build/deps/usr/lib/x86_64-linux-gnu package
  compgen -G "$deps/*.deb" >/dev/null || { echo "gpu_check: $deps has no .deb files" >&2; exit 2; }
  rm -rf "$folder"
  mkdir -p "$folder"
  for package in "$deps"/*.deb; do dpkg -x "$package" "$folder"; done
  export CMAKE_PREFIX_PATH=$folder/usr${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
  export LD_LIBRARY_PATH=$libraries:$folder/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export PKG_CONFIG=$folder/usr/bin/pkgconf PKG_CONFIG_SYSROOT_DIR=$folder
  export PKG_CONFIG_LIBDIR=$libraries/pkgconfig:$folder/usr/share/pkgconfig
  command -v ninja >/dev/null || PATH=$PATH:$folder/usr/bin
}

section build
[ -z "$deps" ] || unpack_deps
options=() nccl=true mpi=true
configure() {
  cmake --preset cuda -B "$build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS=-g1 --log-level=WARNING \
    "${options[@]}" "$@"
}
if ! command -v mpirun >/dev/null || ! command -v mpicxx >/dev/null; then
  mpi=false
  options+=(-DLOCKSTEP_MPI=OFF)
  export LOCKSTEP_MPI=OFF  # for end-to-end tests
  skip "MPI: there is no mpirun and mpicxx; built without, ranks are threads"
fi
if ! configure -DLOCKSTEP_NCCL=ON; then
  nccl=false
  configure -DLOCKSTEP_NCCL=OFF || { bad configure; finish; }
  skip "NCCL: it is not installed, see above; built without"
fi
# The command alone first: where only the tests do not build, the rest still runs.
verdict "build lockstep, release flags" cmake --build "$build" --target lockstep
[ "$failed" -eq 0 ] || finish
verdict "build gpu_tests" cmake --build "$build" --target gpu_tests

section tests
gpu_tests=$build/tests/gpu/gpu_tests
# run_gpu_tests NAME FILTER [WRAPPER...]: one binary, which says what it skips.
run_gpu_tests() {
  local name=$1 filter=$2
  shift 2
  if [ -x "$gpu_tests" ]; then
    verdict "$name" timeout 900 "$@" "$gpu_tests" --warn NoTests "$filter"
  else
    skip "$name: gpu_tests was not built"
  fi
}
run_gpu_tests gpu_tests '*'
verdict "end to end on devices" env GPUS=visible timeout 600 \
  python3 tests/end_to_end/run.py "$lockstep" device_test.py

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
  if $mpi; then
    one_hash "2 ranks by mpirun, staged" "$reference" mpirun --oversubscribe -n 2 -- --device cuda --share-device
  else
    skip "2 ranks by mpirun: built without MPI; ranks as threads ran instead"
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
if ! command -v compute-sanitizer >/dev/null; then
  skip "memcheck and racecheck: there is no compute-sanitizer"
else
  # Without tests of collectives: NCCL starts too slowly under memcheck for their time limits, and asks for kernels that
  # a device does not have, which memcheck reports.
  sanitize=(compute-sanitizer --error-exitcode 1 --tool)
  run_gpu_tests memcheck '~[train]~[large]~[collectives]' "${sanitize[@]}" memcheck
  if $quick; then
    skip "racecheck: --quick"
  else  # of kernels with shared memory, on small shapes
    shared='device: the loss*,device: losses*,~[large]device: strict*,device: sums of squares*,device: a hash*'
    run_gpu_tests racecheck "$shared" "${sanitize[@]}" racecheck
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
