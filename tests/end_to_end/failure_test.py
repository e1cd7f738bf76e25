"""Killed ranks, signals and full disks: the job ends soon, and what was saved stays whole."""

import contextlib
import os
import pty
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import command
import files
from command import SAVING, SMALL, SOON, call, children, faults, finish, mpirun, seconds, state, words

USUAL_GRACE = {"OMPI_MCA_odls_base_sigkill_timeout": "1"}  # mpirun's default
# Runs its arguments with stdin as the controlling terminal of their session.
ON_TERMINAL = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"


class Interrupted(command.CommandTest):
    def setUp(self):
        super().setUp()
        self.made = command.Run(self.folder / "run")

    def begin(self, argv, **options):
        """Starts a long job and waits until it has saved a few checkpoints."""
        process = self.start(argv, env=USUAL_GRACE, **options)
        self.wait_until(lambda: len(self.made.checkpoints) >= 3, process, "checkpoints")
        return process

    def assert_kept(self):
        """Every checkpoint is whole, and every line that was recorded can be read."""
        self.assertGreaterEqual(len(self.made.checkpoints), 3)
        for step, path in enumerate(self.made.checkpoints, start=1):
            self.assertEqual(path.name, f"step-{5 * step:08}")
            files.read_safetensors(path / "model.safetensors")
        for step, line in enumerate(self.made.metrics, start=1):
            self.assertEqual(line["step"], step)
        self.assertTrue((self.made.folder / "config.toml").is_file())
        self.assertIn(self.made.summary["status"], ("running", "failed"))  # rank 0 may have had the time to say so

    def job(self, examples=600):
        return mpirun(3, SAVING.replace("--train-limit 600", f"--train-limit {examples}"), "--run-dir", self.made.folder)

    def test_a_killed_rank_ends_the_job(self):
        for rank in (0, 2):
            with self.subTest(rank=rank):
                process = self.begin(self.job())
                ranks = children(process.pid)
                self.assertEqual(len(ranks), 3)
                os.kill(ranks[rank], signal.SIGKILL)
                result = finish(process, SOON)
                self.assertNotEqual(result.code, 0, str(result))
                self.assert_gone(ranks, result)
                self.assert_kept()
                summary = self.made.summary
                inspected = self.succeed("inspect", self.made.folder)
                if summary["status"] == "failed":
                    self.assert_says(inspected.out, ["not complete (failed)", summary["cause"]], result)
                    examined = command.run("doctor", self.made.folder)
                    self.assert_says(examined.out, f"the run failed (86): {summary['cause']}\nrank 0 on", result)
                else:
                    self.assert_says(inspected.out, "not complete (killed, or ended by --timeout)", result)
                shutil.rmtree(self.made.folder)

    def test_a_rank_that_is_killed_in_a_checkpoint_or_an_evaluation(self):
        for rank, phase in ((0, "checkpoint"), (1, "evaluation")):
            with self.subTest(phase=phase):
                result = call(self.job(), SOON, env=faults(f"kill:rank={rank},step=25,phase={phase}"))
                self.assertNotEqual(result.code, 0, str(result))
                self.assertIn(len(self.made.metrics), range(20, 26), str(result))
                self.assert_kept()
                shutil.rmtree(self.made.folder)

    def test_a_run_folder_that_is_removed_or_replaced(self):
        """Noticed at the next checkpoint, or where there is none within a second or two."""
        away = self.folder / "away"

        def move():
            self.made.folder.rename(away)

        def remove():
            move()  # at once
            shutil.rmtree(away)

        def replace():
            move()  # a checkpoint that is being saved may make the folder again
            shutil.copytree(away, self.made.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))

        threads = words(command.binary, SAVING, "--ranks 3 --run-dir", self.made.folder)
        for argv, change in ((self.job(), remove), (threads, remove), (threads, move), (self.job(), replace)):
            with self.subTest(command=argv[0], change=change.__name__):
                process = self.begin(argv)
                change()
                result = finish(process, SOON)
                self.assert_refused(result, 74, [f"{self.made.folder}", "remedy", "leave the folder of a run"], SOON)
                shutil.rmtree(self.made.folder, ignore_errors=True)
                shutil.rmtree(away, ignore_errors=True)
        process = self.start([*threads, "--checkpoint-every", "1000000000"])
        metrics = self.made.folder / "metrics.jsonl"
        self.wait_until(lambda: metrics.exists() and metrics.stat().st_size, process, "metrics")
        metrics.rename(away)
        result = finish(process, SOON)
        self.assert_refused(result, 74, ["metrics.jsonl was removed, moved or replaced", "no checkpoint was saved"], SOON)

    def assert_stopped(self, result, name):
        """The message names the checkpoint that is saved."""
        last = self.made.checkpoints[-1]
        steps = len(self.made.metrics)
        self.assert_says(result.err, [f"stopped by {name} after {steps:,} steps; saved in {last}",
                                      f"continue with `{self.resuming(result)}`"], result)
        self.assertEqual(result.err.count("stopped by"), 1, str(result))
        summary = self.made.summary
        self.assertEqual((summary["status"], summary["exit_code"]), ("stopped", 75), str(result))
        self.assertIn(f"stopped by {name}", summary["cause"])
        self.assert_saved(result)

    def resuming(self, result):
        """The command that continues the run on as many ranks."""
        train = f"{command.binary} train --resume {self.made.folder}"
        if result.argv[0] != "mpirun":
            return f"{train} --ranks 3 --zeros=dense"
        return " ".join(result.argv[:result.argv.index(str(command.binary))]) + f" {train}"

    def assert_saved(self, result):
        """A checkpoint of the last recorded step is saved, from which training continues."""
        steps = len(self.made.metrics)
        self.assertEqual(self.made.checkpoints[-1].name, f"step-{steps:08}", str(result))
        more = self.succeed("train --resume", self.made.folder, "--ranks 2 --resume-with", f"steps={steps + 3}")
        self.assertEqual([line["step"] for line in self.made.metrics], list(range(1, steps + 4)), str(more))
        shutil.rmtree(self.made.folder)

    def test_signals_to_mpirun_save_a_checkpoint(self):
        """Of INT, TERM and HUP mpirun makes a SIGTERM, a second before it kills; its code is then its own.

        For the second before that it reads no output: a rank that prints some 160 lines in it, of short epochs, waits to
        be read, and is killed as it waits.
        """
        for number, name, code in ((signal.SIGTERM, "SIGTERM", None), (signal.SIGUSR1, "SIGUSR1", 75)):
            with self.subTest(signal=number.name):
                process = self.begin(self.job(examples=6000))
                ranks = children(process.pid)
                process.send_signal(number)
                result = finish(process, SOON)
                self.assertIn(result.code, [code] if code else range(1, 256), str(result))
                self.assert_gone(ranks, result)
                self.assert_stopped(result, name)

    def test_a_terminal_that_is_closed_saves_a_checkpoint(self):
        """The kernel sends SIGHUP, and what is printed afterwards fails."""
        threads = words(command.binary, SAVING, "--ranks 3 --run-dir", self.made.folder)
        worlds = [(threads, 75)]
        if command.MPI:
            worlds.append((self.job(examples=6000), 1))  # mpirun's own code
        for argv, code in worlds:
            with self.subTest(command=argv[0]):
                master, terminal = pty.openpty()
                process = self.begin([sys.executable, "-c", ON_TERMINAL, *argv], stdin=terminal, stdout=terminal,
                                     stderr=terminal)
                os.close(terminal)
                ranks = children(process.pid)
                began = time.monotonic()
                os.close(master)
                self.assertEqual(process.wait(timeout=seconds(SOON)), code)
                self.assertLess(time.monotonic() - began, seconds(SOON))
                self.assert_gone(ranks, argv)
                self.assert_saved(argv)

    def test_signals_to_threads_save_a_checkpoint(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            with self.subTest(signal=number.name):
                process = self.begin(words(command.binary, SAVING, "--ranks 3 --zeros dense --run-dir",
                                           self.made.folder))
                process.send_signal(number)
                process.send_signal(number)  # `timeout` sends twice
                result = finish(process, SOON)
                self.assert_ends(result, 75)
                self.assert_stopped(result, number.name)
        process = self.begin(words(command.binary, SAVING, "--ranks 3 --run-dir", self.made.folder))
        process.kill()
        finish(process, SOON)
        self.assert_kept()

    def test_a_reader_that_leaves_and_a_time_limit(self):
        """`lockstep train | head -1`, --max-time, and the end of a Slurm job."""
        argv = words(command.binary, SAVING, "--progress lines --epochs 1000000 --run-dir", self.made.folder)
        process = self.start(argv)
        self.assertTrue(select.select([process.stdout], [], [], seconds(command.LIMIT))[0], "no output")
        process.stdout.readline()
        process.stdout.close()
        process.stdout = None
        self.assertEqual(process.wait(timeout=seconds(SOON)), 75)
        self.assertEqual(self.made.checkpoints[-1].name, f"step-{len(self.made.metrics):08}")
        process.stderr.close()
        both = f"{' '.join(map(str, argv))}-of-both 2>&1 | head -n 3; exit ${{PIPESTATUS[0]}}"
        with open(self.folder / "head", "w") as head:
            self.assertEqual(command.call(["bash", "-c", both], stdout=head).code, 75)
        made = command.Run(f"{self.made.folder}-of-both")
        self.assertEqual(made.checkpoints[-1].name, f"step-{len(made.metrics):08}")
        for limit in ("", "--max-time 00:00:03"):  # in this order: the run keeps its --max-time
            steps = len(self.made.metrics)
            env = {} if limit else {"SLURM_JOB_END_TIME": str(int(time.time()) + 5)}
            result = command.run("train --resume", self.made.folder, "--progress off", limit, env=env)
            self.assert_ends(result, 75)
            self.assertGreater(len(self.made.metrics), steps, str(result))
            source = "time limit, --max-time, after" if limit else "job's time limit, SLURM_JOB_END_TIME, after"
            self.assert_says(result.err, f"stopped before the {source}", result)
            self.assertLess(result.seconds, seconds(5))

    def test_the_recorders_of_another_user(self):
        made = self.train(SMALL)
        flight = made.folder / "flight"
        other = {"user": 65534} if os.geteuid() == 0 else {}
        for path in (self.folder, made.folder):
            path.chmod(0o755)
        flight.chmod(0o700 if other else 0)
        self.addCleanup(flight.chmod, 0o700)
        try:
            result = command.run("doctor", made.folder, **other)
        except PermissionError:
            self.skipTest("no right to become another user, or that one may not execute the command")
        self.assert_refused(result, 65, [f"{flight}: cannot be listed: Permission denied", "the user who ran it"])

    def test_an_end_of_a_slurm_job_that_is_no_time_is_ignored(self):
        now = int(time.time())
        for end, warns in (("", False), ("soon", True), ("-5", True), (now - 3600, True), (now + 3600, False)):
            with self.subTest(end=end):
                result = self.train("--train-limit 64 --test-limit 32 --batch-size 16 --layers 4 --epochs 1",
                                    name=f"end-{end}", env={"SLURM_JOB_END_TIME": str(end)})
                self.assertEqual(len(result.metrics), 4)
                self.assertEqual("SLURM_JOB_END_TIME" in result.result.err, warns, str(result.result))


@unittest.skipUnless(command.MPI, "LOCKSTEP_MPI=OFF")
class Leftovers(command.CommandTest):
    """Segments and session folders of an mpirun that was killed."""

    def begin(self, name):
        """A long job, its ranks, and its files."""
        folder = self.folder / name
        process = self.start(mpirun(2, SAVING, "--run-dir", folder))
        self.wait_until(lambda: command.Run(folder).checkpoints, process, "checkpoints")
        ranks = children(process.pid)
        paths = {line.split()[5] for rank in ranks for line in Path(f"/proc/{rank}/maps").read_text().splitlines()
                 if "/dev/shm/" in line}
        paths = [*map(Path, paths), *Path(tempfile.gettempdir()).glob(f"ompi.*.{os.geteuid()}/pid.{process.pid}")]
        self.assertGreaterEqual(len(paths), 3, paths)
        return process, ranks, paths

    def test_the_next_start_removes_those_of_dead_jobs_alone(self):
        living, _, in_use = self.begin("living")
        killed, ranks, left = self.begin("killed")
        for path in left:  # too young for the jobs of other tests, which run at the same time
            os.utime(path)
        for pid in (killed.pid, *ranks):
            os.kill(pid, signal.SIGKILL)
        killed.communicate(timeout=20)
        self.assert_gone(ranks, "mpirun was killed")
        self.assertEqual([path for path in left if not path.exists()], [])
        for path in (*in_use, *left):
            with contextlib.suppress(FileNotFoundError):  # another test's job was faster
                os.utime(path, (0, 0))
        self.train(SMALL, name="next", ranks=2)
        self.assertEqual([path for path in left if path.exists()], [])
        self.assertEqual([path for path in in_use if not path.exists()], [])
        living.send_signal(signal.SIGUSR1)
        self.assert_ends(finish(living, SOON), 75)


class Faults(command.CommandTest):
    """System calls that fail, by tests/support/faults.c."""

    def setUp(self):
        super().setUp()
        linked = subprocess.run(["ldd", command.binary], check=True, capture_output=True, text=True).stdout
        if "libasan" in linked or "libtsan" in linked or not shutil.which("cc"):
            self.skipTest("no C compiler, or a sanitizer, whose library must be the first to be loaded")
        self.library = self.folder / "faults.so"
        source = command.REPOSITORY / "tests/support/faults.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", self.library, source], check=True)

    def job(self, fault, *args, ranks):
        """A job under mpirun, or of --ranks threads, in which calls fail."""
        preload = f"LD_PRELOAD={self.library}"
        if ranks == "mpirun":
            return mpirun(3, *args, options=f"-x {preload} -x {fault}")
        return ["env", preload, fault, *words(command.binary, *args, "--ranks", ranks)]

    def test_threads_that_cannot_start(self):
        """As below `ulimit -u`: those of ranks, of products, and those that watch and that read ahead."""
        train = words("train", SMALL, "--threads 2 --run-dir", self.folder / "run")
        for number, purpose in ((1, "for rank 0 of 2"), (2, "for rank 1 of 2"), (3, "without progress"),
                                (5, "without progress"), (7, "for matrix products"), (9, "reads data ahead")):
            with self.subTest(thread=number):
                result = call(self.job(f"FAULT_THREAD={number}", *train, ranks=2))
                self.assert_refused(result, 2, ["cannot start a thread", purpose, "ulimit -u", "pids.max"], SOON)
        shutil.rmtree(self.folder / "run")
        for number, purpose in ((2, "without progress"), (4, "for matrix products"), (5, "reads data ahead")):
            with self.subTest(mpirun_thread=number):
                result = call(self.job(f"FAULT_THREAD={number}", *train, ranks="mpirun"))
                self.assert_refused(result, 2, ["cannot start a thread", purpose, "ulimit -u"], SOON)
        result = call(self.job("FAULT_THREAD=1", *train, ranks="mpirun"))  # no rank can ask the others yet
        self.assert_ends(result, 2)
        self.assert_says(result.err, ["cannot start a thread that limits the time of the start", "ulimit -u"], result)

    def test_a_checkpoint_that_the_disk_refuses(self):
        """EIO, in a write or when the data is synced: the checkpoint before it stays, and nothing of the new one."""
        folder = self.folder / "run"
        train = words("train", SMALL.replace("--epochs 1", "--epochs 3"), "--checkpoint-every 5 --run-dir", folder)
        for call_name, ranks in (("write", 2), ("fsync-file", 2), ("fsync-folder", 2), ("write", "mpirun"),
                                 ("fsync-file", "mpirun"), ("fsync-folder", "mpirun")):
            with self.subTest(call=call_name, ranks=ranks):
                result = call(self.job(f"FAULT_EIO={call_name}:/.step-00000010.tmp", *train, ranks=ranks))
                self.assert_refused(result, 74, [folder / "checkpoints", "Input/output error", "remedy"], SOON)
                made = command.Run(folder)
                self.assertEqual(os.listdir(folder / "checkpoints"), ["step-00000005"])
                files.read_safetensors(made.checkpoints[0] / "model.safetensors")
                self.assertGreaterEqual(len(made.metrics), 10)
                more = self.succeed("train --resume", folder, ranks=2)
                self.assertEqual(len(made.metrics), made.summary["steps"], str(more))
                shutil.rmtree(folder)

    def test_a_continuation_whose_folder_the_disk_refuses(self):
        """The same command continues, whatever part of the folder is there; a run of its own is refused."""
        first = self.train(SMALL, "--checkpoint-every 2", name="first")
        folder = self.folder / "again"
        again = words("train --resume", first.checkpoints[0], "--run-dir", folder)
        for text in ("/.network.json", "/.config.toml"):
            with self.subTest(text):
                result = call(self.job(f"FAULT_EIO=write:{text}", *again, ranks=2))
                self.assert_refused(result, 74, [folder, "Input/output error"], SOON)
                if (folder / "metrics.jsonl").exists():
                    self.assert_refused(command.run("train", SMALL, "--run-dir", folder), 2, "again: holds a run already")
                self.succeed(*again, ranks=2)
                self.assertEqual(command.Run(folder).summary["weights_hash"], first.summary["weights_hash"])
                self.assertEqual(len(command.Run(folder).metrics), len(first.metrics))
                shutil.rmtree(folder)

    @unittest.skipUnless(command.MPI, "LOCKSTEP_MPI=OFF")
    def test_a_rank_that_stops_while_it_opens_a_file(self):
        """Before training has a recorder in the run's folder, and in evaluate, predict and doctor, which have none."""
        made = self.train(SMALL, ranks=2)
        data = files.write_set(self.folder / "data")
        saved, images = "/network.json", f"/{files.TRAIN[0]}"
        for jobs in (((1, saved, ("evaluate", made.folder, "--data synthetic")), (0, saved, ("train --resume", made.folder))),
                     ((1, saved, ("predict", made.folder, "--data synthetic")), (0, images, ("doctor --data", data)))):
            started = [self.start(self.job(f"FAULT_STOP={rank}:{file}", *job, "--timeout 1", ranks="mpirun"))
                       for rank, file, job in jobs]
            for (rank, _, job), process in zip(jobs, started):
                with self.subTest(job=job):
                    result = finish(process)
                    self.assert_ends(result, 86)
                    self.assert_says(result.err, [f"rank {1 - rank} made no progress for", "the start", "it waits for another",
                                                  "look for a rank that is stopped", "--timeout"], result)

    def test_signals_before_training_end_it_at_once(self):
        """The process is stopped as it opens its data, and the signal waits for it."""
        data = files.write_set(self.folder / "data")
        folder = self.folder / "run"
        argv = ["env", f"LD_PRELOAD={self.library}", f"FAULT_STOP=0:/{files.TRAIN[0]}", "OMPI_COMM_WORLD_RANK=0",
                *words(command.binary, "train --layers 4 --ranks 2 --data", data, "--run-dir", folder)]
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            with self.subTest(signal=number.name):
                process = self.start(argv)
                self.wait_until(lambda: state(process.pid) == "T", process, "process that is stopped")
                process.send_signal(number)
                process.send_signal(signal.SIGCONT)
                result = finish(process, SOON)
                self.assert_ends(result, -number)  # 128 + number for a shell
                self.assertFalse(folder.exists(), str(result))

    def test_a_run_that_another_job_continues_meanwhile(self):
        """While the first job opens its data: it has found a checkpoint that is no longer the last one."""
        data = files.write_set(self.folder / "data")
        made = self.train("--layers 4 --batch-size 5 --steps 3 --data", data)
        argv = ["env", f"LD_PRELOAD={self.library}", f"FAULT_STOP=0:/{files.TRAIN[0]}", "OMPI_COMM_WORLD_RANK=0",
                *words(command.binary, "train --ranks 2 --resume-with steps=6 --resume", made.folder)]
        process = self.start(argv)
        self.wait_until(lambda: state(process.pid) == "T", process, "process that is stopped")
        self.succeed("train --resume-with steps=5 --resume", made.folder)
        process.send_signal(signal.SIGCONT)
        self.assert_refused(finish(process), 2, [made.folder, "continued this run meanwhile, to step 5", "start this job again"])
        self.assertEqual((made.summary["status"], len(made.metrics)), ("finished", 5))

    def test_a_checkpoint_without_a_thread(self):
        """Training waits for it instead."""
        plain = self.train(SMALL, "--checkpoint-every 5", name="plain", threads=2)
        train = words("train", SMALL, "--checkpoint-every 5 --run-dir", self.folder / "run")
        result = call(self.job("FAULT_THREAD=9", *train, ranks=2))
        self.assert_ends(result, 0)
        made = command.Run(self.folder / "run")
        self.assertEqual([path.name for path in made.checkpoints], [path.name for path in plain.checkpoints])
        self.assertEqual(made.summary["weights_hash"], plain.summary["weights_hash"])


