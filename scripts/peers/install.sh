#!/usr/bin/env bash
# Installs what users would pick instead, for measurements only: scripts/peers/install.sh FOLDER
# PyTorch and mpi4py in a virtual environment, about 6 GB with the CUDA libraries its wheel brings.
set -euo pipefail
folder=${1:?usage: scripts/peers/install.sh FOLDER}
[ -x "$folder/bin/python" ] || python3 -m venv "$folder"
"$folder/bin/pip" install --quiet torch numpy mpi4py
"$folder/bin/python" -c 'import torch; print("torch", torch.__version__)'
