#!/usr/bin/env bash
# Runs a command line on one of the hosts of hosts.sh, as ssh would: on_host.sh HOST COMMAND...
set -euo pipefail
pid=$(cat "$LOCKSTEP_HOSTS/$1.pid")
shift
exec nsenter -t "$pid" -m -u -i -n -p -- bash -c "cd ${PWD@Q}; $*"
