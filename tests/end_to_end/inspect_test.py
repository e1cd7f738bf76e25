"""`lockstep inspect`: runs, checkpoints, weights and data as their files say, and what is damaged."""

import fcntl
import json
import signal
import unittest

import command
import files
from command import SMALL, run


class Inspect(command.CommandTest):
    def inspected(self, *args):
        return json.loads(self.succeed("inspect", *args, "--json").out)

    def test_a_run_and_its_checkpoints(self):
        made = self.train(SMALL, "--checkpoint-every 2")
        found = self.inspected(made.folder, "--verify")
        self.assertEqual(found["state"], "finished")
        self.assertEqual(found["steps"], len(made.metrics))
        self.assertEqual(found["loss_of_the_last_step"], made.losses[-1])
        self.assertEqual([part["checkpoint"] for part in found["checkpoints"]], [path.name for path in made.checkpoints])
        self.assertEqual({part["state"] for part in found["checkpoints"]}, {"valid"})
        saved = self.inspected(made.folder / "checkpoints", "--verify")
        self.assertEqual(saved, {"newest": str(made.checkpoints[-1]), "checkpoints": found["checkpoints"]})
        weights = made.checkpoints[0] / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
        for path in (made.folder, made.folder / "checkpoints", made.checkpoints[0]):
            damaged = run("inspect", path, "--verify")
            self.assert_ends(damaged, 65)
            self.assert_says(damaged.out + damaged.err, [str(weights), "checksum"], damaged)
        plain = self.succeed("inspect", made.folder)
        summary = made.folder / "summary.json"
        whole = summary.read_text()
        summary.write_text(whole[:-9])
        cut = run("inspect", made.folder, "--json")
        self.assert_ends(cut, 65)
        self.assertIn("summary.json", json.loads(cut.out)["state"])
        summary.write_text(whole)
        self.assert_says(plain.out, ["finished", "accuracy of the last step", "not verified", made.checkpoints[-1].name], plain)
        (made.folder / "checkpoints/step-2-copy").mkdir()  # not a checkpoint's name
        self.assertEqual(self.inspected(made.folder)["checkpoints"][-1]["checkpoint"], found["checkpoints"][-1]["checkpoint"])

    def test_a_folder_of_runs(self):
        for name, flags in (("runs/a", "--epochs 2"), ("runs/b", "--validation 0.2 --epochs 1 --keep-best")):
            self.train(SMALL, flags, name=name)
        folder = self.folder / "runs"
        (folder / "latest").symlink_to("b")
        (folder / "a").rename(self.folder / "elsewhere")
        (folder / "a").symlink_to(self.folder / "elsewhere")
        (folder / "c").mkdir()
        (folder / "c" / "config.toml").write_text("")
        (folder / "none").mkdir()
        found = self.inspected(folder)["runs"]
        summaries = [json.loads((folder / name / "summary.json").read_text()) for name in "ab"]
        last = [summary["epochs"][-1] for summary in summaries]
        self.assertEqual([list(run.values()) for run in found], [
            [name, "finished", epochs, summary["steps"], epoch["test_loss"], epoch["test_accuracy"], best]
            for name, epochs, summary, epoch, best in zip("ab", (2, 1), summaries, last, (None, 1))]
            + [["c", "no step recorded", None, None, None, None, None]])
        (folder / "c" / "summary.json").write_text(json.dumps({**summaries[0], "status": "running"}))
        state = lambda: self.inspected(folder)["runs"][2]["state"]
        self.assertEqual(state(), "not complete (running)")  # as far as can be known: it has no lock
        with open(folder / "c" / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.assertEqual(state(), "not complete (running)")
        self.assertEqual(state(), "not complete (killed, or ended by --timeout)")
        best = self.inspected(folder / "b/best")
        self.assertEqual(self.inspected(f"{folder}/b/best/"), best)
        self.assert_refused(run("inspect", folder, "--verify"), 2, ["--verify", "name one of its runs"])
        self.assert_refused(run("inspect", folder, "--classes 3"), 2, ["--classes", "a folder of them"])
        (folder / "b" / "summary.json").write_text("{")
        (folder / "sweep.json").write_text("{}")
        damaged = run("inspect", folder)
        self.assert_ends(damaged, 65)
        self.assert_says(damaged.out, ["b/summary.json", "finished", f"lockstep sweep --show {folder}"], damaged)
        pictures = self.folder / "pictures"
        for place in ("train/a", "train/b", "test/a", "test/b"):
            (pictures / place).mkdir(parents=True)
            (pictures / place / "1.png").write_bytes(files.png([1, 2], 1, 2))
        (self.folder / "elsewhere").rename(pictures / "run")
        self.assertEqual([part["records"] for part in self.inspected(pictures)["sets"]], [2, 2])
        self.succeed("generate", folder / "data", "--train-limit 10 --test-limit 10")
        for path in (folder / "data").iterdir():
            path.rename(folder / path.name)
        self.assertEqual([part["records"] for part in self.inspected(folder)["sets"]], [10, 10])  # of data beside runs

    def test_a_checkpoint(self):
        made = self.train(SMALL, "--hash-every 1")
        found = self.inspected(made.checkpoints[-1], "--verify")
        self.assertEqual(found["weights"], made.summary["weights_hash"])
        self.assertEqual(found["step"], len(made.metrics))
        self.assertEqual((found["epoch"], found["step_of_epoch"]), (1, len(made.metrics)))
        self.assertEqual(self.inspected(made.folder)["epoch"], 1)
        settings = found["settings"]
        self.assertEqual((settings["layers"], settings["optimizer"], settings["learning-rate"]), ([32], "adam", 0.001))
        hashes = {part["tensor"]: part["hash"] for part in found["tensors"]}
        self.assertEqual(hashes, made.metrics[-1]["hashes"])
        self.assertEqual(found["tensors"][0]["shape"], "[784, 32]")
        for part in found["tensors"]:
            self.assertLess(part["min"], part["max"])
            self.assertEqual(part["not_finite"], 0)
        refused = run("inspect", made.folder, "--train-limit 3")
        self.assert_refused(refused, 2, ["--train-limit", "is no data, but a run"])
        plain = self.succeed("inspect", made.checkpoints[-1])
        self.assert_says(plain.out, ["0.weight", "[784, 32]", "--verify", "learning-rate"], plain)

    def test_why_a_run_failed(self):
        folder = self.folder / "run"
        failed = run("train", SMALL, "--optimizer sgd --learning-rate 1e30 --run-dir", folder)
        self.assert_ends(failed, 76)
        cause = command.Run(folder).summary["cause"]
        self.assert_says(failed.err, cause, failed)
        found = self.inspected(folder)
        self.assertEqual([found[name] for name in ("state", "exit_code", "cause")], ["not complete (failed)", 76, cause])
        lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
        self.assertTrue(lines)
        (folder / "metrics.jsonl").write_text("".join(lines) + "{]\n")
        self.assertIn(f"metrics.jsonl:{len(lines) + 1}", self.inspected(folder)["state"])
        (folder / "metrics.jsonl").write_text("")  # as if it had failed in the first step
        found = self.inspected(folder)
        self.assertEqual((found["exit_code"], found["cause"]), (76, cause))
        self.assertEqual(found["state"], "not complete (failed)")
        self.assert_says(self.succeed("inspect", folder).out, ["exit code", "76", cause], failed)
        self.assert_says(run("doctor", folder).out, f"the run failed (76): {cause}\nrank 0 on", failed)

    def test_why_a_run_was_stopped(self):
        made = command.Run(self.folder / "run")
        process = self.start(command.words(command.binary, command.LONG, "--run-dir", made.folder))
        metrics = made.folder / "metrics.jsonl"
        self.wait_until(lambda: metrics.exists() and metrics.stat().st_size, process, "metrics")
        process.send_signal(signal.SIGTERM)
        self.assert_ends(command.finish(process), 75)
        examined = self.succeed("doctor", made.folder)
        self.assert_says(examined.out, [f"the run was stopped (75): {made.summary['cause']}", "the end"], examined)

    def test_a_file_of_weights(self):
        path = self.folder / "other.safetensors"
        path.write_bytes(files.safetensors({"body.0.weight": ("BF16", [2, 3, 1], bytes(12)), "n": ("I64", [], bytes(8))}))
        self.assertEqual(self.inspected(path), {"bytes": 20, "tensors": [
            {"tensor": "body.0.weight", "type": "BF16", "shape": "[2, 3, 1]"}, {"tensor": "n", "type": "I64", "shape": "[]"}]})
        plain = self.succeed("inspect", path)
        self.assert_says(plain.out, ["other.safetensors", "body.0.weight", "BF16", "[2, 3, 1]"], plain)
        made = self.train(SMALL)
        tensors = self.inspected(made.checkpoints[-1] / "model.safetensors")["tensors"]
        self.assertEqual([(tensor["tensor"], tensor["type"]) for tensor in tensors],
                         [(f"{layer}.{name}", "F32") for layer in (0, 1) for name in ("weight", "bias")])
        for init_map, code in (("", 65), ("--init-map 0=other", 2)):
            refused = run("train", SMALL, "--init", path, init_map, "--run-dir", self.folder / "none")
            self.assert_refused(refused, code, ["no tensor", "--init-map", "`lockstep inspect FILE.safetensors` lists"])
        self.assert_refused(run("inspect", path, "--verify"), 2, ["--verify", "no manifest"])
        self.assert_refused(run("inspect", path, "--classes 3"), 2, ["--classes", "or weights"])
        path.write_bytes(path.read_bytes()[:-1])
        self.assert_refused(run("inspect", path), 65, ["other.safetensors", "cut off"])

    def test_data(self):
        self.succeed("generate", self.folder / "data", "--train-limit 300 --test-limit 100")
        for path in ("synthetic", self.folder / "data"):
            train, test = self.inspected(path, "--train-limit 300 --test-limit 100")["sets"]
            self.assertEqual((train["records"], train["shape"], train["min"]), (300, "28x28", 0))
            self.assertTrue(0.9 < train["max"] <= 1)
            self.assertEqual((test["records"], test["labels"]), (100, 10))
        (self.folder / "alone.csv").write_text("a,kind\n1,x\n2,y\n4,x\n")
        alone = self.inspected(self.folder / "alone.csv", "--label-column kind")
        self.assertEqual([(part["records"], part["labels"]) for part in alone["sets"]], [(3, 2)])
        self.assertEqual((alone["columns"], alone["classes"], alone["standardized"]), (["a"], ["x", "y"], False))
        self.assertEqual(alone["sets"][0]["max"], 4)
        scaled = self.inspected(self.folder / "alone.csv", "--label-column kind --standardize true")
        self.assertEqual(scaled["standardized"], True)
        self.assertLess(scaled["sets"][0]["max"], 2)
        self.assertEqual(alone["sets"][0]["rarest"], "y: 1")
        self.assert_refused(run("inspect", self.folder / "nothing"), 65, ["nothing: no such file", "a run or a checkpoint"])
        self.assert_refused(run("inspect", self.folder / "data", "--verify"), 2, ["--verify"])
        self.assert_refused(run("inspect"), 2, ["nothing to inspect"])


if __name__ == "__main__":
    unittest.main()
