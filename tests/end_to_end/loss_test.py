"""Losses and metrics from the command: one hash for any ranks, what is recorded and evaluated, what is refused."""

import json
import struct
import unittest

import command
import files
from command import run

FLAGS = "--test-split 0.2 --batch-size 16 --layers 8 --epochs 2 --progress off"
LOSSES = {  # flags and the name in network.json
    "--loss squared-error": "mean squared error of values",
    "--loss absolute-error": "mean absolute error of values",
    "--loss huber": "huber loss of values, delta 1.0",
    "--loss huber --huber-delta 0.25": "huber loss of values, delta 0.25",
}
REFUSED = {
    "--loss mse": ["loss", "'mse' is none of auto|cross-entropy", "did you mean 'squared-error'?"],
    "--loss mae": ["did you mean 'absolute-error'?"],
    "--loss bce": ["did you mean 'binary-cross-entropy'?"],
    "--loss categorical_crossentropy": ["did you mean 'cross-entropy'?"],
    "--loss huber": ["--loss huber", "there are classes to predict", "cross-entropy or squared-error", "--task"],
    "--huber-delta 2": ["--huber-delta", "--loss huber"],
    "--loss squared-error --label-smoothing 0.1": ["--label-smoothing", "--loss squared-error"],
}


def area(scores, flags):
    """The area under the ROC curve, from all pairs."""
    pairs = [(a, b) for a, has in zip(scores, flags) if has for b, other in zip(scores, flags) if not other]
    return sum(1 if a > b else 0.5 if a == b else 0 for a, b in pairs) / len(pairs)


