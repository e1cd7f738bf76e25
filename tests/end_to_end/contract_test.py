"""The contract of the command: flags, run files, run directories, agreement, launchers."""

import gzip
import math
import os
import json
import re
import shutil
import struct
import tomllib
import unittest
from pathlib import Path

import command
import files
from command import SMALL, call, mpirun, run, words

DEFAULTS = {
    "data": "synthetic", "format": "auto", "train-limit": "all", "test-limit": "all",
    "test-split": "none", "classes": "auto", "divide-by": "auto", "label-column": "label", "header": "first",
    "separator": "auto", "standardize": "auto", "missing": "mean", "ignore-columns": "none", "category-columns": "none", "model": "mlp", "layers": [700, 500],
    "precision": "float32", "batch-size": 128, "drop-remainder": False, "epochs": 3,
    "steps": "none", "learning-rate": 0.001, "seed": 22, "shuffle": "global",
    "shard-policy": "data", "rebatch": "ceil", "reduction": "canonical", "products": "auto", "simd": "auto", "zeros": "auto",
    "leaf": "auto", "micro-batch": "none", "exchange": "auto", "sentinel-steps": 16, "backend": "auto", "ranks": 1, "device": "auto", "threads": "auto",
    "resume": "none", "checkpoint-every": "end", "keep": 3, "keep-every": "none", "hash-every": "none", "audit-every": "none", "on-nonfinite": "stop", "max-time": "none", "timeout": 120, "straggler-warning": 1.5, "progress": "auto",
}
SUMMARY = {"version", "ranks", "device", "parameters", "steps", "examples", "skipped_steps",
           "epochs", "step_seconds", "seconds_before_exchange", "startup_seconds",
           "evaluation_seconds", "checkpoint_seconds", "examples_per_second",
           "weights_hash", "plan_digest", "peak_rss_bytes"}
EPOCH = {"epoch", "train_loss", "train_accuracy", "test_loss", "test_accuracy", "seconds",
         "examples_per_second", "weights_hash"}
STEP_SECONDS = {"median", "data", "compute", "reduce", "update"}
METRICS = {"step", "epoch", "examples", "loss", "accuracy", "seconds"}
HASH = re.compile(r"[0-9a-f]{16}")

