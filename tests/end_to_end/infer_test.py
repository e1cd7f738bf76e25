"""evaluate and predict: the figures of training itself, the same bytes on any number of ranks."""

import csv
import json
import os
import shutil
import unittest
import zipfile

import command
import files
from command import SMALL, run
from files import TEST

DATA = "--data synthetic --test-limit 200"
JSON = "--data synthetic --test-limit 200 --json"

# What becomes of one file of a checkpoint, and what the message must name besides the file.
DAMAGES = {
    "missing description": ("network.json", None, []),
    "cut description": ("network.json", lambda raw: raw[:50], ["not JSON, or cut off"]),
    "description of another kind": ("network.json", lambda raw: b"[]", ["not an object"]),
    "FIFO for a description": ("network.json", "fifo", ["FIFO"]),
    "missing weights": ("model.safetensors", None, []),
    "FIFO for weights": ("model.safetensors", "fifo", ["FIFO"]),
    "empty weights": ("model.safetensors", lambda raw: b"", ["too short"]),
    "cut weights": ("model.safetensors", lambda raw: raw[:-1000], ["too short"]),
    "cut by less than the header": ("model.safetensors", lambda raw: raw[:-5], ["cut off"]),
    "bytes behind the weights": ("model.safetensors", lambda raw: raw + b"x", ["no tensor"]),
    "enormous header": ("model.safetensors", lambda raw: b"\xff" * 8 + raw[8:], ["byte 0"]),
    "flipped bit": ("model.safetensors", lambda raw: raw[:-1] + bytes([raw[-1] ^ 64]), ["hash"]),
    "wrong shape": ("model.safetensors", lambda raw: raw.replace(b"[784,32]", b"[32,784]"),
                    ["0.weight", "[32, 784]", "[784, 32]"]),
    "wrong type": ("model.safetensors", lambda raw: raw.replace(b"F32", b"F16", 1), ["F16"]),
    "missing tensor": ("model.safetensors", lambda raw: raw.replace(b'"1.bias"', b'"1.baas"'),
                       ["1.bias", "missing"]),
    "other widths": ("network.json", lambda raw: raw.replace(b"784", b"785", 1), ["parameters"]),
}


