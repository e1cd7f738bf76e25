#!/usr/bin/env bash
# Emulates hosts h1..hN on this machine, and runs COMMAND on a "head" that reaches them all:
#   tests/support/hosts.sh N FOLDER COMMAND...       for example: ... mpirun --host h1:2,h2:2 PROGRAM
# A host is a set of namespaces: its own address, hostname, processes and /dev/shm; files are shared, as on a cluster.
# on_host.sh runs a command there, also for mpirun. FOLDER holds what the hosts need, and everything ends with COMMAND.
# Exit code 77, with the reason, where the kernel does not allow it.
set -euo pipefail
support=$(realpath "$(dirname "${BASH_SOURCE[0]}")")

if [ "${1-}" != --inside ]; then
  [ $# -ge 3 ] || { echo "usage: hosts.sh N FOLDER COMMAND..." >&2; exit 2; }
  PATH=$PATH:/usr/sbin:/sbin
  skip() { echo "SKIP: emulated hosts need $1"; exit 77; }
  for program in ip unshare nsenter; do
    command -v $program >/dev/null || skip "$program (scripts/install.sh brings it)"
  done
  [ "$(id -u)" -eq 0 ] || skip "root: in a user's own namespaces Open MPI's ranks crash and Slurm hangs"
  unshare=(unshare --net --mount --uts --pid --fork --kill-child --mount-proc)
  reason=$("${unshare[@]}" sh -c 'ip link add b0 type bridge && ip link add v0 type veth peer name v1' 2>&1) ||
    skip "the right to make network namespaces and bridges: $reason"
  exec "${unshare[@]}" -- "$support/hosts.sh" --inside "$@"
fi

shift
hosts=$1
LOCKSTEP_HOSTS=$(realpath "$2")/hosts
shift 2
mkdir -p "$LOCKSTEP_HOSTS/tmp"
rm -f "$LOCKSTEP_HOSTS"/*.pid
export TMPDIR=$LOCKSTEP_HOSTS/tmp  # of Open MPI, which leaves folders there if it is killed

{
  cat /etc/hosts
  echo "10.77.0.254 head"
  for ((i = 1; i <= hosts; i++)); do echo "10.77.0.$i h$i"; done
} >"$LOCKSTEP_HOSTS/etc_hosts"
mount --bind "$LOCKSTEP_HOSTS/etc_hosts" /etc/hosts
hostname head
ip link set lo up
ip link add br0 type bridge
ip addr add 10.77.0.254/24 dev br0
ip link set br0 up

become_host() {  # become_host NAME PIDFILE: never returns
  read -r pid _ </proc/self/stat  # still the head's /proc: our number as the head sees it
  hostname "$1"
  mount -t proc proc /proc
  mount -t tmpfs tmpfs /dev/shm
  echo "$pid" >"$2"
  exec sleep infinity
}

for ((i = 1; i <= hosts; i++)); do
  pidfile=$LOCKSTEP_HOSTS/h$i.pid
  unshare --net --uts --ipc --mount --pid --fork bash -euc "$(declare -f become_host); become_host h$i '$pidfile'" &
  until [ -s "$pidfile" ]; do
    kill -0 $! || { echo "hosts.sh: h$i did not start" >&2; exit 1; }
    sleep 0.02
  done
  ip link add "v$i" type veth peer name eth0 netns "$(cat "$pidfile")"
  ip link set "v$i" master br0 up
  nsenter -t "$(cat "$pidfile")" -n sh -c "ip addr add 10.77.0.$i/24 dev eth0; ip link set eth0 up; ip link set lo up"
done

# mpirun would refuse to run as root, and would look for ssh.
export LOCKSTEP_HOSTS OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_plm_rsh_agent=$support/on_host.sh
"$@"  # not exec: the end of this shell, which is process 1, ends every host
