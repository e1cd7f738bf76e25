"""`lockstep sweep`: the weights of `lockstep train` in groups of any size, through kills, and what is refused."""

import fcntl
import json
import os
import re
import shutil
import signal
import unittest

import command
from command import Run, faults, finish, mpirun, run

BASE = """data = "synthetic"
train-limit = 500
test-limit = 100
layers = [16]
batch-size = 50
epochs = 1
"""
GRID = """
[sweep.settings]
learning-rate = [0.01, 0.1]
layers = [[16], [12, 8], "none"]
[sweep.settings.optimizer]
name = ["adam", "sgd"]
"""
RANDOM = """
[sweep.settings]
learning-rate = { min = 1e-4, max = 0.1, log = true }
batch-size = { min = 20, max = 60 }
layers = [[16], [8]]
"""
REFUSED = (  # what stands in [sweep] and below, the lines' texts
    ("", "", ["no trials", "[sweep.settings]"]),
    ("", "[sweep.settings]\n", ["no trials"]),
    ("", "[sweep.settings]\nlearning-rat = [0.1]\n", [":9", "learning-rat", "learning-rate"]),
    ("", "[sweep.settings]\nlearning-rate = []\n", [":9", "learning-rate", "empty list"]),
    ("", "[sweep.settings]\nlearning-rate = 0.1\n", [":9", "does not vary"]),
    ("", "[sweep.settings]\nlearning-rate = [0.1,\n-1]\n", [":10", "'-1' is not a finite number above 0"]),
    ("", "[sweep.settings]\nrun-dir = ['a']\n", [":9", "run-dir", "not a setting of a trial"]),
    ("", "[sweep.settings]\nlearning-rate = { min = 0.1, max = 1.0 }\n", [":9", "interval in a grid", "random"]),
    ("group = 3\n", GRID, [":8", "2 ranks", "groups of 3"]),
    ("metric = 'acuracy'\n", GRID, [":8: metric: 'acuracy' is none of testing score", "did you mean 'testing accuracy'?"]),
    ("metric = 'val loss'\n", GRID, [":8", "did you mean 'validation loss'?"]),
    ("metric = 'r2'\n", GRID, [":8", "did you mean 'testing R2'?"]),
    ("metric = 'f1'\n", GRID, [":8", "use one of these", "--metrics"]),
    ("metric = 'testing auc'\n", GRID, [":8", "'testing auc' is none of", "use one of these", "--metrics"]),
    ("metric = 'loss'\n", "[sweep.settings]\nlabel-smoothing = [0, 0.1]\n",
     [":8: metric: the losses of the trials cannot be compared: label-smoothing varies", "testing score"]),
    ("trails = 3\n", GRID, [":8", "'trails'", "did you mean 'trials'"]),
    ("trials = 3\n", GRID, [":8", "trials", "of a grid"]),
    ("method = 'random'\n", RANDOM, ["method random without trials"]),
    ("method = 'random'\ntrials = 0\n", RANDOM, [":9", "trials"]),
    ("method = 'random'\ntrials = 2\n", "[sweep.settings]\nbatch-size = { min = 9, max = 9 }\n",
     [":11", "min 9 is not below max 9"]),
    ("method = 'random'\ntrials = 2\n", "[sweep.settings]\nmomentum = { min = 0, max = 0.9, log = true }\n",
     [":11", "no logarithm"]),
    ("method = 'random'\ntrials = 2\n", "[sweep.settings]\nbatch-size = { min = 0.1, max = 0.2 }\n",
     [":11", "batch-size"]),
    ("halving = 2\n", GRID, [":8", "at least two rungs"]),
    ("halving = 2\nrungs = [2, 1]\n", GRID, [":9", "ascending"]),
    ("halving = 2\nrungs = [1, 2]\n", "[sweep.settings]\nepochs = [1, 2]\n", ["epochs varies beside halving"]),
    ("halving = 2\nrungs = [1, 2]\n", "[sweep.settings]\nschedule = ['cosine']\n", ["schedule cosine"]),
    ("halving = 2\nrungs = [2, 3]\n", GRID, [":8", "halving to 3 epochs beside epochs = 1"]),
    ("rungs = [1, 2]\n", GRID, [":8", "no halving"]),
    ("", "[sweep.settings]\nmax-time = [60]\n", [":9", "max-time", "not a setting of a trial"]),
    ("", "[sweep.settings]\nsnapshot-every = [4]\n", [":9", "snapshot-every", "not a setting of a trial"]),
)