class Inference(command.CommandTest):
    def setUp(self):
        super().setUp()
        self.made = self.train(SMALL, "--epochs 2 --checkpoint-every 4")
        self.checkpoint = self.made.checkpoints[-1]

    def evaluate(self, *args, **options):
        return json.loads(self.succeed("evaluate", *args, **options).out)

    def test_evaluation_is_that_of_training(self):
        last = self.made.summary["epochs"][-1]
        for options in ({}, {"threads": 3}, {"threads": 8}, {"ranks": 3}):
            with self.subTest(**options):
                found = self.evaluate(self.checkpoint, JSON, **options)
                self.assertEqual(list(found), ["examples", "loss", "accuracy", "ids_digest",
                                               "weights_hash"])
                self.assertEqual(found["examples"], 200)
                self.assertEqual(found["loss"], last["test_loss"])
                self.assertEqual(found["accuracy"], last["test_accuracy"])
                self.assertEqual(found["weights_hash"], last["weights_hash"])
                self.assertEqual(found["ids_digest"], self.made.summary["test_ids_digest"])

    def test_evaluation_of_products_in_bf16(self):
        """Those of training, so with the loss of training, unless the command has others."""
        last = self.train(SMALL, "--precision bf16", name="bf16")
        losses = [self.evaluate(last.checkpoints[-1], JSON, *precision, threads=3)["loss"]
                  for precision in ([], ["--precision", "float32"])]
        self.assertEqual(losses[0], last.summary["epochs"][-1]["test_loss"])
        self.assertNotEqual(losses[0], losses[1])

    def test_a_run_means_its_last_checkpoint(self):
        folder = self.made.folder
        expected = self.evaluate(self.checkpoint, JSON)
        self.assertGreater(len(self.made.checkpoints), 1)
        for path in (folder, folder / "checkpoints"):
            self.assertEqual(self.evaluate(path, JSON), expected)
        earlier = self.evaluate(self.made.checkpoints[0], JSON)
        self.assertNotEqual(earlier["weights_hash"], expected["weights_hash"])

    def label_of_no_class(self):
        """A data folder with one image of 28x28, whose label is 12."""
        data = self.folder / "no-class"
        data.mkdir()
        for name, content in zip(TEST, (files.images(1, side=28), files.idx([12], (1,)))):
            (data / name).write_bytes(content)
        return data

    def test_labels_that_the_network_does_not_know(self):
        data = self.label_of_no_class()
        result = run("evaluate", self.checkpoint, "--data", data)
        self.assert_refused(result, 65, ["the label of record 0 is 12", "that the network was trained on"])
        self.assertNotIn("--classes", result.err)

    def test_test_limit(self):
        whole = self.evaluate(self.checkpoint, "--data synthetic --json")
        self.assertEqual(whole["examples"], 10_000)
        one = self.evaluate(self.checkpoint, "--data synthetic --test-limit 1 --json --ranks 3")
        self.assertEqual(one["examples"], 1)
        self.assertNotEqual(one["ids_digest"], whole["ids_digest"])
        self.assert_refused(run("evaluate", self.checkpoint, "--data synthetic --test-limit 0"), 2,
                            ["test-limit"])

    def test_table(self):
        result = self.succeed("evaluate", self.checkpoint, DATA)
        self.assert_says(result.out, ["200 examples", "exactly once", "784-32-10", "misclassified",
                                      self.made.summary["weights_hash"]], result)

    def predict(self, name, *args, **options):
        return self.write_predictions(self.checkpoint, *args, name=name, **options)

    def test_predictions_are_the_same_bytes_on_any_ranks(self):
        data = "--data synthetic --test-limit 2500"
        alone = self.predict("alone.csv", data).read_bytes()
        for options in ({"threads": 2}, {"threads": 3}, {"threads": 5}, {"threads": 8},
                        {"ranks": 2}, {"ranks": 3}):
            with self.subTest(**options):
                output = self.predict("several.csv", data, **options)
                self.assertEqual(output.read_bytes(), alone)
        rows = list(csv.DictReader(alone.decode().splitlines()))
        self.assertEqual(list(rows[0]), ["id", "label", "probability"])
        self.assertEqual([int(row["id"]) for row in rows], list(range(2500)))
        self.assertTrue(all(0.1 <= float(row["probability"]) <= 1 for row in rows))
        self.assertLessEqual({row["label"] for row in rows}, {str(n) for n in range(10)})
        left = sorted(path.name for path in self.folder.iterdir())
        self.assertEqual(left, ["alone.csv", "run", "several.csv"])

    def test_predictions_agree_with_the_accuracy(self):
        self.succeed("generate", self.folder / "digits", "--train-limit 600 --test-limit 200")
        rows = list(csv.DictReader(self.predict("p.csv", "--data", self.folder / "digits")
                                   .read_text().splitlines()))
        labels = (self.folder / "digits" / TEST[1]).read_bytes()[8:]
        right = sum(int(row["label"]) == label for row, label in zip(rows, labels))
        self.assertEqual(len(rows), 200)
        self.assertEqual(right / 200, self.made.summary["epochs"][-1]["test_accuracy"])

    def test_a_folder_with_a_test_set_alone(self):
        data = self.folder / "digits"
        self.succeed("generate", data, "--train-limit 1 --test-limit 200")
        for path in data.glob("train*"):
            path.unlink()
        expected = self.evaluate(self.checkpoint, JSON)
        self.assertEqual(self.evaluate(self.checkpoint, "--data", data, "--json"), expected)
        self.predict("alone.csv", "--data", data)
        result = run("train --data", data, "--run-dir", self.folder / "none")
        self.assert_refused(result, 65, [data, "no training files"])

    def test_predictions_need_no_labels(self):
        """Images of IDX, NPY and NPZ alone; labels of other classes beside them are not read."""
        made = self.folder / "idx"
        self.succeed("generate", made, "--train-limit 1 --test-limit 200")
        npy = self.folder / "npy"
        self.succeed("convert", made, npy, "--format npy")
        for path in (*made.glob("train*"), *npy.glob("train*")):
            path.unlink()
        expected = self.predict("expected.csv", "--data", made).read_bytes()
        (made / TEST[1]).write_bytes(files.idx([250] * 200, (200,)))
        self.assertEqual(self.predict("others.csv", "--data", made).read_bytes(), expected)
        (made / TEST[1]).unlink()
        (npy / "test-labels.npy").unlink()
        npz = {}
        for name in ("x_test", "X"):
            npz[name] = self.folder / f"{name}.npz"
            with zipfile.ZipFile(npz[name], "w") as archive:
                archive.write(npy / "test-images.npy", f"{name}.npy")
        for data, needles in ((made, [f"{TEST[0]} has no labels", TEST[1]]),
                              (npy, ["test-images.npy has no labels", "test-labels.npy"]),
                              (npz["x_test"], ["x_test.npy", "no labels"]),
                              (npz["X"], ["X.npy", "no labels"])):
            with self.subTest(data=data.name):
                output = self.predict("p.csv", "--data", data, ranks=2)
                self.assertEqual(output.read_bytes(), expected)
                self.assert_refused(run("evaluate", self.checkpoint, "--data", data), 65, needles)
        kept = (made / TEST[0]).read_bytes()
        self.assert_refused(run("predict", self.checkpoint, "--data", made, "--output", made / TEST[0]),
                            2, [f"a file of the data {made}"])
        self.assertEqual((made / TEST[0]).read_bytes(), kept)
        (made / TEST[1]).write_bytes(files.labels(200))
        (made / TEST[0]).unlink()
        self.assert_refused(run("predict", self.checkpoint, "--data", made), 65,
                            [f"{TEST[1]} has no images"])

    def test_damaged_checkpoints(self):
        for case, (name, damage, needles) in DAMAGES.items():
            bad = self.folder / "bad"
            shutil.rmtree(bad, ignore_errors=True)
            shutil.copytree(self.checkpoint, bad)
            whole = (bad / name).read_bytes()
            (bad / name).unlink()
            if damage == "fifo":
                os.mkfifo(bad / name)
            elif damage is not None:
                self.assertNotEqual(damage(whole), whole)
                files.write_signed(bad / name, damage(whole))
            for options in ({}, {"threads": 3}) + (({"ranks": 3},) if case[0] == "c" else ()):
                with self.subTest(case=case, **options):
                    self.assert_refused(run("evaluate", bad, DATA, **options), 65,
                                        [bad / name, "remedy:", *needles])

    def test_the_loss_is_the_one_that_was_trained_for(self):
        described = json.loads((self.checkpoint / "network.json").read_text())
        self.assertEqual(described["loss"], "softmax cross-entropy")
        entropy = self.evaluate(self.checkpoint, JSON)

        def saved_with(loss):
            path = self.folder / "other"
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(self.checkpoint, path)
            files.write_signed(path / "network.json", json.dumps(described | {"loss": loss}).encode())
            return path

        squares = self.evaluate(saved_with("mean squared error"), JSON, threads=3)
        self.assertEqual(squares["accuracy"], entropy["accuracy"])
        self.assertNotEqual(squares["loss"], entropy["loss"])
        self.assertIn("loss       mean squared error",
                      self.succeed("evaluate", self.folder / "other", DATA).out)
        numbers = saved_with("mean squared error of values")
        for data in (DATA, f"--data {self.label_of_no_class()}"):
            self.assert_refused(run("evaluate", numbers, data), 65, ["has labels, but the network predicts numbers"])
            self.succeed("predict", numbers, data)
        own = saved_with("squared hinge")
        for options in ({}, {"threads": 2}, {"ranks": 2}):
            self.assert_refused(run("evaluate", own, DATA, **options), 65,
                                [own / "network.json", "'squared hinge'", "remedy:"])
        self.succeed("predict", own, DATA, "--output", self.folder / "p.csv")
        self.assert_refused(run("evaluate", saved_with(3), DATA), 65, ["network.json", "loss"])

    def test_wrong_paths(self):
        empty = self.folder / "empty"
        empty.mkdir()
        (self.folder / "new" / "checkpoints").mkdir(parents=True)
        for path, needles in ((self.folder / "nowhere", ["no such checkpoint"]),
                              (self.folder / "new", ["holds no checkpoint", "wait until the run saves one"]),
                              (empty, ["holds no checkpoint"]),
                              (self.checkpoint / "network.json", ["not a folder"])):
            with self.subTest(path=path.name):
                self.assert_refused(run("evaluate", path, DATA), 65, [path, *needles])
        self.assert_refused(run("evaluate", self.checkpoint, "--data", self.folder / "nowhere"), 65,
                            ["nowhere", "no such file or folder"])

    def test_words(self):
        for args, needles in ((["evaluate"], ["no checkpoint"]),
                              (["evaluate", self.checkpoint], ["no --data"]),
                              (["evaluate", self.checkpoint, self.checkpoint, DATA], ["2 checkpoints"]),
                              (["evaluate", self.checkpoint, DATA, "--jsn"], ["--json"]),
                              (["evaluate", self.checkpoint, DATA, "--seed 77"], ["--seed without --test-split"]),
                              (["evaluate", self.checkpoint, DATA, "--separator tab"], ["--separator", "not trained on a table"]),
                              (["evaluate", self.checkpoint, DATA, "--set epochs=3"], ["epochs"]),
                              (["evaluate", self.checkpoint, DATA, "--device cuda"], ["cuda"]),
                              (["predict", self.checkpoint, DATA, "--keep-columns all"], ["not trained on a table"]),
                              (["predict", self.checkpoint, DATA, "--output="], ["--output: the value is empty"]),
                              (["predict", self.checkpoint, DATA, "--output p.json"], ["named .json", "*.jsonl", "--output-format"]),
                              (["predict", self.checkpoint, DATA, "--output-format npy"], ["without --output"])):
            with self.subTest(args=args):
                self.assert_refused(run(*args), 2, needles)
        under_a_launcher = run("evaluate", self.checkpoint, DATA, "--ranks 2", ranks=2)
        self.assert_refused(under_a_launcher, 2, ["--ranks"])

    def test_data_of_other_features(self):
        data = files.write_set(self.folder / "data")
        for options in ({}, {"threads": 3}):
            self.assert_refused(run("evaluate", self.checkpoint, "--data", data, **options), 65,
                                [data, "16 features", "784", "remedy:"])
        table = self.folder / "table.csv"
        for text, found in (("a,b,c,label\n1,2,red,1\n", "a table of 3 columns besides the labels"),
                            ("a,b,c,d\n1,2,red,1\n", "columns")):
            table.write_text(text)
            for args, options in (("evaluate", {}), ("predict", {"threads": 3})):
                self.assert_refused(run(args, self.checkpoint, "--data", table, **options), 65,
                                    [f"{table}:1", found, "the network takes 784 features"])

    def test_data_without_names_after_a_table(self):
        """Labels are then numbers of classes, which those of the table must be, too."""
        data = files.write_set(self.folder / "data", side=2)
        (data / TEST[1]).write_bytes(files.labels(10, classes=2))
        table = self.folder / "table.csv"
        for classes, flags, found in ((["0", "1", "2"], "false", None),
                                      (["1", "2", "3"], "false", "on the classes '1', '2', '3'"),
                                      (["a\nb", "c", "d"], "false", "on the classes 'a?b', 'c', 'd'"),
                                      (["0", "1", "2"], "true", "were standardized")):
            with self.subTest(classes=classes, standardize=flags):
                rows = "".join(f'{i % 5},{i % 7},{i % 3},{i % 2},"{classes[i % 3]}"\n' for i in range(60))
                table.write_text("a,b,c,d,label\n" + rows)
                shutil.rmtree(self.folder / "run")
                self.checkpoint = self.train("--data", table, "--test-split 0.2 --layers 4 --steps 2 --progress off",
                                             "--standardize", flags).checkpoints[-1]
                if found is None:
                    shown = self.succeed("evaluate", self.checkpoint, "--data", data).out
                    self.assertIn("10 test records, without names of columns", shown)
                    shown = self.succeed("evaluate", self.checkpoint, "--data", table).out
                    self.assertIn("60 test records, with the columns of training", shown)
                    self.assert_refused(run("predict", self.checkpoint, "--data", data, "--keep-columns all"), 2,
                                        ["the data has no columns"])
                else:
                    for options in ({}, {"threads": 3}):
                        self.assert_refused(run("evaluate", self.checkpoint, "--data", data, **options), 65,
                                            [f"{data}: is not a table", found, "give a table"])
                if flags == "true":
                    self.assert_refused(run("predict", self.checkpoint, "--data", data), 65,
                                        [f"{data}: is not a table", found, "--standardize false"])
                else:
                    with open(self.predict("p.csv", "--data", data), newline="") as file:
                        labels = [row["label"] for row in csv.DictReader(file)]
                        self.assertTrue(labels)
                        self.assertLessEqual(set(labels), set(classes))

    def test_an_empty_test_set(self):
        data = files.write_set(self.folder / "data", side=28)
        (data / TEST[0]).write_bytes(files.images(0, 28))
        (data / TEST[1]).write_bytes(files.labels(0))
        self.assert_refused(run("evaluate", self.checkpoint, "--data", data), 65, ["0 records"])

    def test_output_that_cannot_be_written(self):
        folder = self.folder / "folder"
        folder.mkdir()
        for output in (folder, self.folder / "nowhere" / "p.csv", "/dev/full"):
            for options in ({"threads": 3}, {"ranks": 2}):
                with self.subTest(output=output, **options):
                    result = run("predict", self.checkpoint, DATA, "--output", output, **options)
                    self.assert_refused(result, 74, [output, "remedy:"])
        old = self.folder / "old.csv"
        old.write_text("old")
        bad = self.folder / "bad"
        shutil.copytree(self.checkpoint, bad)
        (bad / "network.json").unlink()
        self.assert_refused(run("predict", bad, DATA, "--output", old), 65, [bad])
        self.assertEqual(old.read_text(), "old")
        self.succeed("predict", self.checkpoint, DATA, "--output", old)
        self.assertEqual(len(old.read_text().splitlines()), 201)

    def test_output_that_is_read(self):
        data = files.write_set(self.folder / "data", side=28)
        link = self.folder / "link.csv"
        link.symlink_to(data / TEST[0])
        run_dir = self.made.folder
        for output, what in ((data / TEST[0], data), (link, data), (self.checkpoint / "model.safetensors", "checkpoint"),
                             (self.checkpoint / "new.csv", "checkpoint"), (run_dir / "metrics.jsonl", "run"),
                             (run_dir / "checkpoints/new.csv", "run")):
            for options in ({}, {"threads": 3}):
                with self.subTest(output=output, **options):
                    before = output.read_bytes() if output.exists() else None
                    refused = run("predict", self.checkpoint, "--data", data, "--output", output, **options)
                    self.assert_refused(refused, 2, [f"--output {output}: is a file of the", what, "another name"])
                    self.assertEqual(output.read_bytes() if output.exists() else None, before)
        self.succeed("predict", self.checkpoint, "--data", data, "--output", run_dir / "predictions.csv")
        both = self.folder / "both"
        self.succeed("convert", data, both, "--format npy")
        for path in data.iterdir():
            shutil.copy(path, both)
        refused = run("predict", self.checkpoint, "--data", both, "--format npy --output", both / "test-images.npy")
        self.assert_refused(refused, 2, [f"is a file of the data {both}"])

    def test_output_that_would_be_read_next_time(self):
        data = files.write_set(self.folder / "data", side=28)
        (self.folder / "link").symlink_to(data)
        pattern = data / "t[e1]*"
        (self.folder / "none").mkdir()  # where the pattern matches nothing yet
        any_folder = self.folder / "[dn]*" / "t[e1]*"
        for given, output in ((data, data / "test_predictions.csv"), (data, data / "train.csv.gz"),
                              (self.folder / "link", data / "test.csv"), (data, self.folder / "link" / "test.csv"),
                              (pattern, data / "test.csv"), (any_folder, self.folder / "none/test.csv")):
            with self.subTest(data=given, output=output):
                refused = run("predict", self.checkpoint, "--data", given, "--output", output)
                self.assert_refused(refused, 2, [f"--output {output}: would be a file of the data {given}",
                                                 "another name"])
                self.assertFalse(output.exists())
        output = data / "test_predictions.csv"  # read without --format
        refused = run("predict", self.checkpoint, "--data", data, "--format idx --output", output)
        self.assert_refused(refused, 2, [f"--output {output}: would be a file of the data {data}"])
        for given, output in ((data, data / "predictions.csv"), (data, data / "test.jsonl"),
                              (data, self.folder / "test.csv"), (pattern, data / "train.csv")):
            with self.subTest(data=given, output=output):
                self.succeed("predict", self.checkpoint, "--data", given, "--output", output)


if __name__ == "__main__":
    unittest.main()
