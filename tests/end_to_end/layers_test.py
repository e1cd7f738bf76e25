"""Networks of one's own: --model lenet, [[layer]] lists, their checkpoints and their refusals."""

import json
import unittest

import command

FEW = "--train-limit 300 --test-limit 100 --epochs 1 --threads 1"
LIST = """
[[layer]]
kind = "conv"
filters = 4
kernel = 3
padding = "same"

[[layer]]
kind = "batch-norm"

[[layer]]
kind = "layer-norm"

[[layer]]
kind = "average-pool"
size = 4

[[layer]]
kind = "flatten"

[[layer]]
kind = "dropout"
rate = 0.5

[[layer]]
kind = "dense"
width = 20
"""
WORLDS = [{"threads": ranks} for ranks in (1, 2, 3, 5)] + [{"ranks": ranks} for ranks in (2, 3, 5)]


class Layers(command.CommandTest):
    def run_file(self, text=LIST, name="own.toml"):
        path = self.folder / name
        path.write_text(text)
        return path

    def assert_one_hash(self, *args):
        found = {}
        for number, world in enumerate(WORLDS):
            for exchange in ("activations", "sums") if number else ("auto",):
                run = self.train(*args, FEW, "--exchange", exchange,
                                 name=f"run-{number}-{exchange}", **world)
                key = (run.summary["weights_hash"], *run.losses)
                found.setdefault(key, []).append((world, exchange))
        run = self.train(*args, FEW.replace("--threads 1", ""), "--threads 2", name="products")
        found.setdefault((run.summary["weights_hash"], *run.losses), []).append("2 threads of products")
        self.assertEqual(len(found), 1, found)

    def test_lenet_on_any_ranks(self):
        self.assert_one_hash("--model lenet")

    def test_a_list_on_any_ranks(self):
        self.assert_one_hash(self.run_file())

    def test_audit(self):
        rows_alone = self.run_file(LIST.replace("batch-norm", "layer-norm"))
        audited = self.train(rows_alone, FEW, "--audit-every 1", threads=3, name="audited")
        alone = self.train(rows_alone, FEW, threads=1, name="alone")
        self.assertEqual(audited.summary["weights_hash"], alone.summary["weights_hash"])

    def test_batch_norm_under_file(self):
        """Files decide the batches; rows without an example count nowhere."""
        self.succeed("generate", self.folder / "data", "--train-limit 200 --test-limit 50 --files 6")
        found = {self.train(self.run_file(), "--data", self.folder / "data", "--batch-size 33",
                            "--shard-policy file --epochs 1 --threads 1 --exchange", exchange,
                            name=f"{launch}-{exchange}", **{launch: 3}).summary["weights_hash"]
                 for launch in ("threads", "ranks") for exchange in ("activations", "sums")}
        self.assertEqual(len(found), 1)

    def test_allreduce(self):
        canonical = self.train(self.run_file(), FEW, threads=2, name="canonical")
        run = self.train(self.run_file(), FEW, "--reduction allreduce", threads=2)
        self.assertEqual(len(run.losses), len(canonical.losses))
        for loss, expected in zip(run.losses, canonical.losses):
            self.assertAlmostEqual(loss, expected, delta=1e-4 * expected)

    def test_printed_lists_are_run_files(self):
        printed = self.succeed("train", self.run_file(), "--print-config").out
        again = self.succeed("train", self.run_file(printed, "again.toml"), "--print-config").out
        self.assertEqual(printed, again)
        self.assertEqual(printed.count("[[layer]]"), 7)
        self.assertIn("momentum = 0.9", printed)

    def test_checkpoints_are_evaluated(self):
        run = self.train(self.run_file(), FEW, threads=2)
        said = json.loads((run.checkpoints[-1] / "network.json").read_text())
        self.assertEqual((said["model"], said["input"]), ("layers", [28, 28, 1]))
        result = self.succeed("evaluate", run.checkpoints[-1], "--data synthetic --test-limit 100",
                              "--json", threads=3)
        found = json.loads(result.out)
        self.assertEqual(found["loss"], run.summary["epochs"][-1]["test_loss"])
        output = self.folder / "predictions.csv"
        self.succeed("predict", run.checkpoints[-1], "--data synthetic --test-limit 100",
                     "--output", output, threads=2)
        self.assertEqual(len(output.read_text().splitlines()), 101)

    def test_refusals(self):
        for text, needles in (
                (LIST.replace('"conv"', '"conf"'), ["own.toml:2", "did you mean 'conv'?"]),
                (LIST.replace("kernel = 3", "kernel = 0"), ["own.toml:2", "kernel"]),
                (LIST.replace("size = 4", "size = 40"), ["layer 4 (average-pool 40)", "28x28x4"]),
                (LIST.replace('kind = "flatten"', 'kind = "layer-norm"'), ["layer 7", "flatten"])):
            result = command.run("train", self.run_file(text), FEW, "--progress off", threads=2)
            self.assert_refused(result, 2, needles)
        result = command.run("train", self.run_file(), FEW, "--audit-every 2", threads=2)
        self.assert_refused(result, 2, ["audit-every", "batch-norm", "layer-norm"])
        self.assert_refused(command.run("train --model lenet --layers 32", FEW), 2, ["--model mlp"])
        self.assert_refused(command.run("train --model layers", FEW), 2, ["[[layer]]"])

    def test_data_that_is_no_image(self):
        rows = "".join(f"{i % 3},{i},{i + 1},2\n" for i in range(30))
        for part in ("train", "test"):
            (self.folder / f"{part}.csv").write_text("label,a,b,c\n" + rows)
        result = command.run("train --model lenet --data", self.folder)
        self.assert_refused(result, 2, ["layer 1 (conv 20@5x5)", "takes images"])


if __name__ == "__main__":
    unittest.main()
