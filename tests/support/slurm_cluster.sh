#!/usr/bin/env bash
# Starts a Slurm cluster of N emulated hosts from Debian's packages and runs COMMAND on its head, which may submit jobs:
#   tests/support/slurm_cluster.sh N FOLDER COMMAND...
# Without munge, systemd and cgroups. Logs are in FOLDER/slurm. Exit code 77, with the reason, where it cannot be done.
set -euo pipefail
support=$(realpath "$(dirname "${BASH_SOURCE[0]}")")

if [ "${1-}" != --inside ]; then
  [ $# -ge 3 ] || { echo "usage: slurm_cluster.sh N FOLDER COMMAND..." >&2; exit 2; }
  PATH=$PATH:/usr/sbin:/sbin
  for program in slurmctld slurmd srun; do
    command -v $program >/dev/null || { echo "SKIP: no $program (scripts/install.sh brings it)"; exit 77; }
  done
  exec "$support/hosts.sh" "$1" "$2" "$support/slurm_cluster.sh" --inside "$@"
fi

hosts=$2
folder=$(realpath "$3")/slurm
shift 3
rm -rf "$folder"
mkdir -p "$folder/state"
export SLURM_CONF=$folder/slurm.conf
cat >"$SLURM_CONF" <<CONF
ClusterName=lockstep
SlurmctldHost=h1
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
SlurmctldTimeout=30
SlurmdTimeout=10
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
TmpFS=$folder/tmp.%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.%n.log
NodeName=h[1-$hosts] CPUs=2 Boards=1 SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=1000 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
echo 'CgroupPlugin=cgroup/v1' >"$folder/cgroup.conf"  # or slurmd 22.05 insists on a mounted cgroup file system

on_host() { "$support/on_host.sh" "$@"; }
idle_hosts() { sinfo --noheader --Node --format=%t 2>/dev/null | grep -c '^idle$' || true; }

on_host h1 "exec slurmctld -D >'$folder/slurmctld.out' 2>&1" &
for ((i = 1; i <= hosts; i++)); do
  mkdir "$folder/spool.h$i" "$folder/tmp.h$i"
  on_host "h$i" "exec slurmd -D -N h$i >'$folder/slurmd.h$i.out' 2>&1" &
done
for ((i = 0; i < 300; i++)); do
  [ "$(idle_hosts)" -ne "$hosts" ] || break
  sleep 0.1
done
if [ "$(idle_hosts)" -ne "$hosts" ]; then
  echo "slurm_cluster.sh: after 30 s the hosts are not idle:" >&2
  sinfo >&2 || true
  tail -n 5 "$folder"/*.log "$folder"/*.out >&2
  exit 1
fi
"$@"
