"""Training continued after a kill: the same checkpoints, and the same records, as if nothing had happened."""

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import time
import unittest

import command
import files
from command import children, faults, finish, mpirun, run, step_of, without_times, words
from plan_test import write_split

JOB = "--train-limit 600 --test-limit 200 --layers 32 --batch-size 20 --epochs 2 --checkpoint-every 7 --keep 1000"
NAMES = ("model.safetensors", "optimizer.safetensors", "network.json", "state.json", "manifest.json")


class Resume(command.CommandTest):
    def whole(self, job=JOB):
        return self.train(job, name="whole")

    def resume(self, *args, name="run", **options):
        return self.train("--resume auto", *args, name=name, **options)

    def assert_same(self, whole, parts, later_than=0):
        """The checkpoints of `parts` after a step have the bytes of those of `whole`; the records are complete."""
        for path in parts.checkpoints:
            if step_of(path) < later_than:
                continue
            for name in NAMES:
                self.assertEqual((path / name).read_bytes(),
                                 (whole.folder / "checkpoints" / path.name / name).read_bytes(), path / name)
        for name in ("metrics.jsonl", "epochs.jsonl"):
            self.assertEqual(without_times(parts.lines(name)), without_times(whole.lines(name)), name)
        self.assertEqual(parts.summary["weights_hash"], whole.summary["weights_hash"])
        self.assertEqual(without_times(parts.summary["epochs"]), without_times(whole.summary["epochs"]))

    def copy(self, source, name="run", *, last):
        """A copy of a run that was killed after its checkpoint of step `last`."""
        copied = command.Run(shutil.copytree(source.folder, self.folder / name))
        copied.cut_back(last)
        return copied

    @unittest.skipUnless(command.MPI, "LOCKSTEP_MPI=OFF")
    def test_killed_at_random_and_continued_on_other_ranks(self):
        job = JOB.replace("--epochs 2", "--epochs 8")  # more than one start trains before it is killed
        whole = self.whole(job)
        folder = self.folder / "run"
        chance = random.Random(1)
        kills = 0
        for ranks in (3, 1, 2, 5, 8, 3, 1, 2):
            arguments = words("train", job, "--resume auto --run-dir", folder)
            argv = mpirun(ranks, *arguments) if ranks > 1 else words(command.binary, *arguments)
            process = self.start(argv)
            before = len(command.Run(folder).checkpoints) if folder.exists() else 0
            self.wait_until(lambda: process.poll() is not None or len(command.Run(folder).checkpoints) > before,
                            process, "further checkpoint")
            processes = [process.pid, *(children(process.pid) if ranks > 1 else ())]
            time.sleep(chance.uniform(0, 0.01))
            if process.poll() is None:
                for pid in processes:  # launcher and ranks, as when the power fails
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                kills += 1
            process.communicate(timeout=20)
            with open(folder / ".lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # ranks end some moments after their launcher
        self.assertGreaterEqual(kills, 4)
        parts = self.resume(job, threads=4)
        self.assert_same(whole, parts)
        left = [path for path in (folder / "checkpoints").iterdir() if path.name.startswith(".")]
        self.assertEqual(left, [])

    def test_from_every_checkpoint(self):
        whole = self.whole()
        for number, step in enumerate((7, 28, 35, 56, 60)):
            with self.subTest(step=step):
                parts = self.copy(whole, f"from-{step}", last=step)
                made = self.resume(JOB, name=parts.folder.name, threads=1 + number)
                self.assert_same(whole, made)
                if step < 60:
                    self.assertIn(f"step-{step:08}", made.summary["resumed_from"])

    def test_widths_with_padding(self):
        """A rank's moments are several ranges, which are moved within the block they are read into."""
        for layers, rank_counts in (("300,300,300,300,300", (2,)), ("1000,1000,1000", (2, 3))):
            job = f"--train-limit 300 --test-limit 20 --epochs 1 --layers {layers} --checkpoint-every 1"
            whole = self.train(job, name=f"whole-{layers}", threads=2)
            for threads in rank_counts:
                with self.subTest(layers=layers, threads=threads):
                    parts = self.copy(whole, f"from-{layers}-{threads}", last=1)
                    self.assert_same(whole, self.resume(job, name=parts.folder.name, threads=threads))

    def test_settings_come_from_the_run(self):
        whole = self.whole()
        self.copy(whole, last=28)
        # Without a flag of JOB: they are the run's. The data stays where config.toml says, and so do micro-batches.
        config = self.folder / "run/config.toml"
        config.write_text(config.read_text().replace('micro-batch = "none"', "micro-batch = 8"))
        made = run("train --resume", self.folder / "run", threads=2)
        self.assert_ends(made, 0)
        self.assert_says(made.out, ["resume", "step-00000028, after 28 steps", "canonical, by partial sums"], made)
        self.assertIn("micro-batch = 8", config.read_text())
        self.assert_same(whole, command.Run(self.folder / "run"))
        again = run("train --resume", self.folder / "run", threads=2)
        self.assert_ends(again, 0)
        self.assert_says(again.out, ["complete after 60 steps"], again)
        elsewhere = run("train --resume", whole.folder, "--run-dir", self.folder / "elsewhere")
        self.assert_says(elsewhere.out, ["nothing is left to train"], elsewhere)
        self.assertFalse((self.folder / "elsewhere").exists())
        self.assert_same(whole, command.Run(self.folder / "run"))

    def test_settings_come_from_a_run_without_a_checkpoint(self):
        base = self.train(JOB, name="base")
        whole = self.train(JOB, "--seed 5 --init", base.folder, name="whole")
        parts = self.copy(whole, last=0)
        made = self.resume(threads=2)
        self.assert_says(made.result.out, ["has no valid checkpoint", f"{base.folder}/checkpoints/"], made.result)
        self.assert_same(whole, made)
        parts.cut_back(0)
        longer = self.resume("--epochs 3")
        self.assertEqual(longer.summary["steps"], 90)
        self.assertEqual(longer.losses[0], whole.losses[0])

    def test_what_allreduce_depends_on_comes_from_a_run_without_a_checkpoint(self):
        run = self.train(JOB, "--reduction allreduce --threads 2 --zeros dense", name="run")
        run.cut_back(0)
        config = (run.folder / "config.toml").read_text()
        self.resume()
        self.assertEqual((run.folder / "config.toml").read_text(), config)

    def test_only_a_finished_run_is_complete(self):
        """The last checkpoint is of the last step, but the run ended before its evaluation was recorded."""
        whole = self.whole()
        for status in ("running", "failed", "stopped", None):
            with self.subTest(status=status):
                parts = self.copy(whole, f"run-{status}", last=60)
                summary = {"status": status, "epochs": []} if status else []
                (parts.folder / "summary.json").write_text(json.dumps(summary))
                self.assert_same(whole, self.resume(JOB, name=parts.folder.name))

    def test_the_summary_of_a_run_that_is_trained(self):
        folder = self.folder / "run"
        process = self.start(words(command.binary, "train", JOB.replace("--epochs 2", "--epochs 100000"), "--run-dir",
                                   folder))
        self.wait_until(lambda: (folder / "summary.json").exists() and len(command.Run(folder).summary["epochs"]) >= 2,
                        process, "second epoch")
        for _ in range(100):  # renewed atomically
            self.assertEqual(command.Run(folder).summary["status"], "running")
        self.assert_says(run("inspect", folder).out, "not complete (running)", "inspect")
        process.kill()
        process.communicate()
        self.assertEqual(command.Run(folder).summary["status"], "running")
        self.assert_says(run("inspect", folder).out, "not complete (killed, or ended by --timeout)", "inspect")

    def test_into_another_folder(self):
        whole = self.whole()
        parts = self.copy(whole, last=42)
        made = self.train(JOB, "--resume", parts.folder / "checkpoints" / "step-00000021", name="other")
        self.assert_same(whole, made)
        for resume in ("", f"--resume {parts.folder}", f"--resume {parts.folder} --dry-run"):
            refused = run("train", JOB, resume, "--run-dir", whole.folder)
            self.assert_refused(refused, 2, [whole.folder, "holds a run already", f"--resume {whole.folder}"])
            self.assertEqual(refused.out, "", str(refused))
        shutil.copytree(parts.folder / "checkpoints" / "step-00000021", self.folder / "step-00000021")
        alone = self.train("--resume step-00000021 --checkpoint-every 7", name="alone", cwd=self.folder)  # without the records before
        self.assert_says(alone.result.err, ["records 0 of the 21 steps before the checkpoint"], alone.result)
        self.assertEqual(without_times(alone.metrics), without_times(whole.metrics)[21:])
        metrics = alone.folder / "metrics.jsonl"  # of steps 22 to 60; one of them is damaged
        lines = metrics.read_bytes().splitlines(keepends=True)
        metrics.write_bytes(b"".join(lines[:3] + [b"\0" * 40 + b"\n"] + lines[4:]))
        alone.cut_back(49)
        again = self.succeed("train --resume", alone.folder)
        self.assert_says(again.err, [f"{metrics} records "], again)
        steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
        self.assertEqual(steps, [step for step in range(22, 61) if step != 25])
        emptied = self.folder / "emptied"
        shutil.copytree(parts.folder, emptied)
        (emptied / "epochs.jsonl").write_text("")
        result = self.succeed("train", JOB, "--resume", emptied)
        self.assert_says(result.err, [f"{emptied}/epochs.jsonl records 0 of the 1 epoch before"], result)
        epochs = parts.folder / "epochs.jsonl"
        epochs.write_bytes(b"\xff" + epochs.read_bytes()[1:])
        damaged = run("train", JOB, "--resume", parts.folder)
        self.assert_refused(damaged, 65, [f"{epochs}:1: ", "remove it"])
        refused = run("train", JOB, "--resume", parts.folder / "checkpoints" / "step-00000021")
        self.assert_refused(refused, 2, ["step-00000021", "later checkpoint", "step-00000042", "--run-dir"])

    def test_killed_in_another_folder_before_the_first_checkpoint(self):
        """It goes on with its own settings, from a copy of the checkpoint that it began with."""
        first = self.train(JOB, "--steps 35", name="first")
        alone = shutil.copytree(first.checkpoints[-1], self.folder / "step-00000035")
        change = "--checkpoint-every end --resume-with steps=none --resume-with learning-rate=0.05"
        whole = self.train(change, "--resume", first.folder, name="whole")
        killed = run("train", change, "--resume", first.folder, "--run-dir", self.folder / "run",
                     env=faults("kill:rank=0,step=40"))
        self.assert_ends(killed, -signal.SIGKILL)
        self.assert_same(whole, self.resume())
        change += f" --train-limit 600 --test-limit 200 --resume {alone} --run-dir {self.folder / 'other'}"
        self.assert_ends(run("train", change, env=faults("kill:rank=0,step=40")), -signal.SIGKILL)
        self.assertEqual(self.resume(name="other").summary["weights_hash"], whole.summary["weights_hash"])

    def test_a_stop_before_the_first_step_in_another_folder(self):
        """In the evaluation of the last epoch, where the folder has only the checkpoint that it began with."""
        first = self.train(JOB, name="first")
        made = command.Run(self.folder / "run")
        stopped = run("train --resume", first.folder, "--run-dir", made.folder, "--resume-with epochs=3 --max-time 1")
        self.assert_ends(stopped, 75)
        self.assert_says(stopped.err, ["before the time limit", "after 60 steps", "step-00000060"], stopped)
        self.assertEqual([path.name for path in made.checkpoints], ["step-00000060"])
        self.assert_ends(run("train --resume", made.folder, "--max-time none"), 0)
        whole = self.train(JOB.replace("--epochs 2", "--epochs 3"), name="whole")
        self.assertEqual(made.summary["weights_hash"], whole.summary["weights_hash"])

    def test_other_settings_are_refused_by_name_or_meant(self):
        whole = self.whole()
        parts = self.copy(whole, last=28)
        cases = {"--batch-size 32": ["batch-size is 32", "with 20", "leave batch-size out"],
                 "--learning-rate 0.1": ["learning-rate", "--resume-with learning-rate=VALUE"],
                 "--seed 3": ["seed"], "--layers 33": ["layers"],
                 "--epochs 3": ["epochs is 3", "with 2"], "--leaf 2": ["leaf"], "--augment noise=1": ["augment"],
                 "--train-limit 500": ["train-limit"], "--reduction allreduce": ["reduction"]}
        for flags, needles in cases.items():
            with self.subTest(flags=flags):
                self.assert_refused(run("train", JOB, flags, "--resume", parts.folder), 2, needles)
        self.assert_refused(run("train --resume-with epochs=1 --resume", self.copy(whole, "late", last=42).folder), 2,
                            ["step 42", "after 30 steps", "epochs=N"])
        self.assert_refused(run("train --resume-with epoch=1 --resume", parts.folder), 2, ["'epochs'"])
        self.assert_refused(run("train --resume-with epochs=5 --epochs 4 --resume", parts.folder), 2, ["epochs is given, too"])
        twice = [self.train(JOB, "--resume auto --resume-with epochs=1", name="twice") for _ in range(2)]
        self.assertIn("complete after 30 steps", twice[1].result.out)
        for change, needles in {"layers=33": ["layers is", "leave layers out"], "seed=3": ["seed is 3", "with 22"],
                                "reduction=allreduce": ["cannot go on with those of allreduce"],
                                "standardize=false": ["standardize is", "leave standardize out"],
                                "init=x": ["a checkpoint has its own weights"], "ranks=3": ["give --ranks itself"],
                                "run-dir=x": ["give --run-dir itself"], "resume=x": ["give --resume itself"],
                                "keep=5": ["does not determine the results", "give --keep itself"]}.items():
            with self.subTest(change=change):
                refused = run("train --resume", parts.folder, "--resume-with", change)
                self.assert_refused(refused, 2, needles)
                self.assertNotIn("=VALUE", refused.err)
        longer = self.train(JOB.replace("--epochs 2", "--epochs 3"), name="longer")
        made = self.resume(JOB, "--resume-with epochs=3", threads=2)
        self.assert_same(longer, made, later_than=35)
        sgd = self.train(JOB, "--optimizer sgd", name="sgd").folder
        records = (sgd / "epochs.jsonl").read_text()
        made = self.succeed("train --resume-with epochs=3 --resume-with momentum=0.9 --resume", sgd)
        self.assertTrue((sgd / "epochs.jsonl").read_text().startswith(records))  # seconds, too
        self.assert_says(made.out, ["momentum 0.9", "after 60 steps"], made)
        config = self.succeed("train --resume-with epochs=5 --print-config --resume", sgd).out
        self.assertTrue(config.startswith("# needs --resume-with epochs=5, too\n"), config)
        again = self.train(str(sgd / "config.toml"), name="again")  # anew, as the last one was trained
        self.assertNotIn("resume ", again.result.out)
        batch = "--layers 4 --train-limit 600 --test-limit 10 --batch-size 256 --epochs 1"
        folder = self.train(batch, name="float32").folder
        made = self.succeed("train --resume-with epochs=2 --resume-with precision=bf16 --resume", folder)
        self.assert_says(made.out, ["leaves of 32", "after 3 steps"], made)

    def test_sums_of_allreduce_go_on_as_they_were_started(self):
        whole = self.train(JOB, "--reduction allreduce", name="whole", threads=2)
        parts = self.copy(whole, last=28)
        start = "start it without a launcher, with --ranks 2 --backend auto"
        for number in (1, 3):
            refused = run("train --resume", parts.folder, threads=number)
            self.assert_refused(refused, 2, [f"the number of ranks is {number}, but", "trained with 2", start])
        refused = run("train --resume-with ranks=3 --resume", parts.folder, threads=2)
        self.assert_refused(refused, 2, ["ranks: cannot change with reduction allreduce"])
        refused = run("train --resume", parts.folder, "--backend threads", threads=2)
        self.assert_refused(refused, 2, ["backend is", '"threads"', "with", '"auto"', start])
        if command.MPI:
            refused = run("train --resume", parts.folder, ranks=2)
            self.assert_refused(refused, 2, ["the backend is shared, but", "trained with threads", start])
            mpi = self.train(JOB, "--reduction allreduce --backend mpi --steps 7", name="mpi", ranks=2)
            refused = run("train --resume-with steps=9 --resume", mpi.folder, ranks=2)
            self.assert_refused(refused, 2, ["the backend is shared", "`mpirun -n 2`, with --backend mpi"])
            self.succeed("train --resume-with steps=9 --backend mpi --resume", mpi.folder, ranks=2)
        self.succeed("train --resume", parts.folder, threads=2)

    def test_files_are_shared_out_among_as_many_ranks(self):
        data = write_split(self.folder / "data", [6, 6])
        made = self.train("--layers 4 --batch-size 4 --steps 2 --classes 10 --shard-policy file --data", data,
                          threads=2)
        refused = run("train --resume-with steps=3 --resume", made.folder)
        self.assert_refused(refused, 2, ["the data plan", "as many ranks as before"])

    def test_other_data_is_refused(self):
        data = self.folder / "data"
        files.write_set(data)
        self.train("--layers 4 --batch-size 5 --steps 3 --data", data)
        images = data / files.TRAIN[0]
        content = bytearray(images.read_bytes())
        content[-1] ^= 1
        images.write_bytes(content)
        result = run("train --resume-with steps=6 --resume", self.folder / "run")
        self.assert_refused(result, 2, ["the training data", "hash"])

    def test_damaged_checkpoints_are_skipped_and_named(self):
        whole = self.whole()
        parts = self.copy(whole, last=42)
        weights = parts.folder / "checkpoints/step-00000042/model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
        (parts.folder / "checkpoints/step-00000035/manifest.json").unlink()
        shutil.copytree(parts.folder / "checkpoints/step-00000028", parts.folder / "checkpoints/step-00000099")
        damaged = run("train", JOB, "--resume", weights.parent)
        self.assert_refused(damaged, 65, [weights, "checksum"])
        made = self.resume(JOB, threads=3)
        self.assert_says(made.result.err, ["skipped a checkpoint", weights, "checksum", "step-00000035", "incomplete",
                                               "step-00000099/network.json: is of step 28"], made.result)
        aside = sorted((parts.folder / "checkpoints").glob("*.damaged"))
        self.assertEqual([path.name[5:13] for path in aside], ["00000035", "00000042", "00000099"])
        for path in aside:
            shutil.rmtree(path)
        self.assert_same(whole, made)
        for path in made.checkpoints:
            (path / "state.json").write_text("{}")
        before = made.metrics
        none_valid = run("train", JOB, "--resume auto --run-dir", made.folder)
        self.assert_refused(none_valid, 65, [made.folder, "none of its checkpoints is valid", "another --run-dir"])
        self.assertEqual(made.metrics, before)
        made.cut_back(0)  # none is left: from the beginning
        self.assert_same(whole, self.resume(JOB, threads=2))

    def test_two_jobs_in_one_folder(self):
        folder = self.folder / "run"
        first = self.start(words(command.binary, "train", JOB.replace("--epochs 2", "--epochs 100000"), "--run-dir",
                                 folder))
        self.wait_until(lambda: command.Run(folder).checkpoints, first, "checkpoints")
        for flags in ("", "--resume auto", f"--resume {folder}"):
            result = run("train", JOB, flags, "--run-dir", folder)
            self.assert_ends(result, 2)
            self.assert_says(result.err, [f"process {first.pid} on host"], result)
        first.kill()
        first.communicate()

    def test_jobs_that_begin_at_the_same_moment(self):
        jobs = [self.start(words(command.binary, "train", JOB, "--run-dir", self.folder / "run")) for _ in range(4)]
        codes = sorted(finish(job).code for job in jobs)
        self.assertEqual(codes, [0, 2, 2, 2])
        self.assertEqual(len(command.Run(self.folder / "run").metrics), 60)

    def test_nothing_to_continue(self):
        self.assert_refused(run("train --resume", self.folder / "no"), 65, ["no such checkpoint"])
        self.assert_refused(run("train --resume", self.folder), 65, ["holds no checkpoint"])
        self.assert_refused(run("train --resume-with epochs=3"), 2, ["--resume-with without --resume"])
        made = self.train(JOB, "--resume auto --resume-with epochs=1")
        self.assertEqual(made.summary["steps"], 30)
        for checkpoint in made.checkpoints:
            shutil.rmtree(checkpoint)
        self.assert_refused(run("train", JOB, "--resume auto --run-dir", made.folder), 2, ["holds a run already"])
        self.assertEqual(len(made.metrics), 30)

    def test_auto_without_a_folder_is_the_run_that_was_saved_last(self):
        """Neither the last by name nor runs/latest."""
        for _ in range(2):
            self.succeed("train", JOB, cwd=self.folder)
        folders = lambda: sorted(path for path in (self.folder / "runs").iterdir() if path.name != "latest")
        first, second = map(command.Run, folders())
        first.cut_back(28)
        os.utime(second.folder / "checkpoints", (1e9, 1e9))
        self.succeed("train", JOB, "--resume auto", cwd=self.folder)
        self.assertEqual(folders(), [first.folder, second.folder])
        self.assertIn(f"{first.folder.name}/checkpoints/step-00000028", first.summary["resumed_from"])
        self.assertNotIn("resumed_from", second.summary)
        self.assert_same(second, first)

    def test_the_newest_checkpoints_are_kept(self):
        made = self.train(JOB.replace("--keep 1000", "--keep 2 --keep-every 21"))
        self.assertEqual([step_of(path) for path in made.checkpoints], [21, 42, 56, 60])
