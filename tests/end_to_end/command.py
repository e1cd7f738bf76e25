"""Runs the `lockstep` command as a person would: alone, with ranks as threads, or under mpirun."""

import functools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TIME_FACTOR = float(os.environ.get("LOCKSTEP_TIME_FACTOR", "1"))
MPI = os.environ.get("LOCKSTEP_MPI", "ON") != "OFF"  # as the build under test was configured
FAULTS = os.environ.get("LOCKSTEP_FAULT_INJECTION", "ON") != "OFF"
LIMIT = 60.0  # seconds for any one command, before the factor
SMALL = "--train-limit 600 --test-limit 200 --layers 32 --epochs 1"
LONG = "train --train-limit 600 --test-limit 200 --layers 32 --epochs 1000000"
SAVING = f"{LONG} --checkpoint-every 5 --keep 1000000"
SOON = 10  # seconds in which a job must end

# Once a rank has ended with another code than 0, mpirun kills the others after a second of grace;
# every refusal would take that second.
MPIRUN = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
          "OMPI_MCA_odls_base_sigkill_timeout": "0"}

binary = REPOSITORY / "build/release/lockstep"  # run.py sets it


def seconds(limit):
    """A time limit for the build under test: sanitizers are slower."""
    return limit * TIME_FACTOR


def words(*args):
    """Strings are split at spaces; paths and numbers stay whole."""
    return [word for arg in args
            for word in (arg.split() if isinstance(arg, str) else [str(arg)])]


def mpirun(ranks, *args, program=None, options=""):
    """The words of one mpirun; several of them joined by ":" are one job."""
    if not MPI:
        raise unittest.SkipTest("the build under test has no MPI (LOCKSTEP_MPI=OFF)")
    return words("mpirun --oversubscribe", f"-n {ranks}", options, Path(program or binary), *args)


def faults(*texts):
    """The environment of a command that fails in these ways: see apps/fault_injection.hpp."""
    if not FAULTS:
        raise unittest.SkipTest("the build under test injects no faults (LOCKSTEP_FAULT_INJECTION=OFF)")
    return {"LOCKSTEP_FAULT": ";".join(texts)}


def environment(extra=None):
    """This process's, without NO_COLOR and the variables of a launcher that may have started the tests."""
    traces = ("OMPI_COMM_", "PMI_", "PMIX_", "SLURM_", "NO_COLOR")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(traces)}
    return kept | MPIRUN | (extra or {})


@dataclass
class Result:
    """What a command left behind."""
    argv: list
    code: int
    out: str
    err: str
    seconds: float

    @property
    def errors(self):
        return [line for line in self.err.splitlines() if line.startswith("lockstep: error:")]

    def __str__(self):
        return (f"\n$ {' '.join(self.argv)}\n{self.out}--- stderr:\n{self.err}"
                f"--- code {self.code} after {self.seconds:.1f} s")


def start(argv, env=None, cwd=None, **options):
    """Starts a command and returns at once."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen(argv, env=environment(env), cwd=cwd, start_new_session=True, **pipes)


def stop(process):
    """Ends a command that hangs; mpirun takes its ranks with it."""
    process.terminate()
    try:
        return process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate(timeout=10)


def finish(process, limit=LIMIT):
    """Waits for a started command; one that takes longer than the limit is a failure."""
    began = time.monotonic()
    try:
        output, late = process.communicate(timeout=seconds(limit)), False
    except subprocess.TimeoutExpired:
        output, late = stop(process), True
    out, err = ((text or b"").decode(errors="replace").replace("\r\n", "\n") for text in output)
    result = Result(process.args, process.returncode, out, err, time.monotonic() - began)
    if late:
        raise AssertionError(f"still running after {seconds(limit):.0f} s: {result}")
    return result


def call(argv, limit=LIMIT, **options):
    return finish(start(argv, **options), limit)


def run(*args, ranks=None, threads=None, **options):
    """Runs `lockstep ARGS`: under mpirun with `ranks`, or with `threads` as its --ranks."""
    if threads:
        args += (f"--ranks {threads}",)
    return call(mpirun(ranks, *args) if ranks else words(binary, *args), **options)


def rank_of(pid):
    """The rank that mpirun gave a process; -1 without one."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # ended meanwhile
        return -1
    name = b"OMPI_COMM_WORLD_RANK="
    return next((int(line.removeprefix(name)) for line in variables if line.startswith(name)), -1)


