"""Weights of records (--weight-column) and classes: what they mean, what is evaluated with them, what is refused."""

import json
import math
import unittest

import command
from command import Run, run

FLAGS = "--layers 8 --standardize false --progress off"
RECORDS = [(i * 7 % 23 / 10, i * i % 19 / 10, i * i % 4, "bca"[(i * 7 % 23 + i * i % 19) // 15]) for i in range(60)]
REFUSED = (  # the column's values, flags, code and texts
    ({5: "-1"}, "", 65, [":7: column 'w': '-1' is not a finite number of at least 0", "as a weight"]),
    ({5: "inf"}, "", 65, [":7: column 'w': 'inf' is not a finite number"]),
    ({5: ""}, "", 65, [":7: column 'w': '' is not a finite number"]),
    ({5: "heavy"}, "", 65, [":7: column 'w': 'heavy'"]),
    ({i: "0" for i in range(60)}, "", 65, ["record 0 and all others of this set (60 records)", "column 'w'", "sum to zero"]),
    ({i: "0" for i in range(58)}, "--batch-size 4 --ranks 3", 65, ["record ", "the weights of the 4 examples of step ", "sum to zero", "--batch-size"]),
    ({i: "1e-41" for i in range(60)}, "--batch-size 4 --ranks 3", 65, ["the weights of the 4 examples of step 1", "e-41, by which a float32 cannot be divided", "scale small weights up"]),
    ({}, "--class-weights 0,1,0 --batch-size 1", 65, ["the weights of the 1 example of step ", "sum to zero"]),
    ({}, "--weight-column x", 2, ["train.csv:1: no column is named 'x', as in --weight-column"]),
    ({}, "--weight-column label", 2, ["names the column 'label', which has the labels"]),
    ({}, "--weight-column w,a", 2, ["--weight-column w,a", "more than one column"]),
    ({}, "--ignore-columns w", 2, ["names the column 'w', which --ignore-columns leaves out"]),
    ({}, "--data synthetic --train-limit 50 --test-limit 10", 2, ["--weight-column w", "synthetic is not a table"]),
)


def text_of(records):
    return "a,b,w,label\n" + "".join(",".join(map(str, record)) + "\n" for record in records)


class Weights(command.CommandTest):
    def data(self, name, records, test=None):
        folder = self.folder / name
        folder.mkdir()
        (folder / "train.csv").write_text(text_of(records))
        (folder / "test.csv").write_text(text_of(test or RECORDS[:20]))
        return folder

    def losses(self, name, records, *flags, **world):
        """Of steps over all records, in their order."""
        made = self.train("--data", self.data(f"data of {name}", records), FLAGS, "--shuffle none --epochs 30",
                          f"--batch-size {len(records)} --optimizer sgd --learning-rate 0.5", *flags, name=name, **world)
        return made.losses

    def test_a_weight_is_a_number_of_copies(self):
        weigh = {"b": 1, "c": 2, "a": 3}
        copies = [record for record in RECORDS for _ in range(record[2])]
        of_classes = [record for record in RECORDS for _ in range(weigh[record[3]])]
        both = [record for record in copies for _ in range(weigh[record[3]])]
        # Classes are in the order of their names: a, b, c.
        cases = {"records": (copies, "--weight-column w"), "classes": (of_classes, "--ignore-columns w --class-weights 3,1,2"),
                 "both": (both, "--weight-column w --class-weights 3,1,2")}
        for name, (repeated, flags) in cases.items():
            expected = self.losses(f"copies {name}", repeated, "--ignore-columns w")
            for threads in (None, 3):
                found = self.losses(f"weights {name} {threads}", RECORDS, flags, threads=threads)
                for a, b in zip(found, expected, strict=True):
                    self.assertAlmostEqual(a / b, 1, delta=1e-5)
        self.assertLess(expected[-1], 0.9 * expected[0])

    def test_equal_weights_are_none(self):
        hashes = {self.train("--data", self.data(f"data {w}", [(*record[:2], w, record[3]) for record in RECORDS]), FLAGS, flags,
                             "--epochs 2 --batch-size 7", name=f"{w}{flags}").summary["weights_hash"]
                  for w, flags in ((1, "--ignore-columns w"), (2, "--weight-column w"), (0.25, "--weight-column w"),
                                   (8, "--weight-column w --class-weights 0.5,0.5,0.5"))}
        self.assertEqual(len(hashes), 1)

    def test_evaluation_has_the_weights_of_records(self):
        """The loss, but no other figure; those of classes are of training alone."""
        data = self.data("data", RECORDS, test=RECORDS)
        made = self.train("--data", data, FLAGS, "--weight-column w --class-weights 1,2,3 --epochs 3 --batch-size 16 --progress lines")
        self.assert_says(made.result.out, ["weights in 'w'"], made.result)
        predicted = self.write_predictions(made.folder, "--data", data, "--probabilities")
        rows = [line.split(",") for line in predicted.read_text().splitlines()[1:]]
        losses = [-math.log(float(row[3 + "abc".index(record[3])])) for row, record in zip(rows, RECORDS, strict=True)]
        expected = sum(record[2] * loss for record, loss in zip(RECORDS, losses)) / sum(record[2] for record in RECORDS)
        right = sum(row[1] == record[3] for row, record in zip(rows, RECORDS)) / len(RECORDS)
        for threads in (None, 3):
            found = json.loads(self.succeed("evaluate", made.folder, "--data", data, "--json", threads=threads).out)
            self.assertAlmostEqual(found["loss"], expected, places=5)
            self.assertEqual(found["accuracy"], right)
            self.assertEqual(found["loss"], made.summary["epochs"][-1]["test_loss"])
        (data / "test.csv").write_text("label,b,a\na,1,2\nb,0,1\n")
        self.succeed("predict", made.folder, "--data", data)
        self.assert_refused(run("evaluate", made.folder, "--data", data), 65, ["test.csv:1: no column of the header is named 'w'", "1 in each line"])

    def test_a_continued_epoch_has_its_weights(self):
        data = ("--data", self.data("data", RECORDS), FLAGS, "--weight-column w --batch-size 7 --epochs 2 --checkpoint-every 4 --keep 9")
        whole = self.train(*data, name="whole")
        stopped = self.train(*data, name="stopped", threads=2)
        stopped.cut_back(4)  # within the first epoch
        self.succeed("train --progress off --resume", stopped.folder, threads=3)
        epochs = [[(epoch["train_loss"], epoch["weights_hash"]) for epoch in Run(folder).summary["epochs"]]
                  for folder in (whole.folder, stopped.folder)]
        self.assertEqual(*epochs)
        self.assert_refused(run("train --resume", stopped.folder, "--weight-column none"), 2, ["weight-column is", "leave weight-column out"])

    def test_a_table_without_a_header(self):
        data = self.folder / "plain.csv"
        data.write_text("".join(",".join(map(str, record)) + "\n" for record in RECORDS))
        flags = ("--header none --label-column -1 --weight-column 3 --test-split 0.2 --epochs 1", FLAGS)
        made = self.train("--data", data, *flags)
        self.assertEqual(json.loads((made.checkpoints[-1] / "network.json").read_text())["table"]["weight"], "3")
        self.succeed("evaluate", made.folder, "--data", data, "--test-split 0.2")
        expected = None
        for kept in ((0, 1), (0, 1, 2, 3)):
            data.write_text("".join(",".join(str(record[i]) for i in kept) + "\n" for record in RECORDS))
            written = self.write_predictions(made.folder, "--data", data).read_text()
            found = [line.split(",")[1] for line in written.splitlines()]
            self.assertEqual(found, expected or found)
            expected = found
        data.write_text("".join(f"{a},{b},{w}\n" for a, b, w, _ in RECORDS))
        self.assert_refused(run("predict", made.folder, "--data", data), 65,
                            ["plain.csv:1: 3 fields of the training set's 4 columns", "labels ('4') or that of weights ('3')", "both"])

    def test_a_table_of_values_without_a_header(self):
        """The number of columns tells whether those of values or of weights are missing."""
        data = self.folder / "plain.csv"
        data.write_text("".join(f"{a},{a + b},{w},{b},{a - b}\n" for a, b, w, _ in RECORDS))
        made = self.train("--data", data, "--header none --label-column 2,5 --weight-column 3 --test-split 0.2 --epochs 1", FLAGS)
        self.assertIsNone(made.summary["epochs"][0]["train_r2"])  # 1 - loss is that of equal weights
        predictions = []
        for kept in ((0, 1, 2, 3, 4), (0, 1, 3, 4), (0, 2, 3), (0, 3)):
            data.write_text("".join(",".join(str((a, a + b, w, b, a - b)[i]) for i in kept) + "\n" for a, b, w, _ in RECORDS))
            written = self.write_predictions(made.folder, "--data", data).read_text()
            predictions.append([line.split(",")[1:3] for line in written.splitlines()])
        self.assertTrue(all(each == predictions[0] for each in predictions), predictions)

    def test_a_record_of_weight_0_takes_no_part(self):
        """Even if its loss is not finite."""
        hashes, losses = set(), set()
        for number, (value, flags) in enumerate(((1, ""), (3e38, ""), (3e38, "--ranks 3"), (3e38, "--ranks 2 --exchange sums"))):
            data = self.folder / f"values-{number}"
            data.mkdir()
            rows = "a,b,w,y\n" + "".join(f"{a},{b},{int(i != 7)},{value if i == 7 else a - b}\n" for i, (a, b, *_) in enumerate(RECORDS))
            (data / "train.csv").write_text(rows)
            (data / "test.csv").write_text(rows)
            made = self.train("--data", data, FLAGS, "--label-column y --weight-column w --epochs 2 --batch-size 16 --loss squared-error",
                              flags, name=f"run-{number}")
            hashes.add(made.summary["weights_hash"])
            losses.add((tuple(made.losses), made.summary["epochs"][-1]["test_loss"]))
        self.assertEqual((len(hashes), len(losses)), (1, 1), losses)

    def test_refusals(self):
        for number, (values, flags, code, texts) in enumerate(REFUSED):
            with self.subTest(flags=flags, values=list(values)[:1]):
                records = [(a, b, values.get(i, w or 1), label) for i, (a, b, w, label) in enumerate(RECORDS)]
                data = self.data(f"data {number}", records)
                folder = self.folder / f"run {number}"
                result = run("train --data", data, FLAGS, "--weight-column w --epochs 1", flags, "--run-dir", folder)
                self.assert_refused(result, code, texts)


if __name__ == "__main__":
    unittest.main()