class Injected(command.CommandTest):
    """Faults of one rank: of memory, of arithmetic, and a slow one."""

    def refused(self, fault, *flags, ranks=3):
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        return command.run("train", SMALL, "--run-dir", self.folder / "run", *flags, threads=ranks, env=faults(fault))

    def test_a_loss_that_is_not_finite(self):
        for flags in ("", "--reduction allreduce"):
            result = self.refused("nan:rank=1,step=3", flags)
            self.assert_refused(result, 76, ["step 3", "loss is not finite", "remedy"])

    def test_a_flipped_weight(self):
        """Found in the step in which it is flipped, or 16 steps later at most."""
        result = self.refused("flip-weight:rank=1,step=3,weight=7", "--sentinel-steps 1")
        self.assert_refused(result, 70, ["rank 1", "before step 3"])
        fault = "flip-weight:rank=2,step=23,weight=7,times=always"
        result = self.refused(fault, "--epochs 9 --checkpoint-every 10 --steps 40")
        self.assert_refused(result, 70, ["rank 2", "before step 32", "2 checkpoints removed", "after step 15"])
        run = command.Run(self.folder / "run")
        self.assertEqual([path.name for path in run.checkpoints], ["step-00000010"])
        self.assert_ends(command.run("train", "--resume", run.folder, threads=2), 0)
        plain = self.train(SMALL, "--epochs 9 --steps 40", name="plain")
        self.assertEqual(run.summary["weights_hash"], plain.summary["weights_hash"])

    def test_a_flipped_weight_in_a_mesh(self):
        """Ranks of the other weights remove checkpoints, too."""
        fault = "flip-weight:rank=3,step=23,weight=7,times=always"
        mesh = "--mesh batch=2,model=2 --epochs 9 --checkpoint-every 10 --steps 40"
        result = self.refused(fault, mesh, ranks=4)
        self.assert_refused(result, 70, ["before step 32", "2 checkpoints removed", "after step 15"])
        run = command.Run(self.folder / "run")
        self.assertEqual([path.name for path in run.checkpoints], ["step-00000010"])
        for flags in ("--on-nonfinite skip", "--clip-norm 1", "--optimizer lamb"):  # collective over "model"
            with self.subTest(flags=flags):
                shutil.rmtree(run.folder)
                result = self.refused("flip-weight:rank=2,step=3,weight=0",
                                      f"--mesh batch=2,model=2 --sentinel-steps 1 {flags}", ranks=4)
                self.assert_refused(result, 70, ["before step 3"])

    def test_a_flipped_result(self):
        """Step 3 audits leaf 1, the rows of rank 1."""
        flags = "--audit-every 1 --leaf 64"
        result = self.refused("flip-product:rank=1,step=3", flags, ranks=2)
        self.assert_refused(result, 70, ["audit of step 3", "leaf 1", "rank 1"])
        plain = self.train(SMALL, name="plain")
        made = self.train(SMALL, name="other", threads=2, env=faults("flip-product:rank=1,step=3"))
        self.assertNotEqual(made.summary["weights_hash"], plain.summary["weights_hash"])

    def test_a_slow_rank(self):
        """For more than 5 seconds."""
        made = self.train(SMALL, "--epochs 1000 --steps 120", threads=2, env=faults("slow:rank=1,step=11"))
        said = f"rank 1 on {socket.gethostname()} is slow: "
        self.assert_says(made.result.err, [said, "the median of 2 ranks is", "remedy", "lockstep doctor"], made.result)
        self.assertEqual(made.result.err.count("is slow"), 1, str(made.result))
        fast, late = made.summary["seconds_before_exchange"]
        self.assertGreater(late, max(0.05, 2 * fast))

    def test_leaves_move_away_from_a_slow_rank(self):
        made = self.train(SMALL, "--epochs 5 --balance --checkpoint-every 7 --keep 5", threads=3,
                          env=faults("slow:rank=1,step=1"))
        shares = [line.split()[-3:] for line in made.result.out.splitlines() if line.startswith("balance: leaves")]
        self.assertEqual(shares[0][1], "1", str(made.result))
        self.assertEqual(sum(made.summary["shares"]), 8)
        again = self.train(SMALL, "--epochs 5", name="again")
        self.assertEqual(made.summary["weights_hash"], again.summary["weights_hash"])
        made.cut_back(21)  # in the last epoch
        self.succeed("train --balance --resume", made.folder, threads=3)
        self.assertEqual(made.summary["shares"], [3, 3, 2])  # with which a resumed run begins
        self.assertEqual(made.summary["weights_hash"], again.summary["weights_hash"])

    def test_faults_that_are_not_valid(self):
        for fault, reason in (("kil:rank=0,step=1", "not one of"), ("kill:rank=3,step=1", "there are 3 ranks"),
                              ("flip-weight:rank=0,step=1,weight=1000000000", "stored weights")):
            result = self.refused(fault)
            self.assert_refused(result, 2, ["LOCKSTEP_FAULT", reason, "remedy"])