USAGE_ERRORS = [  # words of the command, what the message must name
    ("", ["no subcommand", "--help"]),
    ("tran", ["'tran'", "'train'"]),
    ("frobnicate", ["'frobnicate'", "--help"]),
    ("--verson", ["--verson"]),
    ("train --batchsize 3", ["unknown flag '--batchsize'", "did you mean '--batch-size'?"]),
    ("train --bach-size=3", ["--bach-size", "'--batch-size'"]),
    ("train --qqqqqqqq 1", ["--qqqqqqqq", "`lockstep train --help` lists all flags"]),
    ("train --batch-size", ["batch-size"]),
    ("train --lr 0.1", ["--lr", "'--learning-rate'"]),
    ("train --eps 1e-8", ["--eps", "'--epsilon'"]),
    ("train --host a", ["unknown flag '--host'", "`lockstep train --help` lists all flags"]),
    ("train --device gpu", ["'gpu'", "'cuda'"]),
    ("train --set epoch=3", ["epoch", "'epochs'"]),
    ("evaluate run --lr 0.1", ["--lr", "--help"]),
    ("evaluate run --epochs 3", ["unknown flag '--epochs'"]),
    ("evaluate run --set epochs=3", ["`lockstep evaluate` has no setting 'epochs'"]),
    ("fit", ["'fit'", "'train'"]),
    ("train --set bacth-size=3", ["bacth-size", "'batch-size'"]),
    ("train --set batch-size", ["batch-size", "there is no '='", "KEY=VALUE"]),
    ("train --set =3", ["--set =3: there is no key", "KEY=VALUE"]),
    ("train --set foo=1", ["--set foo=1: unknown setting 'foo'", "--help"]),
    ("train --run-dir=", ["--run-dir: the value is empty", "remedy: give one"]),
    ("train --layers=", ["--layers: the value is empty", "`none` for no layer"]),
    ("train --data=", ["--data: the value is empty"]),
    ("train --learning-rate=", ["--learning-rate: '' is not a finite number above 0"]),
    ("doctor --format csv", ["--format without --data", "give both"]),
    ("plan --test-limit 5", ["--test-limit without --network"]),
    ("plan --device cuda", ["--device without --network"]),
    ("inspect synthetic --seed 3", ["--seed without --test-split"]),
    ("doctor --data synthetic --seed 3", ["--seed without --test-split"]),
    ("bench collectives --ranks 2 --operation broadcast --redop max", ["--redop without all_reduce"]),
    ("bench collectives", ["need at least 2", "mpirun -n 2"]),
    ("train --epochs", ["--epochs: no value", "remedy: write --epochs N"]),
    ("train --resume", ["--resume: no value", "remedy: write --resume none|auto|PATH"]),
    ("sweep --show", ["--show: no value", "remedy: write --show DIR"]),
    ("train --set", ["--set: no value", "remedy: write --set KEY=VALUE"]),
    ("train --set optimizer.name=sgd", ["unknown setting 'optimizer.name'", "did you mean 'optimizer'?"]),
    ("train --set schedule.decai=1", ["unknown setting 'schedule.decai'", "did you mean 'decay'?"]),
    ("train --run-dir --report", ["--run-dir: no value", "remedy: write --run-dir auto|DIR"]),
    ("train --data --epochs=3", ["--data: no value", "remedy: write --data PATH|"]),
    ("predict run --output -h", ["--output: no value", "remedy: write --output FILE"]),
    ("train --run-dir --reprot 1", ["--run-dir: no value"]),
    ("train --learning-rate -1", ["'-1' is not a finite number above 0", "such as 0.001"]),
    ("train --max-time 0", ["'0' is not a time", "remedy: write seconds", "HH:MM:SS"]),
    ("train --max-time 1:2", ["'1:2' is not a time", "HH:MM:SS"]),
    ("train --max-time 99:99:99", ["'99:99:99' is not a time", "HH:MM:SS"]),
    ("train --max-time 3000000:00:00", ["'3000000:00:00' is not a time", "10^9 seconds"]),
    ("train --max-time 1:2:3:", ["'1:2:3:' is not a time", "HH:MM:SS"]),
    ("train --validation 1", ["'1' is not below 1", "such as 0.2"]),
    ("train --straggler-warning 1", ["'1' is not above 1", "such as 1.5"]),
    ("train --straggler-warning of", ["--straggler-warning: 'of'", "such as 1.5, or off"]),
    ("train --divide-by 0", ["--divide-by: '0'", "such as 255, or auto"]),
    ("train --augment noise=nan", ["'nan' is not a number", "such as noise=0.5"]),
    ("train --keep-best=maybe", ["neither true nor false", "remedy: write one of them"]),
    ("train --warmup 9223372036854775807", ["steps up to 2^31", "such as 500 or 2e"]),
    ("convert a b --format xyz", ["'xyz' is none of", "remedy: use one of them"]),
    ("train --shuffle gobal", ["--shuffle", "gobal", "did you mean 'global'?"]),
    ("train --batch-size 12x", ["--batch-size", "'12x' is not a whole number"]),
    ("train --seed 99999999999999999999", ["--seed", "99999999999999999999 is more than"]),
    ("train missing.toml", ["missing.toml", "no such"]),
    ("train .", ["error: .: no such run file, or no regular file"]),
    ("train --nesterov true", ["--nesterov: its value 'true' follows a space", "remedy: write --nesterov=true"]),
    ("train --keep-best no", ["--keep-best: its value 'no'", "remedy: write --keep-best=false"]),
    ("train a.toml b.toml", ["2 run files: a.toml b.toml; at most 1 can be given"]),
    ("plot a b c d e f g h", ["8 run folders", "at most 7 can be given"]),
    ("generate", ["folder"]),
    ("generate digits --trainlimit 3", ["trainlimit"]),
    ("generate digits --train-limit 0", ["train-limit"]),
    ("generate digits --data mnist", ["'mnist'", "convert"]),
    ("compare", ["0 run folders", "RUN_A RUN_B"]),
    ("compare a b c", ["3 run folders", "RUN_A RUN_B"]),
    ("compare a b --jsn", ["jsn", "--json"]),
    ("plot", ["no run folder", "lockstep plot RUN"]),
    ("plot --out a.png", ["--out", "'--output'"]),
    ("train --n 4", ["unknown flag '--n'", "'--ranks'"]),
    ("evaluate --y=4", ["unknown flag '--y=4'"]),
    ("launch mpirun -n 2 lockstep train", ["1 word: mpirun", "-- COMMAND"]),
    ("launch --max-restarts 3 mpirun -n 2 lockstep train", ["no command", "behind --"]),
    ('train --data a.csv --label-column "a', ["--label-column: a quote is opened", "double quotes"]),
]
RUN_FILE_ERRORS = [  # text of the run file, what the message must name
    ("seed = 1\nbach-size = 3\n", ["bad.toml:2", "bach-size", "did you mean 'batch-size'?"]),
    ("seed = 1\n\nseed =\n", ["bad.toml:3", "not TOML"]),
    ("batch-size = 0\n", ["bad.toml:1: batch-size: 0 is less than 1"]),
    ("seed = 1\nseed = 2\n", ["bad.toml:2", "seed"]),
    ("[train]\nseed = 1\n", ["bad.toml:1", "unknown setting 'train'"]),
    ("seed = 2020-01-01\n", ["bad.toml:1", "seed", "date"]),
    ("max-time = 01:00:00\n", ["bad.toml:1: max-time: a date or time of TOML", 'quotes, as in "01:00:00"']),
    ("layers = [[1]]\n", ["bad.toml:1", "layers", "a list inside a list", "remedy"]),
    ("run-dir = []\n", ["bad.toml:1", "run-dir: a list where one value should be"]),
    ("[data]\nseed = 1\n", ["bad.toml:1", "settings stand in no table"]),
    ("weight-decay = 0.1\n[optimizer]\nweight-decay = 0\n", ["bad.toml:", "weight-decay is given at bad.toml:", "leave one"]),
    ("[optimizer]\nname = \"sgd\"\n[schedule]\noptimizer = \"adam\"\n", ["bad.toml:4: optimizer is given at bad.toml:2"]),
    ("[schedule]\nname = \"step\"\ndecay = 3\n", ["bad.toml:3: decay=3.0 with schedule=step: outside (0, 1]"]),
    ("schedule = \"cosine\"\nsteps = 3\nwarmup = 9\n", ["bad.toml:3: warmup=9 with schedule=cosine: leaves none of 3"]),
    ("[optimizer]\nnam = \"sgd\"\n", ["bad.toml:2: unknown setting 'nam'", "did you mean 'name'?"]),
    ("train-limit = 50\ntest-limit = 50\n[optimizer]\nmomentum = 0.9\n", ["bad.toml:4: momentum with optimizer=adam"]),
    ("train-limit = 50\ntest-limit = 50\ndecay-every = 5\n", ["bad.toml:3: decay-every with schedule=constant"]),
    ("drop-remainder = 3\n", ["bad.toml:1", "drop-remainder"]),
    ("seed = true\n", ["bad.toml:1", "seed"]),
]


