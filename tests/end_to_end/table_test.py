"""Tables: from a CSV file as people have them to predictions, without one refusal, or with a clear one."""

import csv
import gzip
import json
import random
import re
import signal
import struct
import subprocess
import time
import unittest

import command
from command import run

FLOWERS = {"Älpenrose": (1.0, 40.0), "Edelweiß": (2.0, 55.0), "Enzian": (3.0, 90.0)}  # means
SPLIT = "--label-column art --test-split 0.2 --layers 16 --epochs 20 --batch-size 32 --learning-rate 0.01 --progress off"


def flowers(records=150, seed=1):
    """Records of three classes that a network can tell apart: numbers of two scales, and words."""
    numbers = random.Random(seed)
    rows = []
    for i in range(records):
        art = list(FLOWERS)[i % 3]
        size, height = FLOWERS[art]
        rows.append({"": i, "größe (cm)": round(numbers.gauss(size, 0.3), 3),
                     "höhe": "" if i % 20 == 7 else round(numbers.gauss(height, 9), 1),
                     "boden": numbers.choice(["Kalk", "Granit"]), "art": art})
    return rows


def text_of(rows, columns=None, separator=",", end="\n", rename=None, header=True):
    columns = columns or list(rows[0])
    lines = [[(rename or {}).get(name, name) for name in columns]] if header else []
    lines += [[str(row[name]) for name in columns] for row in rows]
    return end.join(separator.join(line) for line in lines) + end


