#!/usr/bin/env python3
"""Kills random ranks of runs under --survive at random instants, and compares each run with one that nobody left.

    scripts/kill_ranks.py [--kills 300] [--ranks 4] [--seed 1] [--tutorial] [--hosts] [BINARY]

Sometimes two ranks at once, and sometimes the next one before the others have recovered; the last rank is left alone.
With --hosts the ranks are on two emulated hosts, and every second time a whole host is killed (needs root).
Every run must end with the weights' hash and the metrics of the undisturbed run. Prints the time from a kill to the end
of the first step that no rank had begun before it. Exit code 0: all runs were the same.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SMALL = "--train-limit 2000 --test-limit 200 --layers 64,32 --batch-size 20 --epochs 8 --checkpoint-every 3"
TUTORIAL = "--train-limit 12800 --test-limit 1000 --batch-size 128 --epochs 6 --checkpoint-every 100"
HOSTS = SMALL.replace("--epochs 8", "--epochs 40")
MAX_UNDISTURBED = 20  # runs in a row without a kill
LONGEST = 60  # seconds for a recovery, or for the rest of a run
REPOSITORY = Path(__file__).resolve().parent.parent
STEP_AT = 96  # offset of the step in a flight recorder's file: lib/base/flight_recorder.cpp


def ranks_of(run, program):
    """Rank -> process id."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_of_run = str(run).encode() in (process / "cmdline").read_bytes()
            if not is_of_run or (process / "comm").read_text() != f"{program[:15]}\n":  # the kernel keeps 15
                continue
            for variable in (process / "environ").read_bytes().split(b"\0"):
                if variable.startswith(b"OMPI_COMM_WORLD_RANK="):
                    found[int(variable.split(b"=")[1])] = int(process.name)
        except OSError:  # ended meanwhile
            continue
    return found


def host_of(process):
    """The first process of the emulated host: the others end with it."""
    space = os.readlink(f"/proc/{process}/ns/pid")
    for other in Path("/proc").glob("[0-9]*"):
        try:
            numbers = next(line for line in (other / "status").read_text().splitlines() if line.startswith("NSpid:"))
            if os.readlink(other / "ns/pid") == space and numbers.split()[-1] == "1":
                return int(other.name)
        except OSError:
            continue
    raise ProcessLookupError


def kill_host(ranks, chance):
    """Kills one of two hosts that have ranks. Returns the number of ranks killed."""
    hosts = {rank: host_of(process) for rank, process in ranks.items()}
    if len(set(hosts.values())) < 2:
        return 0
    host = chance.choice(sorted(set(hosts.values())))
    os.kill(host, signal.SIGKILL)
    lost = [rank for rank in hosts if hosts[rank] == host]
    for rank in lost:
        del ranks[rank]
    return len(lost)


def latest_step(run, ranks):
    """The step that the ranks train, as their flight recorders say."""
    steps = [0]
    for rank in ranks:
        try:
            record = (run / "flight" / f"rank-{rank:05}").read_bytes()
            steps.append(struct.unpack_from("<Q", record, STEP_AT)[0])
        except (OSError, struct.error):
            continue
    return max(steps)


def result_of(run):
    """The weights' hash, and all metrics but times."""
    with open(run / "metrics.jsonl", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    for line in lines:
        del line["seconds"]
    return json.loads((run / "summary.json").read_text())["weights_hash"], lines


def disturb(process, run, program, chance, times, hosts):
    """Kills all ranks but one of a run, or but one host. Returns the number of kills."""
    while process.poll() is None and not (run / "metrics.jsonl").exists():
        time.sleep(0.005)
    ranks = ranks_of(run, program)
    kills = 0
    while process.poll() is None and len(ranks) > 1:
        time.sleep(chance.choice([0.004, 0.1, 0.6, 1.2]) * chance.random())
        two = chance.random() < 0.25 and len(ranks) > 2
        before = latest_step(run, ranks)
        killed = time.monotonic()
        try:
            lost = kill_host(ranks, chance) if hosts and chance.random() < 0.5 else 0
        except OSError:  # it has finished
            return kills
        kills += lost
        for rank in [] if lost else chance.sample(sorted(ranks), 2 if two else 1):
            try:
                os.kill(ranks.pop(rank), signal.SIGKILL)
                kills += 1
            except ProcessLookupError:  # it has finished
                continue
        if chance.random() < 0.3:
            continue  # the next kill within the recovery
        while process.poll() is None and latest_step(run, ranks) <= before + 1:
            if time.monotonic() > killed + LONGEST:
                return kills
            time.sleep(0.001)
        if process.poll() is None:
            times.append(time.monotonic() - killed)
    return kills


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", nargs="?", default=REPOSITORY / "build/release/lockstep")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hosts", action="store_true", help="on two emulated hosts, which are killed too")
    parser.add_argument("--tutorial", action="store_true", help="train the tutorial's network, at batch 128")
    options = parser.parse_args()
    if options.ranks < 2 or options.kills < 1:
        parser.error("give at least 2 ranks and 1 kill")
    command = [str(Path(options.binary).resolve()), "train", "--progress", "off",
               *(TUTORIAL if options.tutorial else HOSTS if options.hosts else SMALL).split()]
    environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    folder = Path(tempfile.mkdtemp(prefix="kill-ranks-"))
    subprocess.run([*command, "--run-dir", folder / "whole"], check=True, env=environment)
    whole = result_of(folder / "whole")
    chance = random.Random(options.seed)
    times, kills, runs, bad = [], 0, 0, 0
    undisturbed = 0  # runs in a row
    while kills < options.kills:
        runs += 1
        run = folder / f"run{runs}"
        mpirun = ["mpirun", "--oversubscribe", "--mca", "orte_enable_recovery", "1", "-n", str(options.ranks)]
        if options.hosts:
            hosts = f"h1:{(options.ranks + 1) // 2},h2:{options.ranks // 2}"
            mpirun = [REPOSITORY / "tests/support/hosts.sh", "2", folder, command[0], "launch", "--max-restarts", "0",
                      "--", *mpirun, "--host", hosts]
        process = subprocess.Popen([*mpirun, *command, "--survive", "--run-dir", run], env=environment,
                                   stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        lost = disturb(process, run, Path(command[0]).name, chance, times, options.hosts)
        kills += lost
        undisturbed = 0 if lost else undisturbed + 1
        try:
            _, said = process.communicate(timeout=LONGEST)
            same = process.returncode == 0 and result_of(run) == whole
        except (subprocess.TimeoutExpired, OSError, ValueError, KeyError) as error:
            with contextlib.suppress(ProcessLookupError):  # also what its group has left, which would disturb others
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            said, same = repr(error).encode(), False
        if same:
            shutil.rmtree(run)
        else:
            bad += 1
            print(f"{run}: code {process.returncode}, another result\n{said.decode(errors='replace')}")
        if undisturbed == MAX_UNDISTURBED:
            print(f"kill_ranks: found no rank to kill in {undisturbed} runs in a row: is {command[0]} lockstep, "
                  "and do its runs take seconds?", file=sys.stderr)
            break
    print(f"{kills} kills in {runs} runs of {options.ranks} ranks: {bad} with another result")
    ordered = sorted(times)
    if times:
        print(f"from a kill to the next new step, {len(times)} times: median {1e3 * statistics.median(times):.0f} ms, "
              f"nine in ten within {1e3 * ordered[len(ordered) * 9 // 10]:.0f} ms, longest {1e3 * ordered[-1]:.0f} ms")
    if bad == 0:
        shutil.rmtree(folder)
    return 1 if bad or kills < options.kills else 0


if __name__ == "__main__":
    sys.exit(main())