class Usage(command.CommandTest):
    def test_help_and_version(self):
        for args, needles in (("--help", ["train", "generate", "convert", "compare"]),
                              ("train --help", [f"--{key}" for key in DEFAULTS]),
                              ("generate --help", ["--train-limit", "--seed"]),
                              ("compare --help", ["RUN_A RUN_B", "--json", "1 where they differ"]),
                              ("--version", [])):
            with self.subTest(args=args):
                result = self.succeed(args)
                self.assert_says(result.out, needles, result)
                self.assertEqual(result.err, "")
        for ranks in (None, 2):  # once, too
            self.assertRegex(self.succeed("--version", ranks=ranks).out, r"^\d+\.\d+\.\d+\n$")
            wrong = run("trian", ranks=ranks)
            self.assert_refused(wrong, 2, ["did you mean 'train'"])
            self.assertEqual(wrong.err.count("unknown subcommand"), 1, str(wrong))

    def test_usage_errors(self):
        for args, needles in USAGE_ERRORS:
            with self.subTest(args=args):
                result = run(args, cwd=self.folder)
                self.assert_refused(result, 2, needles)
                self.assertEqual(result.out, "")
        unset = command.call([str(command.binary), "train", ""], cwd=self.folder)
        self.assert_refused(unset, 2, ["the run file is empty", "leave it out"])
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_closed_streams_are_not_those_of_files(self):
        script = f"{command.binary} train --train-limit 100 --test-limit 50 --layers 4 --run-dir run --progress lines <&- >&- 2>&-"
        closed = command.call(["sh", "-c", script], cwd=self.folder)
        self.assertEqual(closed.code, 74, str(closed))  # stdout cannot be written
        for line in (self.folder / "run" / "metrics.jsonl").read_text().splitlines():
            json.loads(line)

    def test_run_file_errors(self):
        for text, needles in RUN_FILE_ERRORS:
            with self.subTest(text=text):
                (self.folder / "bad.toml").write_text(text)
                self.assert_refused(run("train bad.toml", cwd=self.folder), 2, needles)
        (self.folder / "bad.toml").write_text("train-limit = 50\ntest-limit = 50\nmomentum = 0.9\n")
        flag = run("train bad.toml --momentum 0.8", cwd=self.folder)
        self.assert_refused(flag, 2, "error: --momentum with --optimizer adam")

    def test_values_that_would_disturb_a_terminal(self):
        (self.folder / "bad.toml").write_text('data = "no\\u0000thing"\n')
        for args in ("train --data no\x1b[31mthing", "train bad.toml", f"train --data {'nothing' * 1000}"):
            with self.subTest(args=args[:40]):
                result = run(args, cwd=self.folder)
                self.assert_refused(result, result.code, ["no", "thing", "remedy"])
                self.assertIn(result.code, (2, 65))
                self.assertLess(len(result.err), 5000)
                self.assertFalse(set(result.err) & {"\x1b", "\0"}, repr(result.err))

    def test_under_mpirun_they_are_said_once(self):
        (self.folder / "bad.toml").write_text("bach-size = 3\n")
        self.assert_refused(run("train --batchsize 3", ranks=3), 2, "'--batch-size'")
        self.assert_refused(run("train bad.toml", ranks=3, cwd=self.folder), 2, "bad.toml:1")
        self.assertEqual(self.succeed("train --help", ranks=2).out.count("--batch-size"), 1)


