#!/usr/bin/env bash
# From a clone to a trained network: installs what is missing, builds, and trains on two processes.
#   scripts/quickstart.sh [FLAGS OF lockstep train...]     from any folder
# Prints the commands it runs; they are all that you need the next time.
set -euo pipefail
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")

show() { printf '\n$ %s\n' "${*@Q}" | sed -E "s/'([][A-Za-z0-9_@%+=:,.\/-]+)'/\1/g"; "$@"; }

in_root() { (cd "$root" && show "$@"); }
in_root scripts/install.sh --run
in_root cmake --preset release
in_root cmake --build --preset release --target lockstep

if [ "$(id -u)" -eq 0 ]; then  # Open MPI asks root to say it twice
  show export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
cores=$(lscpu -p=CORE,SOCKET | grep -v '^#' | sort -u | wc -l)  # what Open MPI counts: no hyperthreads
if [ "$cores" -lt 2 ]; then
  show export OMPI_MCA_rmaps_base_oversubscribe=1
fi
binary=$(realpath --relative-to=. "$root/build/release/lockstep")
[[ $binary == */* ]] || binary=./$binary
show mpirun -n 2 "$binary" train "$@"