class Losses(command.CommandTest):
    def table(self):
        """Two numbers to predict, one of them with outliers."""
        path = self.folder / "table.csv"
        rows = [(x * 7 % 23, x * x % 19) for x in range(90)]
        path.write_text("a,b,y,z\n" + "".join(
            f"{a},{b},{2 * a - b + (300 if i % 17 == 0 else 0) + 0.5},{a * b / 4}\n" for i, (a, b) in enumerate(rows)))
        return path

    def test_one_hash_for_any_ranks(self):
        data = ("--data", self.table(), "--label-column y,z", FLAGS)
        hashes = {}
        for flags, name in LOSSES.items():
            one = self.train(*data, flags, name=f"one{flags}".replace(" ", ""))
            hashes[one.summary["weights_hash"]] = flags
            self.assertEqual(json.loads((one.checkpoints[-1] / "network.json").read_text())["loss"], name)
            for world in ({"threads": 3}, {"threads": 5}, {"ranks": 2} if command.MPI else {"threads": 2}):
                with self.subTest(flags=flags, **world):
                    other = self.train(*data, flags, name=f"other{flags}{world}".replace(" ", ""), **world)
                    self.assertEqual(other.summary["weights_hash"], one.summary["weights_hash"])
            epoch = one.summary["epochs"][-1]
            self.assertEqual(epoch["train_r2"] is None, "squared" not in flags)
            self.assertIsInstance(epoch["test_r2"], float)
            result = self.succeed("evaluate", one.folder, "--data", self.table(), "--test-split 0.2")
            self.assert_says(result.out, [f"loss {epoch['test_loss']:.6f}"], result)
        self.assertEqual(len(hashes), len(LOSSES))
        plain = self.train(*data, name="plain")
        self.assertEqual(hashes[plain.summary["weights_hash"]], "--loss squared-error")

    def test_the_squared_error_of_classes(self):
        args = "--data synthetic --train-limit 300 --test-limit 60 --batch-size 50 --layers 8 --epochs 1 --progress off"
        one = self.train(args, "--loss squared-error", name="one")
        self.assertEqual(self.train(args, "--loss squared-error", name="three", threads=3).summary["weights_hash"],
                         one.summary["weights_hash"])
        self.assertLess(one.summary["epochs"][-1]["test_loss"], 1)
        for flags, texts in REFUSED.items():
            with self.subTest(flags=flags):
                self.assert_refused(run("train", args, flags), 2, texts)

    def labels(self, name="labels.csv", rows=240, extra=""):
        """Three labels: a > b, a + b > 20, and a rare one."""
        path = self.folder / name
        pairs = [(x * 7 % 23, x * x % 19) for x in range(rows)]
        path.write_text("a,b,more,large,rare\n" + "".join(
            f"{a},{b},{int(a > b)},{int(a + b > 20)},{int(a * b > 250)}\n" for a, b in pairs) + extra)
        return path

    def test_several_labels(self):
        data = ("--data", self.labels(), "--label-column more,large,rare --test-split 0.25 --batch-size 16 --layers 16",
                "--epochs 30 --learning-rate 0.02 --progress bar")
        one = self.train(*data, name="one")
        self.assert_says(one.result.out, ["3 labels, each 0 or 1: 'more', 'large', 'rare'", "have a wrong label"], one.result)
        for world in ({"threads": 3}, {"ranks": 2} if command.MPI else {"threads": 2}):
            with self.subTest(**world):
                other = self.train(*data, name=f"other{world}", **world)
                self.assertEqual(other.summary["weights_hash"], one.summary["weights_hash"])
        self.assertGreater(one.summary["epochs"][-1]["test_accuracy"], 0.8)  # all labels of a record are right
        predicted = self.folder / "predicted.csv"
        args = (one.folder, "--data", self.labels(), "--test-split 0.25")
        self.succeed("predict", *args, "--probabilities --output", predicted)
        rows = [line.split(",") for line in predicted.read_text().splitlines()]
        self.assertEqual(rows[0], ["id", "more", "large", "rare", "p:more", "p:large", "p:rare"])
        self.assertEqual(len(rows), 61)
        named = self.folder / "named.csv"  # as the column that numbers the records
        named.write_text(self.labels().read_text().replace("large", "id", 1))
        short = self.train("--data", named, "--label-column more,id --ignore-columns rare --test-split 0.25 --epochs 1",
                           name="named")
        text = self.succeed("predict", short.folder, "--data", named, "--output -").out
        self.assertEqual(text.splitlines()[0], "id,more,predicted:id")
        self.assertTrue(all((float(row[4 + i]) > 0.5) == (row[1 + i] == "1") for row in rows[1:] for i in range(3)))
        result = self.succeed("evaluate", *args, "--report --json")
        figures = json.loads(result.out)
        self.assertEqual([label["label"] for label in figures["classes"]], ["more", "large", "rare"])
        self.assertEqual(figures["accuracy"], one.summary["epochs"][-1]["test_accuracy"])
        self.assertEqual(one.summary["classes"], figures["classes"])
        for name, keep in (("rare", lambda row: row[4] == "0"), ("any", lambda row: row[2:] == ["0", "0", "0"])):
            some = self.folder / f"without-{name}.csv"
            records = [line.split(",") for line in self.labels().read_text().splitlines()]
            some.write_text("".join(",".join(row) + "\n" for row in records[:1] + [row for row in records[1:] if keep(row)]))
            with self.subTest(without=name):
                self.assert_means_of_report(one.folder, some)
        lines = self.folder / "predicted.jsonl"
        self.succeed("predict", *args, "--output", lines)
        first = json.loads(lines.read_text().splitlines()[0])
        self.assertEqual(first["labels"], [name for name, flag in zip(rows[0][1:4], rows[1][1:4]) if flag == "1"])

    def assert_means_of_report(self, checkpoint, data):
        """Those of scikit-learn's classification_report: of all labels, what a label does not have counts as 0."""
        args = ("evaluate", checkpoint, "--data", data, "--report")
        shown = self.succeed(*args)
        table = {line[:14].strip(): line[14:].split() for line in shown.out.splitlines()}
        labels = json.loads(self.succeed(*args, "--json").out)["classes"]
        support = sum(label["examples"] for label in labels)
        for row, weights in (("macro avg", [1] * len(labels)), ("weighted avg", [label["examples"] for label in labels])):
            means = [sum(weight * (label[name] or 0) for weight, label in zip(weights, labels)) / (sum(weights) or 1)
                     for name in ("precision", "recall", "f1")]
            self.assertEqual(table[row], [*(f"{mean:.4f}" for mean in means), str(support)], str(shown))

    def test_metrics_are_those_of_the_predictions(self):
        path = self.labels()
        records = [[int(text) for text in line.split(",")] for line in path.read_text().splitlines()[1:]]
        classes = self.folder / "classes.csv"
        classes.write_text("a,b,label\n" + "".join(f"{a},{b},{(a + b) // 12}\n" for a, b, *_ in records))
        with self.subTest("several labels"):
            made = self.train("--data", path, "--label-column more,large,rare --test-split 0.25 --epochs 2 --layers 4 "
                              "--batch-size 32 --metrics auc", name="labels")
            scores = self.predicted(made, path, 4)
            expected = sum(area(scores[i], [row[2 + i] for row in records]) for i in range(3)) / 3
            self.assertEqual(self.metrics(made, path, "auc"), [expected])
            self.assertRegex(made.result.out, "testing loss 0.[0-9]+, accuracy 0.[0-9]+, auc 0.[0-9]{3} ")
            self.assertIsInstance(made.summary["epochs"][-1]["test_auc"], float)
        with self.subTest("classes"):
            made = self.train("--data", classes, "--test-split 0.25 --epochs 2 --layers 4 --batch-size 32", name="classes")
            labels = [(a + b) // 12 for a, b, *_ in records]
            scores = self.predicted(made, classes, 3)
            auc = sum(area(scores[c], [label == c for label in labels]) for c in range(4)) / 4
            rows = list(zip(*scores))
            ranks = [sorted(range(4), key=lambda c: -row[c]).index(label) for row, label in zip(rows, labels)]
            top_2 = sum(rank < 2 for rank in ranks) / len(ranks)
            for world in ({}, {"threads": 3}):
                self.assertEqual(self.metrics(made, classes, "top-2,auc", **world), [top_2, auc])
            self.assert_refused(run("evaluate", made.folder, "--data", classes, "--metrics top-4"), 2,
                                ["metric 'top-4'", "there are 4 classes"])
        with self.subTest("a class without records"):
            some = self.folder / "some.csv"
            some.write_text("".join(classes.read_text().splitlines(True)[:3]))
            self.assert_refused(run("evaluate", made.folder, "--data", some, "--metrics auc", threads=2), 65,
                                ["lockstep: error: metric auc: every record of the test set has label '0'"])
            for flags, kind in (("--test-limit 1", "test"), ("--validation 0.01", "validation")):
                result = run("train --data", classes, "--test-split 0.25 --epochs 1 --layers 4 --metrics auc", flags,
                             "--run-dir", self.folder / "refused", threads=2)
                self.assert_refused(result, 65, [f"metric auc: no record of the {kind} set has label '"])
        with self.subTest("a label of all records"):
            path.write_text("a,more,all\n" + "".join(f"{i},{i % 2},1\n" for i in range(20)))
            result = run("train --data", path, "--label-column more,all --test-split 0.25 --epochs 1 --metrics auc")
            self.assert_refused(result, 65, ["metric auc: every record of the test set has label 'all'"])

    def predicted(self, made, data, first):
        """The columns of probabilities."""
        path = self.folder / "predicted.csv"
        self.succeed("predict", made.folder, "--data", data, "--probabilities --output", path)
        return list(zip(*([float(text) for text in line.split(",")[first:]]
                          for line in path.read_text().splitlines()[1:])))

    def metrics(self, made, data, names, **world):
        out = self.succeed("evaluate", made.folder, "--data", data, "--json --metrics", names, **world).out
        return [json.loads(out)[name] for name in names.split(",")]

    def test_one_label_is_a_binary_classification(self):
        one = self.train("--data", self.labels(), "--label-column more --ignore-columns large,rare --task multi-label",
                         "--test-split 0.25 --batch-size 16 --layers 16 --epochs 10 --progress off")
        network = json.loads((one.checkpoints[-1] / "network.json").read_text())
        self.assertEqual((network["loss"], network["widths"]), ("binary cross-entropy", [2, 16, 1]))

    def test_a_label_is_predicted_as_it_is_evaluated(self):
        """By the sign of the logit: here its sigmoid, in float32, is a half."""
        weights = self.folder / "weights.safetensors"
        weights.write_bytes(files.safetensors({"0.weight": ("F32", [2, 1], bytes(8)),
                                               "0.bias": ("F32", [1], struct.pack("<f", 1e-9))}))
        args = "--label-column more --ignore-columns large,rare --task multi-label --test-split 0.25 --layers none"
        made = self.train("--data", self.labels(), args, "--steps 1 --learning-rate 1e-30 --progress off",
                          "--init", weights)
        data = self.folder / "all.csv"
        data.write_text("a,b,more\n" + "".join(f"{i},{i * i % 7},1\n" for i in range(12)))
        out = self.succeed("evaluate", made.folder, "--data", data, "--json").out
        self.assertEqual(json.loads(out)["accuracy"], 1)
        self.assertEqual(self.predicted(made, data, 1), [(1.0,) * 12, (0.5,) * 12])
        lines = self.succeed("predict", made.folder, "--data", data, "--output - --output-format jsonl").out
        self.assertEqual([json.loads(line)["labels"] for line in lines.splitlines()], [["more"]] * 12)
        self.succeed("predict", made.folder, "--data", data, "--output", self.folder / "p.npy")
        self.assertEqual((self.folder / "p.npy").read_bytes()[-48:], struct.pack("<12i", *[1] * 12))

    def test_refusals_of_several_labels(self):
        args = "--label-column more,large,rare --test-split 0.25 --progress off"
        wrong = self.labels("wrong.csv", extra="1,2,1,2,0\n")
        self.assert_refused(run("train", "--data", wrong, args, "--task multi-label"), 65,
                            ["wrong.csv:242", "column 'large'", "'2' is neither 0 nor 1"])
        words = self.labels("words.csv", extra="1,2,1,yes,0\n")
        self.assert_refused(run("train", "--data", words, args, "--task multi-label"), 65,
                            ["words.csv:242", "column 'large'", "'yes' is neither 0 nor 1"])
        for flags, texts in {"--loss huber": ["--loss huber", "several labels", "binary-cross-entropy"],
                             "--class-weights balanced": ["--class-weights", "several labels"],
                             "--classes 2": ["--classes", "several labels"],
                             "--task classification": ["--label-column", "3 columns", "--task multi-label"]}.items():
            with self.subTest(flags=flags):
                self.assert_refused(run("train", "--data", self.labels(), args, flags), 2, texts)

    def test_refusals_of_numbers(self):
        data = ("--data", self.table(), "--label-column y", FLAGS)
        for flags, texts in {"--loss cross-entropy": ["--loss cross-entropy", "there are numbers to predict", "squared-error or absolute-error or huber"],
                             "--loss huber --huber-delta 0": ["--huber-delta 0.0", "not a finite float32 above 0"],
                             "--loss huber --huber-delta 1e39": ["--huber-delta 1e+39", "not a finite float32 above 0"],
                             "--label-smoothing 0.1": ["--label-smoothing", "--loss squared-error"]}.items():
            with self.subTest(flags=flags):
                self.assert_refused(run("train", *data, flags), 2, texts)


if __name__ == "__main__":
    unittest.main()