class Configuration(command.CommandTest):
    def resolved(self, *args, **options):
        return tomllib.loads(self.succeed("train", *args, "--print-config", **options).out)

    def test_defaults(self):
        config = self.resolved()
        self.assertEqual({key: config.get(key) for key in DEFAULTS}, DEFAULTS)

    def test_what_is_printed_is_a_run_file(self):
        flags = ("--layers 7,5 --learning-rate 0.3 --divide-by 2.5 --drop-remainder --leaf 4 "
                 "--steps 9 --seed 9223372036854775807 --data", Path('a "b" \\c \t é'))
        printed = self.succeed("train", *flags, "--print-config").out
        self.assertEqual(tomllib.loads(printed)["data"], 'a "b" \\c \t é')
        file = self.folder / "run.toml"
        file.write_text(printed)
        self.assertEqual(self.succeed("train", file, "--print-config").out, printed)
        out = self.succeed("train", file, "--print-config", ranks=2).out
        self.assertEqual(out.splitlines(), printed.splitlines())

    def test_the_largest_numbers_are_refused(self):
        for key in ("seed", "epochs", "steps", "batch-size", "train-limit", "classes", "leaf"):
            with self.subTest(key=key):
                self.assert_refused(run(f"train --{key} {2**64 - 1} --print-config"), 2, [key])

    def test_flags_override_the_file_and_the_file_defaults(self):
        file = self.folder / "run.toml"
        file.write_text('batch-size = 64\nseed = 5\nlayers = [3]\nsteps = 4\n')
        config = self.resolved(file, "--seed 6 --set layers=9,8 --steps none --epochs 1 --epochs 2")
        self.assertEqual([config[key] for key in ("batch-size", "seed", "layers", "steps",
                                                  "epochs", "classes")],
                         [64, 6, [9, 8], "none", 2, "auto"])
        self.assertEqual(self.resolved("--set seed=7", file)["seed"], 7)
        self.assertEqual(self.resolved("--layers none")["layers"], [])

    def test_the_run_files_that_come_along(self):
        for file in sorted((command.REPOSITORY / "configs").glob("*.toml")):
            with self.subTest(file=file.name):
                text, sweep, _ = file.read_text().partition("[sweep]")  # of `lockstep sweep`
                written = tomllib.loads(text)
                if sweep:
                    file = self.folder / file.name
                    file.write_text(text)
                for table in {"optimizer", "schedule"} & {key for key, value in written.items() if isinstance(value, dict)}:
                    settings = written.pop(table)
                    written[table] = settings.pop("name")
                    written |= settings
                resolved = self.resolved(file)
                for layer, full in zip(written.pop("layer", []), resolved.get("layer", []), strict=True):
                    self.assertLessEqual(layer.items(), full.items())
                self.assertLessEqual(written.items(), resolved.items())

    def test_dry_run_creates_nothing(self):
        for options in ({}, {"ranks": 2}, {"threads": 3}):
            with self.subTest(**options):
                result = self.succeed("train", SMALL, "--dry-run", cwd=self.folder, **options)
                self.assert_says(result.out, ["600 training", "784-32-10", "all is well", "5 steps would be trained"],
                                 result)
                self.assertEqual(list(self.folder.iterdir()), [])