def children(pid, program=None):
    """The processes that `pid` started, and that still run the command or `program`, in the order of their ranks."""
    wanted = (program or binary.name)[:15]
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = path.read_text().rsplit(")", 1)
        except OSError:  # ended meanwhile
            continue
        its_state, parent = rest.split()[:2]
        if its_state != "Z" and int(parent) == pid and name.endswith(f"({wanted}"):
            found.append(int(path.parent.name))
    return sorted(found, key=lambda child: (rank_of(child), child))


def state(pid):
    """The letter of a process's state: T where it is stopped, X where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "X"


def alive(pid):
    return state(pid) not in "ZX"


def without_times(lines):
    """Recorded steps or epochs without the fields that differ from run to run."""
    return [{name: value for name, value in line.items() if name not in ("seconds", "examples_per_second")}
            for line in lines]


def step_of(checkpoint):
    return int(checkpoint.name.removeprefix("step-"))


class Run:
    """A run directory, as its files say."""

    def __init__(self, folder, result=None):
        self.folder = Path(folder)
        self.result = result

    @property
    def summary(self):
        return json.loads((self.folder / "summary.json").read_text())

    @property
    def metrics(self):
        return self.lines("metrics.jsonl")

    def lines(self, name):
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    @property
    def losses(self):
        return [line["loss"] for line in self.metrics]

    @property
    def checkpoints(self):
        return sorted((self.folder / "checkpoints").glob("step-*"))

    def cut_back(self, step):
        """Removes the summary and the checkpoints after this step, as if the run had been killed. The records keep
        later lines, which a resume drops."""
        for path in self.checkpoints:
            if step_of(path) > step:
                shutil.rmtree(path)
        (self.folder / "summary.json").unlink()


@functools.cache
def trained_once(*args, **options):
    """The one run of these flags that tests share; they only read its folder."""
    folder = Path(tempfile.mkdtemp(prefix="lockstep-test-"))
    unittest.addModuleCleanup(shutil.rmtree, folder, ignore_errors=True)
    result = run("train", *args, "--run-dir", folder / "run", **options)
    if result.code != 0 or "Sanitizer" in result.err:
        raise AssertionError(str(result))
    return Run(folder / "run", result)


class CommandTest(unittest.TestCase):
    """A test with a folder of its own, and assertions that show the whole command."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="lockstep-test-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def assert_ends(self, result, code):
        self.assertEqual(result.code, code, f"expected code {code}: {result}")
        self.assertNotIn("Sanitizer", result.err, str(result))

    def assert_says(self, text, needles, result):
        """Each needle stands in the text, in either case."""
        for needle in [needles] if isinstance(needles, str) else needles:
            self.assertIn(str(needle).lower(), text.lower(), f"no '{needle}' in: {result}")

    def assert_refused(self, result, code, needles=(), limit=20):
        """The documented code, soon, and one message however many ranks there are."""
        self.assert_ends(result, code)
        self.assertEqual(len(result.errors), 1, f"expected one error line: {result}")
        self.assert_says(result.err, needles, result)
        self.assertLess(result.seconds, seconds(limit), str(result))

    def assert_gone(self, ranks, result):
        """mpirun may return a moment before the kernel has ended the ranks it killed."""
        end = time.monotonic() + seconds(SOON)
        while any(map(alive, ranks)) and time.monotonic() < end:
            time.sleep(0.02)
        self.assertFalse(any(map(alive, ranks)), str(result))

    def start(self, argv, **options):
        """A command that is stopped at the end of the test if it has not ended by then."""
        process = start(argv, **options)
        self.addCleanup(lambda: process.poll() is None and stop(process))
        return process

    def wait_until(self, condition, process, what):
        """Fails if the process ends first, or if `what` takes longer than LIMIT."""
        end = time.monotonic() + seconds(LIMIT)
        while True:
            ended = process.poll() is not None
            if condition():
                return
            if ended:
                self.fail(f"no {what}: {finish(process)}")
            if time.monotonic() > end:
                process.terminate()
                self.fail(f"no {what} in {seconds(LIMIT):.0f} s: {finish(process, SOON)}")
            time.sleep(0.005)

    def succeed(self, *args, **options):
        result = run(*args, **options)
        self.assert_ends(result, 0)
        return result

    def train(self, *args, name="run", **options):
        """A run of `lockstep train` that must succeed, in the folder `name`."""
        folder = self.folder / name
        return Run(folder, self.succeed("train", *args, "--run-dir", folder, **options))

    def write_predictions(self, *args, name="predictions.csv", **options):
        """The file `name` that `lockstep predict` writes, without one of an earlier call."""
        output = self.folder / name
        output.unlink(missing_ok=True)
        self.succeed("predict", *args, "--output", output, **options)
        return output