class Sweep(command.CommandTest):
    def file(self, sweep="", settings=GRID, base=BASE):
        path = self.folder / "sweep.toml"
        path.write_text(f"{base}[sweep]\n{sweep}{settings}")
        return path

    def record(self, out="out"):
        return json.loads((self.folder / out / "sweep.json").read_text())

    def results(self, out="out"):
        """Of each trial all that it reached, but for its time."""
        return [(trial["settings"], trial["state"], trial["reason"],
                 [{key: value for key, value in result.items() if key != "seconds"} for result in trial["results"]])
                for trial in self.record(out)["trials"]]

    def hashes(self, out="out"):
        return [results[-1]["weights_hash"] for _, _, _, results in self.results(out)]

    def table(self, out="out"):
        """The closing table without its column of times."""
        lines = self.succeed("sweep --show", self.folder / out).out.splitlines()
        return [line.split()[:-2] + line.split()[-1:] for line in lines]

    def sweep(self, path, out="out", **options):
        return run("sweep", path, "--out", self.folder / out, **options)

    def repeat(self, trial, out="out", *args):
        """The weights of `lockstep train` with a trial's settings."""
        flags = [word for name, value in self.record(out)["trials"][trial]["settings"].items() for word in (f"--{name}", value)]
        base = self.folder / "base.toml"
        base.write_text(BASE)
        return self.train(base, *flags, *args, name=f"repeated-{out}-{trial}").summary["weights_hash"]

    def test_one_hash_for_each_trial_in_groups_of_any_size(self):
        worlds = [("alone", 1, {}), ("threads", 2, {"threads": 4}), ("one", 4, {"threads": 4})]
        worlds += [(f"mpi-{group}", group, {"ranks": 4}) for group in (1, 2, 4)] if command.MPI else []
        for out, group, world in worlds:
            result = self.sweep(self.file(f"group = {group}\nmetric = 'testing loss'\n"), out, **world)
            self.assert_ends(result, 0)
            lines = [line for line in result.out.splitlines() if line.startswith("trial-")]
            self.assertEqual(len(lines), 12, result)
            with self.subTest(world=out):
                self.assertEqual(self.results(out), self.results("alone"))
                self.assertEqual(self.table(out), self.table("alone"))
        self.assertEqual(len(set(self.hashes("alone"))), 12)
        losses = [float(line[4]) for line in self.table("alone")[1:]]
        self.assertEqual(losses, sorted(losses))
        for trial in (1, 8):
            self.assertEqual(self.repeat(trial, "alone", "--ranks 2"), self.hashes("alone")[trial])
        folder = self.folder / "threads" / "trial-005"
        self.assertEqual(Run(folder).summary["status"], "finished")
        again = self.train(folder / "config.toml", name="again")
        self.assertEqual(again.summary["weights_hash"], self.hashes("alone")[4])

    def test_random_draws_depend_on_seed_and_trial_alone(self):
        self.assert_ends(self.sweep(self.file("method = 'random'\ntrials = 4\nseed = 5\n", RANDOM), threads=2), 0)
        settings = [trial["settings"] for trial in self.record()["trials"]]
        self.assertEqual(settings[0], {"learning-rate": "0.009159", "batch-size": "43", "layers": "8"})
        for one in settings:
            self.assertTrue(1e-4 <= float(one["learning-rate"]) <= 0.1 and 20 <= int(one["batch-size"]) <= 60, one)
        self.assertEqual(self.repeat(2), self.hashes()[2])
        shown = self.succeed("sweep", self.folder / "sweep.toml", "--dry-run --out", self.folder / "none")
        self.assertIn("trial-001  learning-rate 0.009159, batch-size 43, layers 8\n", shown.out)
        self.assertFalse((self.folder / "none").exists())
        fewer = RANDOM.replace("layers = [[16], [8]]\n", "")
        self.assert_ends(self.sweep(self.file("method = 'random'\ntrials = 2\nseed = 5\n", fewer), "fewer"), 0)
        for one, other in zip(self.record("fewer")["trials"], settings):
            self.assertEqual(one["settings"]["learning-rate"], other["learning-rate"])
        self.assert_ends(self.sweep(self.file("method = 'random'\ntrials = 2\nseed = 6\n", fewer), "other"), 0)
        self.assertNotEqual(self.record("other")["trials"][0]["settings"], self.record("fewer")["trials"][0]["settings"])

    def test_the_best_by_a_metric(self):
        base = BASE + "metrics = 'auc,top-2'\nvalidation = 0.2\n"
        settings = "[sweep.settings]\nlearning-rate = [0.0003, 0.001, 0.01]\nloss = ['cross-entropy', 'squared-error']\n"
        for metric, key, column in (("testing auc", "test_auc", 9), ("validation top-2", "validation_top-2", 6)):
            out = key
            self.assert_ends(self.sweep(self.file(f"metric = '{metric}'\n", settings, base), out, threads=2), 0)
            trials = self.record(out)["trials"]
            recorded = json.loads((self.folder / out / "trial-001" / "epochs.jsonl").read_text())
            for name in ("test_auc", "test_top-2", "validation_auc", "validation_top-2"):
                self.assertEqual(trials[0]["results"][0][name], recorded[name])
            best, by_score = (sorted(range(6), key=lambda i: -trials[i]["results"][0][figure])
                              for figure in (key, key.split("_")[0] + "_accuracy"))
            self.assertNotEqual(best, by_score)
            head, *lines = [re.split("  +", line.strip())
                            for line in self.succeed("sweep --show", self.folder / out).out.splitlines()]
            self.assertEqual([line[0] for line in lines], [f"trial-{i + 1:03}" for i in best])
            self.assertEqual(head[3:11], [f"{set} loss" if figure == "loss" else figure
                                          for set in ("validation", "testing")
                                          for figure in ("loss", "accuracy", "auc", "top-2")])
            self.assertEqual([line[column] for line in lines], [f"{trials[i]['results'][0][key]:.4f}" for i in best])

    def test_numbers_are_compared_by_their_r2(self):
        table = self.folder / "prices.csv"
        table.write_text("area,price\n" + "".join(f"{i % 37 / 10},{i % 37 * 3 + 0.5}\n" for i in range(200)))
        base = f"data = '{table}'\nlabel-column = 'price'\ntest-split = 0.2\nlayers = [4]\n"
        settings = "[sweep.settings]\nlearning-rate = [0.001, 0.1, 0.01]\n"
        halving = "halving = 2\nrungs = [1, 2]\n"
        self.assert_ends(self.sweep(self.file(halving, settings, base), "halved", threads=2), 0)
        self.assertEqual(self.record("halved")["metric"], "testing score")
        first = [trial["results"][0]["test_r2"] for trial in self.record("halved")["trials"]]
        states = [trial["state"] for trial in self.record("halved")["trials"]]
        self.assertEqual([state == "dropped" for state in states], [r2 == min(first) for r2 in first])
        base += "epochs = 1\n"
        shown = self.succeed("sweep", self.file("", settings, base), "--dry-run").out
        self.assertIn("trial-001  learning-rate 0.001\n", shown)
        of_classes = self.sweep(self.file("metric = 'accuracy'\n", settings, base))
        self.assert_refused(of_classes, 2, ["the metric testing accuracy is not one of this data",
                                            "remedy: write metric = \"testing R2\""])
        self.assert_ends(self.sweep(self.file("metric = 'R2'\n", settings, base)), 0)  # no trial had a result
        self.assertEqual(self.record()["metric"], "testing R2")
        self.assert_ends(self.sweep(self.file("", settings, base)), 0)  # the same figure
        self.assert_refused(self.sweep(self.file("metric = 'accuracy'\n", settings, base)), 2,
                            ["metric was testing R2, and is testing accuracy"])
        self.assert_ends(self.sweep(self.file("metric = 'loss'\n", settings, base), "loss"), 0)
        self.assertEqual(self.record("loss")["metric"], "testing loss")
        self.assertEqual(self.table(), self.table("loss"))

    def test_killed_and_continued_on_other_ranks(self):
        path = self.file("", base=BASE + "checkpoint-every = 3\n")
        self.assert_ends(self.sweep(path, "whole", threads=4), 0)
        fault = faults("kill:rank=1,step=8")
        killed = self.sweep(self.file("group = 2\n", base=BASE + "checkpoint-every = 3\n"), ranks=4, env=fault)
        self.assertNotEqual(killed.code, 0)
        states = [trial["state"] for trial in self.record()["trials"]]
        self.assertIn("running", states)
        for path in (self.folder / "out").glob("**/.lock"):
            with open(path) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # ranks may end some moments after their launcher
        shown = self.succeed("sweep --show", self.folder / "out")
        states = [trial["state"] for trial in self.record()["trials"]]
        self.assertEqual((shown.out.count("cut off"), shown.out.count("running")), (states.count("running"), 0), shown)
        path = self.file("", base=BASE + "checkpoint-every = 3\n")
        again = self.sweep(path, threads=3)
        self.assert_ends(again, 0)
        self.assertEqual(self.results(), self.results("whole"))
        self.assertEqual(self.table(), self.table("whole"))
        resumed = [Run(self.folder / "out" / f"trial-{number:03}").summary.get("resumed_from") for number in range(1, 13)]
        self.assertTrue(any(resumed), again)
        nothing = self.sweep(path, threads=2)
        self.assert_ends(nothing, 0)
        self.assert_says(nothing.out, "12 trials ended already", nothing)
        self.assertNotIn("\ntrial-", nothing.out)

    def test_sums_of_allreduce_are_continued_by_other_groups(self):
        """These sums depend on the number of threads, which changes with the number of groups."""
        path = self.file("group = 2\n", "[sweep.settings]\nlearning-rate = [0.01, 0.1]\n",
                         BASE + "reduction = 'allreduce'\ncheckpoint-every = 3\n")
        self.assert_ends(self.sweep(path, threads=4), 0)
        record = self.record()
        record["trials"][1].update(state="running", results=[])
        (self.folder / "out" / "sweep.json").write_text(json.dumps(record))
        trial = Run(self.folder / "out" / "trial-002")
        trial.cut_back(9)
        self.assert_ends(self.sweep(path, threads=2), 0)
        self.assertEqual([trial["state"] for trial in self.record()["trials"]], ["finished"] * 2)
        self.assertIn("step-00000009", trial.summary["resumed_from"])

    def test_a_trial_that_runs_is_not_cut_off(self):
        path = self.file("", base=BASE.replace("epochs = 1", "epochs = 1000000"))
        process = self.start([str(command.binary), *command.words("sweep", path, "--out", self.folder / "out")])
        record = self.folder / "out" / "sweep.json"
        self.wait_until(lambda: record.exists() and '"running"' in record.read_text(), process, "trial")
        shown = self.succeed("sweep --show", self.folder / "out")
        self.assertEqual((shown.out.count("running"), shown.out.count("cut off")), (1, 0), shown)
        process.kill()
        process.communicate()
        shown = self.succeed("sweep --show", self.folder / "out")
        self.assertEqual((shown.out.count("running"), shown.out.count("cut off")), (0, 1), shown)

    def stop(self, *argv):
        """Starts a sweep, and interrupts it when it has finished a trial more."""
        before = self.finished_trials()
        process = self.start(argv)
        self.wait_until(lambda: self.finished_trials() > before, process, "finished trial")
        os.kill(process.pid, signal.SIGINT)
        return finish(process)

    def finished_trials(self):
        path = self.folder / "out" / "sweep.json"
        return path.read_text().count('"finished"') if path.exists() else 0

    def test_stopped_and_continued(self):
        base = BASE.replace("train-limit = 500", "train-limit = 4000").replace("epochs = 1", "epochs = 3")
        path = self.file("group = 2\n", base=base)
        arguments = command.words("sweep", path, "--out", self.folder / "out")
        stopped = self.stop(str(command.binary), *arguments, "--ranks", "4")
        self.assert_ends(stopped, 75)
        self.assert_says(stopped.err, ["stopped after", "of 12 trials", "the same command"], stopped)
        if command.MPI:
            self.assertNotEqual(self.stop(*mpirun(4, *arguments)).code, 0)
        self.assertLess(self.finished_trials(), 12)
        self.assert_ends(self.sweep(path, threads=2), 0)
        self.assert_ends(self.sweep(path, "whole", threads=2), 0)
        self.assertEqual(self.results(), self.results("whole"))

    def test_halving_keeps_the_best(self):
        rungs = "halving = 3\nrungs = [1, 2, 4]\n"
        base = BASE.replace("epochs = 1\n", "")
        self.assert_ends(self.sweep(self.file(rungs, base=base), threads=3), 0)
        trials = self.record()["trials"]
        left = list(range(12))
        for rung, kept in ((0, 4), (1, 2)):
            self.assertEqual(left, [i for i in range(12) if len(trials[i]["results"]) > rung])
            left = sorted(sorted(left, key=lambda i: -trials[i]["results"][rung]["test_accuracy"])[:kept])
        self.assertEqual([i for i, trial in enumerate(trials) if trial["state"] == "finished"], left)
        self.assertEqual([trial["state"] for trial in trials].count("dropped"), 10)
        for trial in trials:  # of all rungs so far
            times = [result["seconds"] for result in trial["results"]]
            self.assertTrue(all(a < b for a, b in zip([0, *times], times)), times)
        for trial in left:
            self.assertEqual(self.repeat(trial, "out", "--epochs 4"), self.hashes()[trial])
        again = self.sweep(self.file("group = 2\n" + rungs, base=base), threads=2)
        self.assert_ends(again, 0)
        self.assert_says(again.out, "12 trials ended already", again)
        self.assertEqual(self.record()["trials"], trials)

    def test_trials_that_fail_are_recorded(self):
        settings = "[sweep.settings]\nlearning-rate = [0.01, 1e30]\nmomentum = [0, 0.9]\noptimizer = ['sgd', 'adam']\n"
        base = BASE + "momentum = 0.5\n"
        result = self.sweep(self.file("", settings, base=base), threads=2)
        self.assert_ends(result, 0)
        trials = self.record()["trials"]
        self.assertEqual([trial["exit_code"] for trial in trials], [0, 0, 0, 2, 76, 76, 76, 2])
        self.assert_says(trials[3]["reason"], ["--momentum with --optimizer adam"], result)
        self.assert_says(result.out, ["trial-005 failed (76)"], result)
        again = self.sweep(self.file("", settings, base=base), threads=4)
        ran = sorted(line.split()[0] for line in again.out.split("\n\n")[0].splitlines() if line.startswith("trial-"))
        self.assertEqual(ran, ["trial-004", "trial-008"], again)  # those that another launch might not refuse
        self.assertEqual(self.record()["trials"], trials)
        settings = "[sweep.settings]\nlearning-rate = [1e30, 1e31]\noptimizer = ['sgd']\n"
        for world in ({"threads": 2}, {"ranks": 2} if command.MPI else {}):
            none = self.sweep(self.file("", settings), f"none-{len(world)}-{world.get('ranks')}", **world)
            self.assert_refused(none, 76, ["all 2 trials failed", "trial-001"])
        for metric in ("testing R2", "validation R2"):  # found before anything is trained
            out = metric.replace(" ", "-")
            none = self.sweep(self.file(f"metric = '{metric}'\n", settings, BASE + "validation = 0.1\n"), out, threads=2)
            self.assert_refused(none, 2, ["all 2 trials failed", f"the metric {metric} is not one of this data",
                                          "remedy: write metric = \"testing accuracy\""])
            self.assertFalse((self.folder / out / "trial-001").exists())

    def test_refusals(self):
        for number, (sweep, settings, texts) in enumerate(REFUSED):
            for world in ({"threads": 2}, {"ranks": 2}) if number in (8, 2) and command.MPI else ({"threads": 2},):
                with self.subTest(sweep=sweep, settings=settings, **world):
                    result = self.sweep(self.file(sweep, settings), **world)
                    self.assert_refused(result, 2, texts)
                    self.assertFalse((self.folder / "out").exists())
        for base, text in (("run-dir = 'a'\n", "run-dir"), ("survive = true\n", "survive"), ("sed = 1\n", "did you mean")):
            self.assert_refused(self.sweep(self.file(base=base)), 2, [text, "sweep.toml"])
        self.assert_refused(run("sweep", self.file(), "--learning-rate 0.5"), 2, ["--learning-rate", "varies it"])
        halving, base = "halving = 2\nrungs = [1, 2]\n", BASE.replace("epochs = 1\n", "")
        for epochs, flags in (("epochs = 3\n", ""), ("", "--epochs 3")):  # the default
            result = run("sweep", self.file(halving, base=base + epochs), flags, "--out", self.folder / "halved")
            self.assert_refused(result, 2, ["halving to 2 epochs beside epochs = 3"])
        self.assert_refused(run("sweep"), 2, ["no sweep file"])
        self.assert_refused(run("sweep", self.file(), "--out", self.folder / os.fsdecode(b"a-\xff")), 2, ["is not UTF-8"])
        self.assert_refused(run("train", self.file()), 2, [":7", "lockstep sweep"])
        self.assert_refused(run("sweep --show", self.folder), 65, ["sweep.json"])
        self.assert_refused(run("sweep", self.file(), "--show", self.folder), 2, ["--show", "takes nothing else"])

    def test_another_sweep_in_the_folder_is_refused(self):
        one = "[sweep.settings]\nlearning-rate = [0.01]\n"
        self.assert_ends(self.sweep(self.file("", one)), 0)
        before = self.record()
        for sweep, settings, base, text in (("", one.replace("0.01", "0.02"), BASE, "trial-001 was learning-rate 0.01"),
                                            ("metric = 'testing loss'\n", one, BASE, "metric was testing score, and is testing loss"),
                                            ("", GRID, BASE, "number of trials was 1"),
                                            ("", one, BASE + "seed = 5\n", "seed was 22, and is 5")):
            result = self.sweep(self.file(sweep, settings, base), threads=2)
            self.assert_refused(result, 2, ["holds another sweep", text, "--out"])
        self.assertEqual(self.record(), before)
        trial = self.folder / "out" / "trial-001"
        left = sorted(trial.iterdir())
        result = self.sweep(self.file("", one), trial, threads=2)
        self.assert_refused(result, 2, [f"{trial}: holds a run", "--out"])
        self.assertEqual(sorted(trial.iterdir()), left)
        self.assert_ends(self.sweep(self.file("group = 2\n", one), threads=2), 0)
        earlier = json.dumps({**before, "metric": "testing accuracy"})  # as recorded before there was a score
        (self.folder / "out" / "sweep.json").write_text(earlier)
        self.assert_ends(self.sweep(self.file("", one)), 0)
        trial, result = before["trials"][0], before["trials"][0]["results"][0]
        other = {**trial, "settings": {**trial["settings"], "momentum": "0.9"}}
        for damaged, text in (({"trials": [{**trial, "state": "failed", "results": []}]}, "a failed trial has exit_code 0"),
                              ({"trials": [{**trial, "state": "bogus"}]}, "the state 'bogus'"),
                              ({"trials": [{**trial, "exit_code": 99999999999}]}, "greater than 255"),
                              ({"trials": [{**trial, "results": []}]}, "a trial is finished, with 0 of 1 result"),
                              ({"trials": [{**trial, "state": "waiting"}]}, "a trial is waiting, with 1 of 1 result"),
                              ({"trials": [{**trial, "results": [result] * 2}]}, "with 2 of 1 result"),
                              ({"trials": [trial, other]}, "values of different settings"),
                              ({"metric": "testing auc"}, "a result has no testing auc"),
                              ({"metric": "validation auc"}, "a result has no validation auc")):
            with self.subTest(text):
                (self.folder / "out" / "sweep.json").write_text(json.dumps({**before, **damaged}))
                self.assert_refused(run("sweep --show", self.folder / "out"), 65, ["sweep.json", text])

    def test_trials_of_other_data_are_refused(self):
        data = self.folder / "data"
        limits = "--train-limit 100 --test-limit 50"
        self.succeed("generate", data, limits)
        file = self.file("", "[sweep.settings]\nseed = [1, 2]\ntrain-limit = [50, 100]\n",
                         f"data = '{data}'\nlayers = [8]\nepochs = 1\n")
        self.assert_ends(self.sweep(file), 0)
        record = self.record()
        for number in (3, 4):  # as if the job had been killed before
            record["trials"][number - 1].update(state="waiting", results=[])
            shutil.rmtree(self.folder / "out" / f"trial-{number:03}")
        (self.folder / "out" / "sweep.json").write_text(json.dumps(record))
        shutil.rmtree(data)
        self.succeed("generate", data, limits, "--seed 5")
        self.assert_ends(self.sweep(file, threads=2), 0)
        states = [(trial["state"], trial["reason"]) for trial in self.record()["trials"]]
        self.assertEqual(states, [("finished", "")] * 2 + [
            ("failed", f"the data is not that of trial-00{n}; remedy: put back the data of before, or give another --out")
            for n in (1, 2)])
        shutil.rmtree(data)
        self.succeed("generate", data, limits)
        self.assert_ends(self.sweep(file), 0)
        self.assertEqual([trial["state"] for trial in self.record()["trials"]], ["finished"] * 4)


if __name__ == "__main__":
    unittest.main()