class RunDirectory(command.CommandTest):
    def test_files_and_keys(self):
        made = self.train(SMALL, "--epochs 2")
        summary, metrics = made.summary, made.metrics
        self.assertLessEqual(SUMMARY, summary.keys())
        self.assertLessEqual(STEP_SECONDS, summary["step_seconds"].keys())
        self.assertLessEqual({"config.toml", "summary.json", "metrics.jsonl", "checkpoints"},
                             {path.name for path in made.folder.iterdir()})
        for line in metrics:
            self.assertLessEqual(METRICS, line.keys())
        self.assertEqual([line["step"] for line in metrics], list(range(1, 11)))
        self.assertEqual([line["examples"] for line in metrics], 2 * ([128] * 4 + [88]))
        self.assertEqual((summary["ranks"], summary["steps"], summary["examples"]), (1, 10, 1200))
        self.assertEqual(summary["parameters"], 784 * 32 + 32 + 32 * 10 + 10)
        self.assertEqual(summary["weights_hash"], summary["epochs"][-1]["weights_hash"])
        for text in (summary["weights_hash"], summary["plan_digest"]):
            self.assertRegex(text, HASH)
        for key in ("startup_seconds", "evaluation_seconds", "checkpoint_seconds",
                    "examples_per_second", "peak_rss_bytes"):
            self.assertGreater(summary[key], 0, key)
        self.assertEqual(tomllib.loads((made.folder / "config.toml").read_text())["epochs"], 2)
        for epoch in summary["epochs"]:
            self.assertLessEqual(EPOCH, epoch.keys())
            for figure in ("loss", "accuracy"):  # true means over the epoch's examples
                total = sum(line[figure] * line["examples"] for line in metrics
                            if line["epoch"] == epoch["epoch"])
                self.assertAlmostEqual(epoch[f"train_{figure}"], total / 600, delta=1e-9)

    def test_its_config_repeats_the_run(self):
        first = self.train(SMALL, "--seed 7 --batch-size 50 --shuffle none", name="first")
        again = self.train(first.folder / "config.toml", name="again")
        other = self.train(SMALL, "--seed 8 --batch-size 50 --shuffle none", name="other")
        self.assertEqual(again.summary["weights_hash"], first.summary["weights_hash"])
        self.assertEqual(again.losses, first.losses)
        self.assertNotEqual(other.summary["weights_hash"], first.summary["weights_hash"])

    def test_checkpoint_is_a_whole_safetensors_file(self):
        made = self.train(SMALL, "--layers 32,7", ranks=2)
        self.assertEqual([path.name for path in made.checkpoints], ["step-00000005"])
        tensors = files.read_safetensors(made.checkpoints[0] / "model.safetensors")
        self.assertEqual([shape for shape, _ in tensors.values()],
                         [[784, 32], [32], [32, 7], [7], [7, 10], [10]])
        self.assertTrue(all(map(math.isfinite, sum((v for _, v in tensors.values()), ()))))
        self.assertEqual(sum(len(values) for _, values in tensors.values()),
                         made.summary["parameters"])
        described = (made.checkpoints[0] / "network.json").read_text()
        self.assertIn(made.summary["weights_hash"], described)

    def test_default_place(self):
        self.succeed("train", SMALL, cwd=self.folder)
        self.succeed("train", SMALL, cwd=self.folder)
        latest = self.folder / "runs" / "latest"
        made = sorted(path for path in latest.parent.iterdir() if path != latest)
        self.assertEqual(len(made), 2)
        self.assertEqual(latest.resolve(), made[1].resolve())
        self.assertRegex(made[0].name, r"^\d{4}-\d\d-\d\d-\d{6}$")
        self.assertTrue(all((path / "summary.json").is_file() for path in made))

    def test_a_path_that_is_not_utf8(self):
        digits = self.folder / os.fsdecode(b"digits-\xff")
        self.succeed("generate", digits, "--train-limit 60 --test-limit 20")
        result = run("train --layers 4 --data", digits, "--run-dir", self.folder / "run")
        self.assert_refused(result, 2, ["--data", "is not UTF-8"])
        self.assertFalse((self.folder / "run").exists())

    def test_one_that_holds_a_run_is_refused(self):
        made = self.train(SMALL)
        before = {path: path.stat().st_mtime_ns for path in made.folder.rglob("*")}
        for options in ({}, {"threads": 2}, {"ranks": 2}):
            with self.subTest(**options):
                result = run("train", SMALL, "--run-dir", made.folder, **options)
                self.assert_refused(result, 2, [made.folder, "remedy"])
        self.assertEqual({path: path.stat().st_mtime_ns for path in made.folder.rglob("*")}, before)

    def test_one_that_cannot_be_written(self):
        file = self.folder / "file"
        file.write_text("")
        for path, flags, options in (("/proc/x", "", {}), (file, "--dry-run", {}), (file / "run", "", {"threads": 3}),
                                     (file / "run/below", "--dry-run", {"ranks": 2}), ("/proc/x", "", {"ranks": 2})):
            with self.subTest(path=path, **options):
                result = run("train", SMALL, flags, "--run-dir", Path(path), **options)
                self.assert_refused(result, 74, [path, "remedy"])


