#!/usr/bin/env bash
# From a clone to a trained network: installs what is missing, builds, and trains on two processes.
#   scripts/quickstart.sh [FLAGS OF lockstep train...]     from any folder
# Prints each command and its time; what the tools of the set-up print goes to build/quickstart.log.
set -euo pipefail
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
mkdir -p "$root/build"
log=$(realpath --relative-to=. "$root/build/quickstart.log")
: >"$log"

# stage WHAT COMMAND...: one line with the time it took, or the end of the log.
stage() {
  local began=$SECONDS code=0
  printf '%-10s $ %-58s' "$1" "${*:2}"
  printf '$ %s\n' "${*:2}" >>"$log"
  (cd "$root" && "${@:2}") >>"$log" 2>&1 || code=$?
  [ "$code" -ne 0 ] || { printf '%5d s\n' $((SECONDS - began)); return 0; }
  printf ' failed\n'
  printf 'The last lines of %s:\n' "$log" >&2
  tail -n 20 "$log" >&2
  exit "$code"
}

show() { printf '\n$ %s\n' "${*@Q}" | sed -E "s/'([][A-Za-z0-9_@%+=:,.\/-]+)'/\1/g"; "$@"; }

echo "What the set-up prints goes to $log; the build takes minutes."
stage packages scripts/install.sh --run
stage configure cmake --preset release
stage build cmake --build --preset release --target lockstep

if [ "$(id -u)" -eq 0 ]; then  # Open MPI asks root to say it twice
  show export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
cores=$(lscpu -p=CORE,SOCKET | grep -v '^#' | sort -u | wc -l)  # what Open MPI counts: no hyperthreads
if [ "$cores" -lt 2 ] || [ "$(nproc)" -lt 2 ]; then  # of the machine, and those that this process may use
  show export OMPI_MCA_rmaps_base_oversubscribe=1
fi
binary=$(realpath --relative-to=. "$root/build/release/lockstep")
[[ $binary == */* ]] || binary=./$binary
show mpirun -n 2 "$binary" train "$@"

[ $# -eq 0 ] || exit 0  # the flags may have chosen other data or another folder
printf -v binary %q "$binary"
cat <<EOF

To try next; "Train on your own table" in README.md is for your data:
$ $binary evaluate runs/latest --data synthetic
$ $binary train --ranks 2 --model lenet --train-limit 10000 --epochs 1
$ $binary help train
EOF
