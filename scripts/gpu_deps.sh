#!/usr/bin/env bash
# Downloads, on a Debian 12 with network, the packages that a GPU machine without network may lack:
#   scripts/gpu_deps.sh FOLDER     then take FOLDER there: scripts/gpu_check.sh --deps FOLDER
# All that the preset cuda and its tests need but the compilers, CMake, MPI, the CUDA toolkit and NCCL; 13 MB.
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: scripts/gpu_deps.sh FOLDER" >&2; exit 2; }
# Of install.sh's list, with the shared libraries that they stand on.
packages=(ninja-build pkgconf-bin libpkgconf3
          libdnnl-dev libdnnl2 ocl-icd-libopencl1 libhwy-dev libhwy1 libxxhash-dev libxxhash0 zlib1g-dev zlib1g libisal-dev libisal2
          libpng-dev libpng16-16 libjpeg62-turbo-dev libjpeg62-turbo libzip-dev libzip4
          libtomlplusplus-dev libtomlplusplus3 nlohmann-json3-dev libspdlog-dev libspdlog1.10 libfmt-dev libfmt9
          libcxxopts-dev catch2 libeigen3-dev)

mkdir -p "$1"
cd "$1"
if compgen -G '*.deb' >/dev/null; then
  echo "gpu_deps: $PWD has packages already: give another folder, or remove them" >&2
  exit 2
fi
apt-get -q download "${packages[@]}"
for package in *.deb; do mv "$package" "${package%%_*}.deb"; done  # versions hold characters that not every copy keeps
echo "gpu_deps: ${#packages[@]} packages in $PWD, $(du -sh . | cut -f1)"