class Steps(command.CommandTest):
    def sizes(self, run):
        return [line["examples"] for line in run.metrics]

    def test_checkpoint_every(self):
        for every, steps in ((2, [2, 4, 5]), (5, [5]), (7, [5])):
            with self.subTest(every=every):
                made = self.train(SMALL, f"--checkpoint-every {every}", name=f"every-{every}")
                self.assertEqual([path.name for path in made.checkpoints],
                                 [f"step-{step:08}" for step in steps])
                for path in made.checkpoints:
                    files.read_safetensors(path / "model.safetensors")

    def test_steps_end_the_run(self):
        for steps, epochs in ((3, 1), (5, 1), (7, 2), (100, 3)):
            with self.subTest(steps=steps):
                made = self.train(SMALL, f"--epochs 3 --steps {steps}", name=f"steps-{steps}")
                self.assertEqual(self.sizes(made), (3 * ([128] * 4 + [88]))[:steps])
                self.assertEqual(made.summary["steps"], min(steps, 15))
                self.assertEqual(len(made.summary["epochs"]), epochs)

    def test_enormous_numbers_are_only_limits(self):
        most = 2**63 - 1
        made = self.train(SMALL, f"--epochs {most} --steps 2 --batch-size {most} --leaf {most}",
                          f"--train-limit {most} --test-limit 100 --seed {most}", threads=2)
        self.assertEqual(self.sizes(made), [60000, 60000])

    def test_drop_remainder(self):
        self.assertEqual(self.sizes(self.train(SMALL, "--drop-remainder")), [128] * 4)
        result = run("train", SMALL, "--drop-remainder --batch-size 601", cwd=self.folder)
        self.assert_refused(result, 2, ["drop-remainder", "601", "600"])

    def test_leaf(self):
        usual = self.train(SMALL, ranks=2)
        wide = self.train(SMALL, "--leaf 64", ranks=2, name="wide")
        self.assert_says(usual.result.out, "64 a rank in leaves of 16", usual.result)
        self.assert_says(wide.result.out, "64 a rank in leaves of 64", wide.result)
        bf16 = self.train(SMALL, "--precision bf16 --batch-size 256", ranks=2, name="bf16")
        self.assert_says(bf16.result.out, "128 a rank in leaves of 32", bf16.result)
        for loss, other in zip(usual.losses, wide.losses):
            self.assertAlmostEqual(loss, other, delta=1e-5)

    def test_more_ranks_than_examples(self):
        few = "--train-limit 3 --test-limit 2 --layers 32 --epochs 4"
        alone = self.train(few, name="alone")
        for launch in ("ranks", "threads"):
            with self.subTest(launch=launch):
                made = self.train(few, name=launch, **{launch: 5})
                self.assert_says(made.result.out, ["idle", "2 of 5 ranks"], made.result)
                self.assertEqual(made.summary["examples"], 12)
                for loss, other in zip(made.losses, alone.losses):
                    self.assertAlmostEqual(loss, other, delta=1e-5)
                for key in ("test_loss", "test_accuracy"):
                    self.assertAlmostEqual(made.summary["epochs"][-1][key],
                                           alone.summary["epochs"][-1][key], delta=1e-4)

    def test_idle_ranks_are_named(self):
        made = self.train(SMALL, "--batch-size 4 --steps 9", threads=5)
        self.assert_says(made.result.out, ["idle", "1 of 5 ranks"], made.result)

    def test_a_linear_classifier(self):
        self.assertEqual(self.train(SMALL, "--layers none").summary["parameters"], 7850)


class Output(command.CommandTest):
    def test_progress_off_is_silent(self):
        for launch in ("ranks", "threads"):
            with self.subTest(launch=launch):
                made = self.train(SMALL, "--progress off", name=launch, **{launch: 2})
                self.assertEqual((made.result.out, made.result.err), ("", ""))

    def test_every_line_is_printed_once(self):
        labels = ("device", "data", "policy", "network", "batch", "reduction")
        for launch in ("ranks", "threads"):
            with self.subTest(launch=launch):
                result = self.train(SMALL, "--progress lines", name=launch, **{launch: 3}).result
                lines = result.out.splitlines()
                for start in ("lockstep ", *(f"  {label} " for label in labels), "epoch 1/1",
                              "5 steps", "test: ", "weights "):
                    found = [line for line in lines if line.startswith(start)]
                    self.assertEqual(len(found), 1, f"'{start}': {result}")
                self.assert_says(lines[0], "3 ranks on 1 host", result)

    def test_a_bar_is_drawn_where_it_is_asked_for(self):
        result = self.train(SMALL, "--layers 700 --epochs 30 --progress bar").result
        self.assertIn("\r[", result.out, str(result))
        self.assertNotIn("\r", self.train(SMALL, name="alone").result.out)
        self.assertNotIn("\r", self.train(SMALL, name="ranks", ranks=2).result.out)

    def test_a_full_disk_behind_stdout(self):
        for args in ("--help", "train --print-config", "train --help"):
            with self.subTest(args=args), open("/dev/full", "wb") as full:
                process = command.start([str(command.binary), *args.split()], stdout=full)
                result = command.finish(process)
                self.assert_refused(result, 74, ["stdout: cannot be written: No space left on device", "remedy"])


class Generate(command.CommandTest):
    LIMITS = "--train-limit 600 --test-limit 200"

    def test_files_hold_the_built_in_digits(self):
        digits = self.folder / "new" / "digits"
        self.succeed("generate", digits, self.LIMITS)
        headers = [(0x803, 600, 28, 28), (0x801, 600), (0x803, 200, 28, 28), (0x801, 200)]
        zipped = self.folder / "zipped"
        zipped.mkdir()
        for name, header in zip(files.TRAIN + files.TEST, headers):
            raw = (digits / name).read_bytes()
            self.assertEqual(struct.unpack_from(f">{len(header)}I", raw), header)
            self.assertEqual(len(raw), 4 * len(header) + math.prod(header[1:]))
            (zipped / f"{name}.gz").write_bytes(gzip.compress(raw))
        hashes = {name: self.train(SMALL, "--data", data, name=name).summary["weights_hash"]
                  for name, data in (("built-in", "synthetic"), ("files", digits),
                                     ("gzip", zipped))}
        self.assertEqual(len(set(hashes.values())), 1, str(hashes))

    def test_other_seeds_draw_other_digits(self):
        for name, seed in (("a", 1), ("b", 1), ("c", 2)):
            self.succeed("generate", self.folder / name, self.LIMITS, f"--seed {seed}")
        a, b, c = ((self.folder / name / files.TRAIN[0]).read_bytes() for name in "abc")
        self.assertEqual(a, b)
        self.assertNotEqual(a, c)

    def test_an_existing_set_is_refused(self):
        self.succeed("generate", self.folder, self.LIMITS)
        before = (self.folder / files.TRAIN[0]).read_bytes()
        result = run("generate", self.folder, "--train-limit 5 --test-limit 5")
        self.assert_refused(result, 2, [self.folder, "remedy"])
        self.assertEqual((self.folder / files.TRAIN[0]).read_bytes(), before)

    def test_an_unwritable_folder(self):
        self.assert_refused(run("generate /proc/x", self.LIMITS), 74, ["/proc/x", "remedy"])


