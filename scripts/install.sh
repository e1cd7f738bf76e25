#!/usr/bin/env bash
# Installs the Debian 12 packages that Lockstep needs and this machine lacks:
#   scripts/install.sh          to build, run, test and check
#   scripts/install.sh --run    to build and run alone
# Asks dpkg first: where nothing is missing it needs neither rights nor network.
set -euo pipefail

running=(g++ cmake ninja-build pkg-config ccache
         libopenmpi-dev openmpi-bin libdnnl-dev libhwy-dev zlib1g-dev libisal-dev libpng-dev libjpeg62-turbo-dev libzip-dev libcairo2-dev libxxhash-dev libeigen3-dev
         libtomlplusplus-dev nlohmann-json3-dev libspdlog-dev libcxxopts-dev
         ca-certificates curl)
testing=(catch2 clang-format clang-tidy-16 clang-16 libclang-rt-16-dev libomp-16-dev g++-aarch64-linux-gnu qemu-user
         python3 python3-numpy git doxygen
         slurmctld slurmd slurm-client iproute2 util-linux procps)

case "${1-}" in
  '') packages=("${running[@]}" "${testing[@]}") ;;
  --run) packages=("${running[@]}") ;;
  *) echo "usage: scripts/install.sh [--run]" >&2; exit 2 ;;
esac

installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null) || true
missing=()
for package in "${packages[@]}"; do
  [[ $'\n'$installed$'\n' == *$'\n'"$package installed"$'\n'* ]] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "install: all ${#packages[@]} packages are there"
  exit 0
fi

give_up() {
  printf 'install: %s. What is missing:\n  apt-get install --no-install-recommends %s\n' "$1" "${missing[*]}" >&2
  exit 2
}

command -v apt-get >/dev/null || give_up "this system has no apt-get"
grep -qs 'VERSION_CODENAME=bookworm' /etc/os-release ||
  echo "install: written for Debian 12; trying its package names on this system" >&2

root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || give_up "needs root, and there is no sudo"
  sudo -n true 2>/dev/null || sudo -v || give_up "needs root, and sudo refuses"
  root=(sudo)
fi

# The tests start daemons of their own: a package must not start one here (101: not allowed).
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' | "${root[@]}" tee "$policy" >/dev/null
  "${root[@]}" chmod +x "$policy"
  trap '"${root[@]}" rm -f "$policy"' EXIT
fi

echo "install: ${missing[*]}"
apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0)
"${apt[@]}" update || give_up "apt-get update failed"
"${apt[@]}" install --no-install-recommends "${missing[@]}" || give_up "apt-get install failed"
echo "install: done"