class FullDisk(command.CommandTest):
    """Tests that mount a tiny disk skip where that is not allowed."""

    MOUNT = 'mount -t tmpfs -o size="$0" lockstep-test "$1" && shift && exec "$@"'

    def setUp(self):
        super().setUp()
        unshare = words("unshare --mount", "" if os.geteuid() == 0 else "--map-root-user")
        self.mount = [*unshare, "sh", "-c", self.MOUNT]
        self.disk = self.folder / "disk"
        self.disk.mkdir()

    def require_tiny_disk(self):
        tried = subprocess.run([*self.mount, "64k", self.disk, "true"], check=False,
                               capture_output=True, text=True)
        if tried.returncode != 0:
            self.skipTest(f"no tmpfs can be mounted here: {tried.stderr.strip()}")

    def on_tiny_disk(self, size, argv):
        """The command in a mount namespace of its own, where self.disk is a tiny disk."""
        env = USUAL_GRACE | {"TMPDIR": str(self.folder)}  # mpirun's, whose user may be another here
        return call([*self.mount, size, str(self.disk), *argv], limit=2 * SOON, env=env)

    def each_world(self, *args):
        return {"processes": mpirun(2, *args), "threads": words(command.binary, *args, "--ranks 3"),
                "alone": words(command.binary, *args)}.items()

    def test_a_checkpoint_that_does_not_fit(self):
        self.require_tiny_disk()
        train = ("train", SMALL, "--layers 700,500 --run-dir", self.disk / "run")
        for world, argv in self.each_world(*train):
            with self.subTest(world=world):
                result = self.on_tiny_disk("2m", argv)
                self.assert_refused(result, 74, [self.disk / "run/checkpoints", "No space",
                                                 "model.safetensors", "remedy"], SOON)

    def test_metrics_that_do_not_fit(self):
        self.require_tiny_disk()
        train = ("train --train-limit 60 --test-limit 10 --layers 1 --batch-size 1 --epochs 99 "
                 "--run-dir", self.disk / "run")
        for world, argv in self.each_world(*train):
            with self.subTest(world=world):
                result = self.on_tiny_disk("68k", argv)
                self.assert_refused(result, 74, ["metrics.jsonl", "No space", "remedy"], SOON)

    def test_shared_memory_files_that_do_not_fit(self):
        """/dev/shm is where Open MPI has its buffers; ranks of a host share other memory.

        Open MPI's own message about it is turned off: mpirun 4.1 forwards a message of a rank in
        two threads, of which one may free what the other copies, and then dies of SIGSEGV.
        """
        self.require_tiny_disk()
        env = USUAL_GRACE | {"TMPDIR": str(self.folder), "PMIX_MCA_plog": "^default"}
        mount = [*self.mount, "64k", "/dev/shm"]
        for flags in ("", "--backend mpi"):
            with self.subTest(flags=flags):
                run_dir = self.folder / f"run{len(flags)}"
                result = call([*mount, *mpirun(3, "train", SMALL, flags, "--run-dir", run_dir)], env=env)
                self.assert_ends(result, 0)
                if flags:
                    self.assert_says(result.err, ["/dev/shm has 65.5 kB free", "remedy"], result)
                self.assertEqual(command.Run(run_dir).summary["ranks"], 3)

    def test_a_file_size_limit(self):
        """As a full disk, without mounting anything: writes beyond the limit fail."""
        argv = words(command.binary, "train", SMALL, "--ranks 3 --layers 700,500 --run-dir",
                     self.folder / "run")
        result = call(["prlimit", "--fsize=1000000", *argv])
        self.assert_refused(result, 74, ["model.safetensors", "remedy"], SOON)
        self.assertEqual(list((self.folder / "run/checkpoints").glob("step-*")), [])

    def test_generate(self):
        self.require_tiny_disk()
        argv = words(command.binary, "generate", self.disk / "set")
        result = self.on_tiny_disk("1m", argv)
        self.assert_refused(result, 74, ["train-images", "No space", "remedy"])


if __name__ == "__main__":
    unittest.main()