class Agreement(command.CommandTest):
    """Ranks that were started differently end together, and the odd one is named."""

    def job(self, *pieces):
        """Two ranks as usual and rank 2 with another program, flags or folder."""
        argv = pieces[0]
        for piece in pieces[1:]:
            argv = argv + [":"] + piece[2:]  # without "mpirun --oversubscribe"
        return call(argv, cwd=self.folder)

    def test_flags(self):
        usual = ("train", SMALL, "--run-dir run")
        for flags, needles in (("--seed 5", ["rank 2", "seed", "22", "5"]),
                               ("--data nowhere", ["rank 2", "data", "nowhere"]),
                               ("--dry-run", ["rank 2", "--dry-run"]),
                               ("--print-config", ["rank 2", "--print-config"]),
                               ("--batchsize 5", ["rank 2", "--batchsize", "--batch-size"])):
            with self.subTest(flags=flags):
                result = self.job(mpirun(2, *usual), mpirun(1, *usual, flags))
                self.assert_refused(result, 2, needles)
        self.assertEqual(list(self.folder.iterdir()), [])

    def other_build(self):
        """The same program, with another hash."""
        other = self.folder / "lockstep"
        shutil.copy(command.binary, other)
        with other.open("ab") as file:
            file.write(b"\0")
        return other

    def test_binaries(self):
        result = self.job(mpirun(2, "train", SMALL), mpirun(1, "train", SMALL, program=self.other_build()))
        self.assert_refused(result, 2, ["the lockstep binary is ", "on rank 2 on "])

    def test_run_files(self):
        for name in ("a.toml", "b.toml"):
            (self.folder / name).write_text("seed = 5\n")
        result = self.job(mpirun(2, "train a.toml", SMALL), mpirun(1, "train b.toml", SMALL))
        self.assert_refused(result, 2, ["rank 2", "run file", "a.toml", "b.toml"])

    def test_data(self):
        here, there = self.folder / "here", self.folder / "there"
        files.write_set(here / "digits")
        files.write_set(there / "digits", train=30)
        train = ("train --data digits --layers 4 --run-dir", self.folder / "run")
        result = self.job(mpirun(2, *train, options=f"-wdir {here}"),
                          mpirun(1, *train, options=f"-wdir {there}"))
        self.assertIn(result.code, (2, 65), str(result))
        self.assert_refused(result, result.code, ["rank 2", "training set", "20 records", "30 records"])
        shutil.rmtree(there / "digits")
        result = self.job(mpirun(2, *train, options=f"-wdir {here}"),
                          mpirun(1, *train, options=f"-wdir {there}"))
        self.assert_refused(result, 65, ["rank 2", "digits", "no such file or folder", "remedy"])
        self.assertFalse((self.folder / "run").exists())

    def test_the_doctor_names_them(self):
        usual = "doctor --data digits"
        for name in ("here", "there"):
            files.write_set(self.folder / name / "digits", train=20 if name == "here" else 30)
        others = [mpirun(1, usual, options=f"-wdir {self.folder / name}") for name in ("here", "there")]
        result = self.job(*others)
        self.assert_ends(result, 1)
        self.assert_says(result.out, ["error: ranks read different data", "on rank 1", "remedy"], result)
        shutil.rmtree(self.folder / "there/digits")
        result = self.job(*others)
        self.assert_ends(result, 1)
        self.assert_says(result.out, ["digits: no such file or folder", "remedy"], result)
        self.assertNotIn("nothing is wrong", result.out)
        result = self.job(mpirun(1, "doctor"), mpirun(1, "doctor", program=self.other_build()))
        self.assert_ends(result, 1)
        self.assert_says(result.out, ["error: ranks run different builds", "on rank 0", "on rank 1"], result)