class Tables(command.CommandTest):
    def write(self, text, name="flowers.csv"):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def predict(self, made, data, *flags, **options):
        with open(self.write_predictions(made.folder, "--data", data, *flags, **options), newline="") as file:
            return list(csv.DictReader(file))

    def evaluate(self, made, data, *flags, **options):
        return json.loads(self.succeed("evaluate", made.folder, "--data", data, "--json", *flags, **options).out)

    def trained(self, rows=None, *flags, name="run", **options):
        data = self.write(text_of(rows or flowers()))
        return self.train("--data", data, *(flags or (SPLIT,)), name=name, **options), data

    def test_from_a_table_to_predictions(self):
        rows = flowers()
        data = self.write(text_of(rows))
        shown = self.succeed("train --data", data, SPLIT.replace("off", "lines"), "--run-dir", self.folder / "run")
        self.assert_says(shown.out, ["120 training and 30 test records of 4 features", "2 columns of numbers, "
                                     "standardized; 1 of words as 2 features; '' left out (without a name",
                                     "3 classes of column 'art'", "'Edelweiß'", "missing numbers: mean"], shown)
        made = command.Run(self.folder / "run")
        self.assertGreater(made.summary["epochs"][-1]["test_accuracy"], 0.85)
        self.assertGreater(self.evaluate(made, data)["accuracy"], 0.85)
        classes = made.summary["classes"]
        self.assertEqual([row["label"] for row in classes], sorted(FLOWERS, key=str.encode))
        self.assertEqual(sum(row["examples"] for row in classes), 30)
        right = sum(row["examples"] * row["recall"] for row in classes)
        self.assertAlmostEqual(right / 30, made.summary["epochs"][-1]["test_accuracy"])
        self.assertTrue(all(0 <= row["precision"] <= 1 for row in classes))

        # New records have no label, other columns, and another order.
        new = [{"gefunden": f"am {i}., \"hier\"", "boden": row["boden"], "höhe": row["höhe"],
                "größe (cm)": row["größe (cm)"]} for i, row in enumerate(rows)]
        with open(self.folder / "new.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, list(new[0]))
            writer.writeheader()
            writer.writerows(new)
        found = self.predict(made, self.folder / "new.csv", "--keep-columns gefunden --probabilities")
        self.assertEqual([row["gefunden"] for row in found], [row["gefunden"] for row in new])
        right = sum(row["label"] == truth["art"] for row, truth in zip(found, rows))
        self.assertAlmostEqual(right / len(rows), self.evaluate(made, data)["accuracy"], 6)
        for row in found:
            shares = {name: float(row["p:" + name]) for name in FLOWERS}
            self.assertAlmostEqual(sum(shares.values()), 1, 5)
            self.assertEqual(max(shares, key=shares.get), row["label"])
            self.assertEqual(shares[row["label"]], float(row["probability"]))
        table = self.succeed("predict", made.folder, "--data", self.folder / "new.csv")
        self.assert_says(table.out, ["label", "probability", "... and 110 more", "--output"], table)

    def test_a_report_of_classes(self):
        """The figures of scikit-learn's classification_report, computed here from predictions."""
        rows = flowers()
        made, data = self.trained(rows, SPLIT.replace("--epochs 20", "--epochs 5"))
        found = self.predict(made, data)
        pairs = [(truth["art"], row["label"]) for row, truth in zip(found, rows)]
        expected = {}
        for name in FLOWERS:
            examples = sum(truth == name for truth, _ in pairs)
            predicted = sum(label == name for _, label in pairs)
            right = sum(truth == label == name for truth, label in pairs)
            recall = right / examples
            precision = right / predicted if predicted else None
            f1 = 2 * right / (examples + predicted)
            expected[name] = (precision, recall, f1, examples)
        self.assertLess(min(recall for _, recall, _, _ in expected.values()), 1)
        shown = self.succeed("evaluate", made.folder, "--data", data, "--report --ranks 2")
        table = {line[:16].strip(): line[16:].split() for line in shown.out.splitlines()}
        for name, (precision, recall, f1, examples) in expected.items():
            cells = ["-" if value is None else f"{value:.4f}" for value in (precision, recall, f1)]
            self.assertEqual(table[name], [*cells, str(examples)], str(shown))
        accuracy = sum(truth == label for truth, label in pairs) / len(pairs)
        self.assertEqual(table["accuracy"], [f"{accuracy:.4f}", "150"], str(shown))
        for row, weights in (("macro avg", {name: 1 for name in FLOWERS}),
                             ("weighted avg", {name: expected[name][3] for name in FLOWERS})):
            means = [sum(weights[name] * (expected[name][i] or 0) for name in FLOWERS) / sum(weights.values())
                     for i in range(3)]
            self.assertEqual(table[row], [*(f"{mean:.4f}" for mean in means), "150"], str(shown))
        classes = json.loads(self.succeed("evaluate", made.folder, "--data", data, "--report --json").out)["classes"]
        self.assertEqual({row["label"]: (row["precision"], row["recall"], row["f1"], row["examples"])
                          for row in classes}, expected)
        of_training, _ = self.trained(rows, SPLIT, "--report", name="reported")
        self.assert_says(of_training.result.out, ["precision", "weighted avg", "Edelweiß"], of_training.result)
        complete = self.succeed("train --resume", of_training.folder, "--report --progress off")
        self.assert_says(complete.err, ["no report", f"evaluate {of_training.folder}"], complete)

    def test_the_scores_of_many_targets(self):
        names = [f"target-{i}" for i in range(60)]
        data = self.write("\n".join(",".join(map(str, row)) for row in
                                    [["x", *names], *([i, *(i * (k + 1) % 17 for k in range(60))] for i in range(80))]))
        made = self.train("--data", data, "--label-column", ",".join(names), "--task regression --test-split 0.25 --layers 4 "
                          "--epochs 1", name="many")
        shown = self.succeed("evaluate", made.folder, "--data", data, "--test-split 0.25")
        self.assert_says(shown.out, names, shown)

    def test_a_report_of_too_many_classes(self):
        text = "x,label\n" + "".join(f"{i},{i}\n" for i in range(257)) * 2
        data = self.write(text)
        flags = "--test-split 0.5 --layers none --epochs 1 --progress off"
        refused = run("train --data", data, flags, "--report")
        self.assert_refused(refused, 2, ["257 classes", "at most 256", "leave --report out"])
        made = self.train("--data", data, flags)
        self.assert_refused(run("evaluate", made.folder, "--data", data, "--report --ranks 2"), 2, ["257 classes"])

    def test_remedies_are_for_the_command_and_the_data(self):
        made, data = self.trained()
        refused = run("train --data", self.folder / "wrong.csv")
        self.assert_refused(refused, 65, ["wrong.csv: no such file or folder", "--data FILE.csv"])
        self.assertNotIn("MNIST", refused.err)
        self.assert_refused(run("train --data", self.folder / "mnist"), 65, ["scripts/get_mnist.sh"])
        refused = run("evaluate", made.folder, "--data synthetic")
        self.assert_refused(refused, 65, ["10 classes, not 3", "labels that the network was trained on"])
        self.assertNotIn("--classes", refused.err)
        self.assert_refused(run("evaluate", self.folder / "wrong", "--data", data), 65,
                            ["no such checkpoint", "give the folder of a run"])
        one = self.write("a,b,label\n" + "1,2,x\n" * 9, "one.csv")
        shown = self.train("--data", one, "--test-split 0.3 --layers 2 --epochs 1", name="one").result
        self.assert_says(shown.err, "there is one class", shown)
        # The column that is proposed for another name is none that the network has already.
        renamed = self.write("a,c,label\n1,2,x\n", "renamed.csv")
        self.assert_refused(run("evaluate", self.folder / "one", "--data", renamed), 65, ["rename the column 'c' to 'b'"])

    def test_one_hash_on_any_number_of_ranks(self):
        hashes = set()
        for options in ({}, {"threads": 2}, {"ranks": 3}, {"threads": 5}):
            made, _ = self.trained(name=f"on-{options}".replace(" ", ""), **options)
            hashes.add(made.summary["weights_hash"])
        self.assertEqual(len(hashes), 1)

    def test_ranks_share_the_reading_of_a_large_table(self):
        """More than 1 MiB: each rank scans a part of it, which may begin between quotes."""
        numbers = random.Random(4)
        rows = [{"x": f"{numbers.gauss(50, 9):.6f}", "text": numbers.choice(['"one\n,two"', '"a ""b""\n"', "plain"]),
                 "y": "" if i % 50 == 0 else f"{numbers.random():.15f}", "label": numbers.choice("ab")}
                for i in range(40_000)]
        data = self.write(text_of(rows))
        self.assertGreater(data.stat().st_size, 1.2 * 2**20)
        packed = self.write(gzip.compress(data.read_bytes()), "packed.csv.gz")
        flags = "--test-split 0.1 --layers 4 --epochs 1 --batch-size 4000 --progress off"
        alone = self.train("--data", data, flags, name="alone")
        columns = lambda made: json.loads((made.checkpoints[-1] / "network.json").read_text())["table"]
        for name, table, options in (("2", data, {"ranks": 2}), ("3", data, {"threads": 3}), ("5", data, {"threads": 5}),
                                     ("packed", packed, {"ranks": 2})):
            made = self.train("--data", table, flags, name=name, **options)
            self.assertEqual(made.summary["weights_hash"], alone.summary["weights_hash"])
            self.assertEqual(columns(made), columns(alone))
            self.assertEqual(self.evaluate(made, table, **options), self.evaluate(alone, data))
        rows[30_000]["y"], rows[35_000]["y"] = "wrong", "false"
        self.write(text_of(rows))
        line = text_of(rows[:30_000]).count("\n") + 1
        first = run("train --data", data, flags).err
        self.assertIn(f"flowers.csv:{line}: column 'y': 'wrong' is not a number", first)
        for options in ({"ranks": 2}, {"threads": 2}, {"threads": 5}):
            refused = run("train --data", data, flags, **options)
            self.assert_refused(refused, 65, [])
            self.assertEqual(refused.errors, [first.splitlines()[0]])

    def test_numbers_are_predicted(self):
        numbers = random.Random(2)
        rows = [{"a": numbers.uniform(0, 9), "b": numbers.choice("xyz"), "": i} for i in range(200)]
        for row in rows:
            row["price"] = 1000 + 25 * row["a"] + 80 * (row["b"] == "y") + numbers.gauss(0, 4)
            row["size"] = round(3 - 0.2 * row["a"] + numbers.gauss(0, 0.1), 3)
        data = self.write(text_of(rows, ["", "price", "a", "b", "size"]))
        flags = ("--data", data, "--label-column size,price --test-split 0.25 --layers 16 --batch-size 16 --epochs 30 "
                 "--learning-rate 0.01 --audit-every 7")
        made = self.train(*flags, name="one")
        hashes = {self.train(*flags, name=f"t{n}", threads=n).summary["weights_hash"] for n in (2, 3)}
        hashes.add(self.train(*flags, name="r5", ranks=5).summary["weights_hash"])
        self.assertEqual(hashes, {made.summary["weights_hash"]})
        last = made.summary["epochs"][-1]
        self.assertGreater(last["test_r2"], 0.9)
        self.assertNotIn("test_accuracy", last)
        self.assertNotIn("classes", made.summary)
        self.assertEqual(self.evaluate(made, data, "--test-split 0.25")["r2"], last["test_r2"])
        self.assertEqual(self.evaluate(made, data, "--test-split 0.25", threads=3)["r2"], last["test_r2"])

        # R2 and root mean square error, from the predictions themselves.
        self.write(text_of(rows, ["b", "a"]), "new.csv")
        for row, found in zip(rows, self.predict(made, self.folder / "new.csv")):
            row["found"] = found
        shown = self.succeed("evaluate", made.folder, "--data", data).out
        scores = []
        for name in ("size", "price"):
            squares = sum((row[name] - float(row["found"][name])) ** 2 for row in rows)
            mean = sum(row[name] for row in rows) / len(rows)
            scores.append(1 - squares / sum((row[name] - mean) ** 2 for row in rows))
            found = re.search(f"'{name}': R2 ([0-9.]+), root mean square error ([0-9.]+)", shown).groups()
            self.assertAlmostEqual(float(found[0]), scores[-1], places=3)
            self.assertAlmostEqual(float(found[1]) / (squares / len(rows)) ** 0.5, 1, places=3)
        self.assertAlmostEqual(self.evaluate(made, data)["r2"], sum(scores) / 2, places=5)
        self.assertEqual([target["name"] for target in made.summary["targets"]], ["size", "price"])
        self.assert_refused(run("predict", made.folder, "--data", data, "--probabilities"), 2, ["predicts numbers"])
        for job in ("evaluate", "predict"):
            self.assert_refused(run(job, made.folder, "--data synthetic"), 65,
                                ["synthetic: is not a table, as the network in", "give a table with the columns"])
        self.write(data.read_bytes(), "far/train.csv")
        rows[7]["price"] = "9" * 30
        far = self.write(text_of(rows, ["", "price", "a", "b", "size"]), "far/test.csv")
        for job, options in ((("evaluate", made.folder, "--data", far), {"threads": 3}),
                             (("train --label-column size,price --layers 4 --data", far.parent), {"ranks": 2})):
            self.assert_refused(run(*job, **options), 65, ["far/test.csv:9: column 'price': 1e+30 is more than 1e18 standard"])

    def test_rare_classes_may_weigh_more(self):
        numbers = random.Random(3)
        rows = [{"x": numbers.gauss(i % 10 == 0, 1), "y": numbers.gauss(0, 1), "label": "rare" if i % 10 == 0 else "usual"}
                for i in range(1000)]
        data, test = self.write(text_of(rows), "d/train.csv"), self.write(text_of(rows), "d/test.csv")
        flags = ("--data", data.parent, "--layers 8 --batch-size 50 --epochs 10 --learning-rate 0.01 --audit-every 9")
        recalls, hashes = {}, set()
        for name, weights, ranks in (("none", "none", 1), ("balanced", "balanced", 1), ("three", "balanced", 3),
                                     ("given", "5,0.5555556", 2), ("other", "4,1", 1)):
            made = self.train(*flags, f"--class-weights {weights}", threads=ranks, name=name)
            recalls[name] = {row["label"]: row["recall"] for row in made.summary["classes"]}
            hashes.add(made.summary["weights_hash"])
            losses = self.evaluate(made, test)["loss"], made.summary["epochs"][-1]["test_loss"]
            self.assertEqual(*losses)  # without weights
        self.assertEqual(len(hashes), 3)
        self.assertLess(recalls["none"]["rare"], 0.2)
        self.assertGreater(recalls["balanced"]["rare"], 0.5)
        for weights, code, needles in (("1", 2, ["--class-weights 1", "1 weight of 2 outputs"]),
                                       ("0,0", 2, ["--class-weights 0,0", "a weight above 0"]),
                                       ("1,-1", 2, ["'-1' is not a number"]), ("heavy", 2, ["'heavy'"])):
            self.assert_refused(run("train", *flags, "--class-weights", weights), code, needles)
        self.assert_refused(run("train", *flags, "--task regression --label-column x --class-weights balanced"), 2,
                            ["there are no classes"])

    def test_a_run_is_resumed(self):
        whole, data = self.trained()
        self.trained(None, SPLIT, "--steps 37", name="cut")
        result = run("train --resume", self.folder / "cut", "--resume-with steps=80")
        self.assert_ends(result, 0)
        self.assertEqual(command.Run(self.folder / "cut").summary["weights_hash"], whole.summary["weights_hash"])
        rows = flowers()
        rows[3]["größe (cm)"] = 7.5  # so the mean is another one
        self.write(text_of(rows))
        self.assert_refused(run("train --resume", self.folder / "cut", "--resume-with steps=90"), 2,
                            ["the training data has the hash"])

    def test_the_same_table_in_other_clothes(self):
        """Whatever a table is written like, the same records train to the same weights."""
        rows = flowers()
        plain, _ = self.trained()
        expected = plain.summary["weights_hash"]
        columns = list(rows[0])
        quoted = text_of(rows, separator='","').replace("\n", '"\n"')
        for name, text, flags in (
                ("semicolons", text_of(rows, separator=";"), ""),
                ("tabs", text_of(rows, separator="\t"), "--separator tab"),
                ("crlf", text_of(rows, end="\r\n"), ""),
                ("bom", b"\xef\xbb\xbf" + text_of(rows).encode(), ""),
                ("quoted", '"' + quoted[:-1], ""),
                ("line-break", text_of(rows, rename={"boden": '"bo\nden"'}), ""),
                ("header-none", text_of(rows, header=False), "--header none --label-column 5 --ignore-columns 1"),
                ("by-number", text_of(rows), "--label-column -1")):
            with self.subTest(name=name):
                data = self.write(text, f"{name}.csv")
                made = self.train("--data", data, SPLIT, flags, name=name)
                self.assertEqual(made.summary["weights_hash"], expected)
                if name == "header-none":
                    bare = self.write(text_of(rows, columns[:-1], header=False), "bare.csv")
                    self.assertEqual(self.predict(made, bare), self.predict(made, data))

    def test_columns_are_known_by_name(self):
        made, data = self.trained()
        rows = flowers()
        columns = list(rows[0])
        expected = self.evaluate(made, data)
        for columns_here in (columns[::-1], ["art", "boden", "größe (cm)", "höhe"]):
            path = self.write(text_of(rows, columns_here), "other.csv")
            self.assertEqual(self.evaluate(made, path, threads=3), expected)
        for text, needles in (
                (text_of(rows, rename={"höhe": "hoehe"}), ["named 'höhe'", "rename the column 'hoehe'"]),
                (text_of(rows, ["", "boden", "art"]), ["'größe (cm)', 'höhe'"]),
                (text_of(rows, columns[:-1]), ["named 'art'", "lockstep predict"]),
                (text_of(rows, header=False), ["no column of the header is named"]),
                (text_of(rows).replace("Enzian", "Distel"), ["'Distel' is none of the 3 classes"])):
            path = self.write(text, "other.csv")
            self.assert_refused(run("evaluate", made.folder, "--data", path), 65, ["other.csv:", *needles])
        path = self.write(text_of(rows).replace("Granit", "Sand"), "other.csv")
        result = self.succeed("evaluate", made.folder, "--data", path)
        self.assert_says(result.err, ["column 'boden'", "of no category of the training set, such as 'Sand'"], result)

    def test_refusals_have_a_remedy_that_works(self):
        data = self.write(text_of(flowers()))
        flags = []
        for needles, remedy in ((["one file, so there is no test set"], "--test-split 0.2"),
                                (["no column is named 'label'", "'art'"], "--label-column art")):
            result = run("train --layers 4 --epochs 1 --data", data, *flags, "--run-dir", self.folder / "run")
            self.assert_refused(result, 65, [*needles, remedy.split()[0]])
            flags.append(remedy)
        self.assert_ends(run("train --layers 4 --epochs 1 --data", data, *flags, "--run-dir", self.folder / "run"), 0)
        for text, more, code, needles in (
                (text_of(flowers(1)), "", 2, ["--test-split", "leaves no training record"]),
                (text_of(flowers())[:40], "", 65, ["flowers.csv:2: "]),
                ("", "", 65, ["flowers.csv:1:"]),
                (text_of(flowers()).replace("\n", "\r"), "", 65, ["flowers.csv:1: lines end in CR alone", "tr '"]),
                ("\0".join(text_of(flowers())), "", 65, ["flowers.csv:1: is UTF-16", "iconv"]),
                (b"\xe0\x9f,\xff\x8f\n1,2\n", "", 65, ["flowers.csv:1: '??' is not UTF-8", "encoding='utf-8'"]),
                (text_of(flowers()), "--label-column höhe", 65, ["'' is not a label"]),
                (text_of(flowers()), "--label-column 'größe (cm)' --classes 3", 2,
                 ["--classes 3 with a regression", "--task classification"]),
                (text_of(flowers()), "--task regression", 65, ["flowers.csv:2: column 'art'", "is not a number"]),
                (text_of(flowers()), "--label-column 9", 65, ["columns are 1 to 5"]),
                (text_of(flowers(), rename={"boden": '"it\'s, so"'}).replace("Kalk", "7"), "",
                 65, ["flowers.csv:", "--ignore-columns '\"it'\\''s, so\"'"]),
                (text_of(flowers()), "--ignore-columns bode", 2, ["'bode'", "'boden'"]),
                (text_of(flowers()), "--ignore-columns boden,art", 2,
                 ["flowers.csv:1: --ignore-columns names the column 'art', which has the labels"]),
                (text_of(flowers()), "--ignore-columns boden --category-columns boden", 2,
                 ["flowers.csv:1: --category-columns names the column 'boden', which --ignore-columns leaves out"]),
                (text_of(flowers()), "--category-columns art", 2,
                 ["flowers.csv:1: --category-columns names the column 'art', which has the labels"]),
                ("1.5,7.5,rot,1\n" * 9, "--label-column label", 65, ["the line is a record: --header none --label-column -1"]),
                (text_of(flowers(), rename={"höhe": "boden"}), "", 65,
                 ["flowers.csv:1: columns 3 and 4 are both named 'boden'", "rename one"]),
                (text_of(flowers()), "--missing error", 65, ["flowers.csv:9: column 'höhe': ''"]),
                (text_of(flowers()), "--classes 3", 65, ["labels are words", "leave --classes out"]),
                (text_of(flowers()), "--label-column none", 2, ["--label-column names no column"]),
                (text_of(flowers()), "--weight-column höhe --category-columns höhe", 2,
                 ["--weight-column names the column 'höhe'", "--category-columns"]),
                (text_of(flowers()), "--divide-by 2 --standardize true", 2, ["--divide-by"]),
                (text_of(flowers()), "--image-size 16", 2, ["--image-size 16", "is not a folder of pictures"]),
                (text_of(flowers()), "--format idx", 2, ["--format"])):
            with self.subTest(more=more, needles=needles):
                data = self.write(text)
                words = more.split("'")  # as a shell
                extra = words[0].split() + words[1:2] + "".join(words[2:]).split()
                job = command.words(command.binary, "train", SPLIT, "--run-dir", self.folder / "bad", "--data", data)
                result = command.call(job + extra)
                self.assert_refused(result, code, needles)

    def test_names_of_the_data_send_no_control_characters(self):
        rows = [dict(row, art=f"\x1b[2J{row['art']}\x9b1\nm") for row in flowers()]
        lines = [",".join(f'"{row[name]}"' for name in rows[0]) for row in [{name: name for name in rows[0]}, *rows]]
        result = run("train --label-column art --test-split 0.2 --steps 1 --run-dir", self.folder / "run", "--data", self.write("\n".join(lines) + "\n"))
        self.assert_ends(result, 0)
        self.assert_says(result.out, ["worst class: ", "?[2J"], result)
        self.assertNotRegex(result.out + result.err, "[\x1b\x9b]")

    def test_a_split_is_evaluated_again(self):
        made, data = self.trained(None, SPLIT, "--seed 5")
        found = self.evaluate(made, data, "--test-split 0.2")
        self.assertEqual(found["loss"], made.summary["epochs"][-1]["test_loss"])
        self.assertNotEqual(self.evaluate(made, data, "--test-split 0.2 --seed 6")["loss"], found["loss"])
        whole = self.succeed("evaluate", made.folder, "--data", data)
        self.assert_says(whole.err, ["was trained on some of these records", "`--test-split 0.2`"], whole)
        for flags, remedy in (("--test-split 0.3", "`--test-split 0.2` leaves"), ("--test-split 0.2 --seed 6", "`--test-split 0.2` without `--seed`"), ("--test-split 0.1", "")):
            result = self.succeed("evaluate", made.folder, "--data", data, *flags.split())
            self.assertEqual("was trained on some of these records" in result.err, remedy != "", result)
            self.assertIn(remedy, result.err)

    def test_every_command_that_opens_data_takes_the_flags_of_tables(self):
        data = self.write(text_of(flowers()))
        for words in ("plan --data", "inspect", "bench data --data", "doctor --data", "train --dry-run --data",
                      "bench step --layers 4 --batch-size 8 --rounds 1 --round-steps 1 --data"):
            self.succeed(words, data, "--label-column art --test-split 0.2")

    def test_few_and_many_classes(self):
        one = self.write("label,x,y\n" + "".join(f"only,{i},{i * i}\n" for i in range(20)))
        made = self.train("--data", one, "--test-split 0.2 --layers 4 --epochs 2", name="one")
        self.assertEqual(made.summary["epochs"][-1]["test_accuracy"], 1)
        many = self.write("label,x\n" + "".join(f"{i % 300},{i % 300}\n" for i in range(3000)))
        made = self.train("--data", many, "--test-split 0.1 --layers 4 --epochs 1", name="many", threads=3)
        self.assertEqual({row["label"].isdigit() for row in self.predict(made, many)}, {True})
        prices = self.write("label,x\n" + "".join(f"{i % 100 * 1000},{i}\n" for i in range(400)))
        result = self.succeed("train --data", prices, "--test-split 0.2 --layers 4 --dry-run")
        self.assert_says(result.err, ["320 records have 100 classes", "`--task regression`"], result)

    def test_kept_columns_have_other_names_than_predictions(self):
        data = self.write("a,x,x,x:2\n" + "".join(f"{i},{i},{i},{i % 7}\n" for i in range(20)))
        made = self.train("--data", data, "--ignore-columns x --label-column x:2 --task regression "
                          "--test-split 0.2 --layers 4 --epochs 1")
        found = self.succeed("predict", made.folder, "--data", data, "--keep-columns all --output -").out
        self.assertEqual(found.splitlines()[0], "id,x:2,a,x,x:3,data:x:2")

    def test_from_a_pipe_to_a_pipe(self):
        made, data = self.trained()
        rows = flowers()
        new = text_of(rows, ["höhe", "größe (cm)", "boden"]).encode()
        expected = (self.folder / "predictions.csv", self.predict(made, data))[0].read_bytes()
        for options in ("", "--ranks 3"):
            job = command.words(command.binary, "predict", made.folder, f"--data - --output - {options}")
            self.assertEqual(subprocess.run(job, input=new, capture_output=True, check=True).stdout, expected)
        job = command.mpirun(2, "predict", made.folder, "--data - --output -")
        piped = subprocess.run(job, input=new, capture_output=True, check=True, env=command.environment())
        self.assertEqual(piped.stdout.replace(b"\r\n", b"\n"), expected)
        lines = command.words(command.binary, "predict", made.folder,
                              "--data - --output - --output-format jsonl --probabilities --keep-columns all")
        found = subprocess.run(lines, input=new, capture_output=True, check=True).stdout.decode().splitlines()
        first = json.loads(found[0])
        self.assertEqual(list(first), ["id", "label", "probability", "probabilities", "columns"])
        self.assertEqual(first["columns"]["höhe"], str(rows[0]["höhe"]))
        self.assertEqual(len(found), len(rows))

    def test_a_pipe_that_ends(self):
        """The copy of stdin goes in every case."""
        made, _ = self.trained()
        kept = self.folder / "tmp"
        kept.mkdir()
        job = command.words(command.binary, "predict", made.folder, "--data - --output -")
        for ending in (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(ending=ending):
                process = self.start(job, env={"TMPDIR": str(kept)}, stdin=subprocess.PIPE)
                process.stdin.write(text_of(flowers(), ["höhe", "größe (cm)", "boden"]).encode())
                process.stdin.flush()
                if ending == signal.SIGPIPE:
                    process.stdout.close()
                    process.stdin.close()
                else:
                    self.wait_until(lambda: list(kept.glob("*.csv")), process, "copy of stdin")
                    time.sleep(0.05)
                    process.send_signal(ending)
                self.assertEqual(process.wait(command.seconds(20)), -ending, process.stderr.read())
                process.stdin.close()
                process.stdout.close()
                process.stderr.close()
                self.assertEqual(list(kept.iterdir()), [])
        empty = run("predict", made.folder, "--data - --output -", env={"TMPDIR": str(kept)})
        self.assert_refused(empty, 65, ["error: stdin:1: ", "remedy:"])
        self.assertEqual(list(kept.iterdir()), [])

    def test_predictions_as_npy(self):
        made, data = self.trained()
        rows, names = self.predict(made, data, "--probabilities"), sorted(FLOWERS, key=str.encode)
        for flags, kind, shape, size in (("", "<i4", "(150,)", 600), ("--probabilities", "<f4", "(150, 3,)", 1800)):
            path = self.folder / "found.npy"
            self.succeed("predict", made.folder, "--data", data, "--output", path, flags)
            raw = path.read_bytes()
            self.assertIn(f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}".encode(), raw[:128])
            self.assertEqual((len(raw) - size) % 64, 0)
            self.assertLess(len(raw) - size, 256)
            found = struct.unpack(f"<{size // 4}{kind[1]}", raw[-size:])
            if flags:
                expected = [float(row["p:" + name]) for row in rows for name in names]
                for a, b in zip(found, expected, strict=True):
                    self.assertAlmostEqual(a, b, delta=1e-6)
            else:
                self.assertEqual([names[i] for i in found], [row["label"] for row in rows])
        self.assert_refused(run("predict", made.folder, "--data", data, "--output", path, "--keep-columns all"), 2,
                            ["NPY"])


if __name__ == "__main__":
    unittest.main()
