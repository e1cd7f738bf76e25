#!/usr/bin/env bash
# Installs what users would pick instead, for measurements only, into a virtual environment:
#   scripts/peers/install.sh FOLDER                  PyTorch and mpi4py, about 6 GB with the CUDA libraries of its wheel
#   scripts/peers/install.sh FOLDER tensorflow-cpu   other packages, by pip's names
set -euo pipefail
folder=${1:?usage: scripts/peers/install.sh FOLDER [PACKAGE...]}
shift
[ $# -gt 0 ] || set -- torch numpy mpi4py
if [ ! -x "$folder/bin/pip" ]; then
  if [ ! -f "$folder/pyvenv.cfg" ] && [ -n "$(ls -A "$folder" 2>/dev/null)" ]; then
    echo "peers/install: $folder holds something else: give an empty folder" >&2
    exit 2
  fi
  if ! python3 -m venv --clear "$folder"; then
    echo "peers/install: python3 makes no virtual environment here: apt-get install python3-venv" >&2
    exit 2
  fi
fi
"$folder/bin/pip" install --quiet "$@"
"$folder/bin/pip" list --format=freeze | grep -E "^(${1%%[[=<>]*}|numpy)="
