#!/usr/bin/env bash
# Unpacks the Debian packages for arm64 that the preset aarch64 links with:
#   scripts/aarch64_sysroot.sh FOLDER    needs the network unless FOLDER is complete; no rights
# apt's lists, cache and state for arm64 are in FOLDER too: this system's packages stay as they are.
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: scripts/aarch64_sysroot.sh FOLDER" >&2; exit 2; }
# Of install.sh's list, what a build without MPI, oneDNN and cairo needs.
packages=(libc6-dev libstdc++6 libgomp1
          libhwy-dev zlib1g-dev libisal-dev libpng-dev libjpeg62-turbo-dev libzip-dev libxxhash-dev libeigen3-dev
          libtomlplusplus-dev nlohmann-json3-dev libspdlog-dev libcxxopts-dev catch2)

mkdir -p "$1"
cd "$1"
mark=.lockstep-sysroot  # the packages of a complete folder
[ "$(cat "$mark" 2>/dev/null)" != "${packages[*]}" ] || exit 0
if [ ! -e "$mark" ] && [ -n "$(ls -A)" ]; then
  echo "aarch64_sysroot: $PWD holds something else: give an empty folder" >&2
  exit 2
fi
: >"$mark"
rm -rf -- apt usr lib etc
mkdir -p apt/lists/partial apt/archives/partial
touch apt/status
apt=(apt-get -q -y -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=
     -o Dir::State="$PWD/apt" -o Dir::State::status="$PWD/apt/status" -o Dir::Cache="$PWD/apt"
     -o Acquire::Languages=none)
"${apt[@]}" update
"${apt[@]}" install --no-install-recommends --download-only "${packages[@]}"
for package in apt/archives/*.deb; do dpkg-deb -x "$package" .; done
rm -r apt
echo "${packages[*]}" >"$mark"
echo "aarch64_sysroot: $PWD, $(du -sh . | cut -f1)"
