"""A rank that stops, a launcher that dies: the job ends with 86 and names the rank; `doctor` says the same later."""

import os
import shutil
import signal
import time
import unittest

import command
from command import SAVING, children, faults, finish, mpirun, run, state, words

TIMEOUT = 2


@unittest.skipUnless(command.MPI, "LOCKSTEP_MPI=OFF")
class Hang(command.CommandTest):
    def begin(self, flags="", env=None):
        folder = self.folder / "run"
        process = self.start(mpirun(3, SAVING, f"--timeout {TIMEOUT}", flags, "--run-dir", folder), env=env)
        self.wait_until(lambda: len(command.Run(folder).checkpoints) >= 2, process, "checkpoints")
        ranks = children(process.pid)
        self.assertEqual(len(ranks), 3)
        return process, ranks

    def test_a_stopped_rank_is_named(self):
        for backend, rank in (("shared", 2), ("mpi", 0)):
            with self.subTest(backend=backend, rank=rank):
                process, ranks = self.begin(f"--backend {backend}", faults(f"stop:rank={rank},step=103"))
                self.wait_until(lambda: state(ranks[rank]) == "T", process, "rank that is stopped")
                time.sleep(0.5)
                found = run("doctor", self.folder / "run")
                self.assert_ends(found, 1)
                odd = f"(process {ranks[rank]}) is stopped (SIGSTOP)"
                self.assert_says(found.out, [f"rank {rank} on", odd, f"for rank {rank}"], found)
                result = finish(process, TIMEOUT + 12)
                self.assert_ends(result, 86)
                self.assert_says(result.err, ["made no progress for", f"rank {rank} on", odd, "remedy:", "--timeout"],
                                 result)
                self.assert_gone(ranks, result)
                later = run("doctor", self.folder / "run")
                self.assert_ends(later, 1)
                self.assert_says(later.out, ["when the job was ended", odd], later)
                inspected = self.succeed("inspect", self.folder / "run")
                self.assert_says(inspected.out, "not complete (a rank made no progress: code 86)", inspected)
                shutil.rmtree(self.folder / "run")

    def test_ranks_end_with_their_launcher(self):
        process, ranks = self.begin()
        found = run("doctor", self.folder / "run")
        self.assert_ends(found, 0)
        self.assert_says(found.out, ["running", "the ranks make progress"], found)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=20)
        self.assert_gone(ranks, "mpirun was killed")

    def test_a_rank_that_runs_another_program(self):
        job = mpirun(1, SAVING, "--timeout 1 --run-dir", self.folder / "run") + words(": -n 1 sleep 100")
        recovery = [job[0], *words("--mca orte_enable_recovery 1"), *job[1:]]  # mpirun then ignores codes of ranks
        started = [(self.start(argv), code) for argv, code in ((job, 86), (recovery, 1))]
        for process, code in started:
            result = command.finish(process)
            self.assert_ends(result, code)
            self.assert_says(result.err, ["rank 0 waited for 5 s in the start", "the same program", "--timeout"], result)

    def test_a_run_without_a_fault(self):
        made = self.train(command.SMALL, ranks=2)
        result = run("doctor", made.folder)
        self.assert_ends(result, 0)
        for rank in (0, 1):
            self.assertRegex(result.out, rf"\n +{rank} .* ended +the end +5 ", str(result))
        self.assert_refused(run("doctor", self.folder), 65, ["flight", "no flight recorder"])
        names = ["rank-00000", "rank-00001"]
        for damaged in (names[:1], names):
            (made.folder / "flight" / damaged[-1]).write_bytes(bytes(100))
            result = run("doctor", made.folder)
            self.assert_refused(result, 65, [made.folder / "flight", *damaged, "remedy:"])
            self.assertEqual("the end" in result.out, damaged != names, str(result))


if __name__ == "__main__":
    unittest.main()