class Doctor(command.CommandTest):
    """`lockstep doctor` without a run: the launch of this job."""

    def test_one_process(self):
        result = self.succeed("doctor")
        self.assert_says(result.out, ["1 rank on 1 host", "no launcher", "nothing is wrong"], result)
        self.assertNotIn("network", result.out)
        missing = self.folder / "missing"
        result = run("doctor --data", missing)
        self.assert_ends(result, 1)
        self.assert_says(result.out, [f"error: {os.uname().nodename}: {missing}: no such file or folder", "remedy"], result)
        self.assert_refused(run("doctor", missing, "--threads 2"), 2, ["--threads", "RUN"])
        self.assert_refused(run("doctor --thread 2", ranks=2), 2, ["'--threads'"])
        self.assert_refused(run("doctor --backend nccl"), 2, ["backend nccl with device cpu", "--device cuda"])

    def test_three_ranks(self):
        result = run("doctor --data synthetic", ranks=3)
        few = len(os.sched_getaffinity(0)) < 3
        self.assert_ends(result, 1 if few else 0)
        self.assert_says(result.out, ["3 ranks on 1 host", "started by mpirun", "backend shared",
                                      "3 ranks share" if few else "nothing is wrong"], result)
        links = re.findall(r"rank (\d) on \S+ +rank (\d) on \S+ +\d+\.\d us +\d+\.\d GB/s", result.out)
        self.assertEqual(links, [("0", "1"), ("0", "2"), ("1", "2")], str(result))

    def test_a_smaller_world_than_slurm_allotted(self):
        result = run("doctor", ranks=2, env={"SLURM_NTASKS": "8"})
        self.assert_ends(result, 1)
        self.assert_says(result.out, ["Slurm allotted 8 tasks, but the job has 2 ranks", "--ntasks"], result)
        self.succeed("doctor", ranks=2, env={"SLURM_NTASKS": "2"})

    def test_ranks_that_share_a_core(self):
        """The doctor says it, and so does every start, as a warning."""
        core = min(os.sched_getaffinity(0))
        start = words(f"taskset -c {core}") + mpirun(2, options="--bind-to none")
        shared = "2 ranks share 1 " + ("of" if os.cpu_count() > 1 else "core")
        result = call(start + ["doctor"])
        self.assert_ends(result, 1)
        self.assert_says(result.out, [f"warning: {os.uname().nodename}: {shared}", "remedy"], result)
        result = call(start + words("train", SMALL, "--progress off --run-dir", self.folder / "run"))
        self.assert_ends(result, 0)
        self.assertEqual(result.err.count(shared), 1, str(result))
        result = call(start + ["doctor", "--threads", "2"])
        self.assert_ends(result, 1)
        self.assert_says(result.out, ["2 ranks with 4 threads in all share 1"], result)


class Launchers(command.CommandTest):
    FAKES = [  # what a launcher would leave in the environment, what the message must name
        ({"PMI_SIZE": "2", "PMI_RANK": "0"}, ["2 ranks", "world of 1", "mpirun"]),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, ["4", "srun --mpi=pmix", "--ranks"]),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2",
          "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}, ["2 ranks", "PMIx", "srun --mpi=pmix"]),
    ]

    def test_a_world_that_the_launcher_did_not_promise_is_refused(self):
        for env, needles in self.FAKES:
            with self.subTest(**env):
                result = run("train", SMALL, env=env, cwd=self.folder)
                self.assert_refused(result, 2, [*needles, "remedy"])
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_other_ranks_stay_silent(self):
        for env in ({"PMI_SIZE": "2", "PMI_RANK": "1"},
                    {**self.FAKES[-1][0], "SLURM_PROCID": "1"}):
            with self.subTest(**env):
                result = run("train", SMALL, env=env, cwd=self.folder)
                self.assert_ends(result, 2)
                self.assertEqual(result.errors, [], str(result))

    def test_threads_inside_a_slurm_job_may_be_asked_for(self):
        env = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}
        self.assertEqual(self.train(SMALL, threads=2, env=env).summary["ranks"], 2)

    def test_ranks_as_threads_are_refused_under_a_launcher(self):
        for flags in ("--ranks 2", "--set ranks=3", "--backend threads"):
            with self.subTest(flags=flags):
                result = run("train", SMALL, flags, ranks=2, cwd=self.folder)
                self.assert_refused(result, 2, ["--ranks", "remedy"])

    def test_ranks_that_nobody_started_are_refused(self):
        for flags, env in (("--backend mpi --ranks 3", {}), ("--backend shared --ranks 3", {}),
                           ("--backend mpi", {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"})):
            with self.subTest(flags=flags, **env):
                result = run("train", SMALL, flags, env=env, cwd=self.folder)
                self.assert_refused(result, 2, [flags.split()[1], "remedy"])

    def test_backends(self):
        made = self.train(SMALL, "--backend mpi", name="mpi")
        self.assert_says(made.result.out, ["1 rank", "backend mpi"], made.result)
        made = self.train(SMALL, "--backend shared", name="shared", ranks=2)
        self.assert_says(made.result.out, ["2 ranks", "backend shared"], made.result)
        made = self.train(SMALL, "--backend threads", name="threads", threads=2)
        self.assert_says(made.result.out, ["2 ranks", "backend threads"], made.result)


if __name__ == "__main__":
    unittest.main()
