#!/usr/bin/env bash
# Builds and measures Lockstep, alone and beside its peers, and prints the README's tables:
#   scripts/peers/install.sh FOLDER torch numpy mpi4py pandas jax optax tensorflow-cpu   # once
#   scripts/bench.sh [FOLDER] [--short] [--data FOLDER] [--rounds N] [--parts PART,...] [--figure FILE.svg] [--no-record]
# scripts/bench/METHOD.md says how to measure, and what the numbers mean.
set -euo pipefail
root=$(dirname "$(realpath "$0")")/..
(
  cd "$root"
  cmake --preset release --log-level=WARNING
  cmake --build --preset release --target lockstep
) >&2
exec python3 "$root/scripts/bench/bench.py" "$@"
