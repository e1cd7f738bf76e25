"""Folders of pictures: they train as the same pixels do in other formats, and what is wrong is named."""

import base64
import csv
import json
import shutil
import unittest

import command
import files
from command import run

SMALL = "--layers 16 --epochs 1 --batch-size 16 --progress off"

# 16 x 16, quality 90: red grows with the column, green with the row, blue is 128; and its gray twin.
RGB_JPEG = base64.b64decode("""
/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAMCAgMCAgMDAwMEAwMEBQgFBQQEBQoHBwYIDAoMDAsKCwsNDhIQDQ4RDgsLEBYQERMU
FRUVDA8XGBYUGBIUFRT/2wBDAQMEBAUEBQkFBQkUDQsNFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQU
FBQUFBQUFBT/wAARCAAQABADASIAAhEBAxEB/8QAFQABAQAAAAAAAAAAAAAAAAAABwj/xAAZEAABBQAAAAAAAAAAAAAAAAAABgcj
MqH/xAAVAQEBAAAAAAAAAAAAAAAAAAACBP/EABsRAAIBBQAAAAAAAAAAAAAAAAAGIgUHMTJR/9oADAMBAAIRAxEAPwCVUo1NIcGZ
JtTSHBiSbU0hwZko1NIcK6y4ZkG2z7pPh//Z""")
GRAY_JPEG = base64.b64decode("""
/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAMCAgMCAgMDAwMEAwMEBQgFBQQEBQoHBwYIDAoMDAsKCwsNDhIQDQ4RDgsLEBYQERMU
FRUVDA8XGBYUGBIUFRT/wAALCAAQABABAREA/8QAFQABAQAAAAAAAAAAAAAAAAAABwj/xAAZEAABBQAAAAAAAAAAAAAAAAAABgcj
MqH/2gAIAQEAAD8AlVKNTSHBmSbU0hwYkm1NIcGZKNTSHD//2Q==""")
CMYK_JPEG = base64.b64decode("""
/9j/7gAOQWRvYmUAZAAAAAAA/9sAQwADAgIDAgIDAwMDBAMDBAUIBQUEBAUKBwcGCAwKDAwLCgsLDQ4SEA0OEQ4LCxAWEBETFBUV
FQwPFxgWFBgSFBUU/8AAFAgAEAAQBEMRAE0RAFkRAEsRAP/EABYAAQEBAAAAAAAAAAAAAAAAAAAJCP/EABoQAQABBQAAAAAAAAAA
AAAAAAAIGERkgaL/2gAOBEMATQBZAEsAAD8Ax/G210x/Tbi8iqaqsbbXRTbi8glVG210qrTbi8gqrG210U24vIP/2Q==""")


def pixels(seed, rows, columns, channels=1):
    return bytes((seed * 37 + i * 11) % 256 for i in range(rows * columns * channels))


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


class Pictures(command.CommandTest):
    def write_classes(self, folder, rows=6, columns=5, channels=1, count=8):
        """Cats and dogs, `count` PNG files each."""
        for label, name in enumerate(("cats", "dogs")):
            for i in range(count):
                write(folder / name / f"{i}.png",
                      files.png(pixels(2 * i + label, rows, columns, channels), rows, columns, channels))
        return folder

    def write_set(self, name="set", **shape):
        folder = self.folder / name
        self.write_classes(folder / "train", **shape)
        self.write_classes(folder / "test", **shape | {"count": 3})
        return folder

    def refuse(self, folder, needles, code=65, flags=""):
        result = run("train", SMALL, flags, "--data", folder, "--run-dir", self.folder / "none", threads=2)
        shutil.rmtree(self.folder / "none", ignore_errors=True)
        self.assert_refused(result, code, needles)

    def write_table(self, name="photos.csv", columns=("n", "file", "class"), separator=",", end="\n", begin="", labels=True):
        """The training pictures of write_set(), in the order in which they are records as a folder."""
        rows = [columns] + [(i, f"set/train/{kind}/{i}.png", kind) for i in range(8) for kind in ("cats", "dogs")]
        text = begin + "".join(separator.join(map(str, row if labels else row[:2])) + end for row in rows)
        write(self.folder / name, text.encode())
        return self.folder / name

    def test_a_table_of_paths_and_labels(self):
        folder = self.write_set()
        split = "--test-split 0.25"
        expected = self.train(SMALL, split, "--data", folder / "train", name="folder").summary
        tables = {"plain": {}, "semicolons": {"separator": ";", "end": "\r\n", "begin": "\ufeff"},
                  "class-first": {"columns": ("class", "file", "label")}}
        for name, how in tables.items():
            table = self.write_table(**how)
            for options in ({"threads": 1}, {"threads": 3}):
                with self.subTest(name=name, **options):
                    flags = "--label-column label" if name == "class-first" else "--label-column class"
                    made = self.train(SMALL, split, flags, "--data", table, name=f"{name}-{options['threads']}", **options)
                    self.assertEqual(made.summary["weights_hash"], expected["weights_hash"])
                    self.assertEqual(made.summary["epochs"][-1]["test_loss"], expected["epochs"][-1]["test_loss"])
        self.write_table()
        network = self.folder / "plain-1"
        result = self.succeed("evaluate", network, "--data", self.folder / "photos.csv", "--json")
        self.assertEqual(json.loads(result.out)["examples"], 16)
        new = self.write_table("new.csv", columns=("n", "file"), labels=False)
        result = self.succeed("predict", network, "--data", new, "--output -")
        of_folder = self.succeed("predict", network, "--data", folder / "train", "--output -")
        labels = [[line["label"] for line in csv.DictReader(done.out.splitlines())] for done in (result, of_folder)]
        self.assertEqual(len(labels[0]), 16)
        # Those of the folder are in the order of all names, class folders included.
        self.assertEqual(labels[0][::2] + labels[0][1::2], labels[1])
        self.assertIn("set/train/dogs/3.png", result.out)
        with open(new) as stdin:
            piped = run("predict", network, "--data - --output -", cwd=self.folder, stdin=stdin)
        self.assert_ends(piped, 0)
        self.assertEqual([line["label"] for line in csv.DictReader(piped.out.splitlines())], labels[0])
        self.assert_refused(run("predict", network, "--data", new, "--keep-columns n"), 2,
                            ["a table of numbers and words", "the path of each picture is written as `file`"])
        renamed = self.write_table("renamed.csv", columns=("n", "picture"), labels=False)
        self.assert_refused(run("predict", network, "--data", renamed), 65, ["no column is named 'file'", "'picture'"])

    def test_columns_of_words_that_end_like_pictures(self):
        rows = "".join(f"p{i}.png,{i % 7},{'ab'[i % 2]}\n" for i in range(200))
        for part in ("train", "test"):
            write(self.folder / "words" / f"{part}.csv", ("name,x,label\n" + rows).encode())
        self.refuse(self.folder / "words", ["train.csv:2: 'p0.png' is not a file", "--format csv"])
        for flags in ("--format csv", "--ignore-columns name"):
            made = self.train(SMALL, flags, "--data", self.folder / "words", name=flags.split()[-1])
            self.succeed("evaluate", made.folder, "--data", self.folder / "words")
        write(self.folder / "words" / "test.csv", b"name,x,label\nq,1,a\n")
        self.refuse(self.folder / "words", ["test.csv: names no pictures, but", "train.csv does", "--format csv"])

    def test_tables_that_name_no_pictures(self):
        self.write_set()
        rows = self.write_table().read_text().splitlines()
        def table(*lines):
            write(self.folder / "bad.csv", "".join(f"{line}\n" for line in lines).encode())
            return self.folder / "bad.csv"
        flags = "--test-split 0.25 --label-column class"
        for lines, needles in (
                ([*rows[:3], "1,set/train/cats/none.png,cats"], ["bad.csv:4: 'set/train/cats/none.png' is not a file", "relative"]),
                ([*rows[:3], "1,,cats"], ["bad.csv:4: '' is not a file"]),
                ([*rows[:3], "1,set/train/cats,cats"], ["bad.csv:4: 'set/train/cats' is not a file"]),
                ([*rows[:3], "1,set/train/cats/1.png,"], ["bad.csv:4", "'' is not a label"]),
                ([*rows[:3], "1,set/train/cats/1.png"], ["bad.csv:4", "fields"]),
                (rows[1:], ["the first line is a record", "--header none"]),
                ([row.replace("class", "kind") for row in rows], ["no column is named 'class'", "--label-column"]),
                ([rows[0], "1,set/train/cats/1.png,0.5"], ["bad.csv:1", "numbers to predict, not classes"])):
            with self.subTest(needles=needles):
                self.refuse(table(*lines), needles, flags=flags)
        self.refuse(table(rows[0], "1,,cats", *rows[1:]), ["bad.csv:2: '' is not a file"], flags=flags)
        self.refuse(table(*rows), ["no test set", "--test-split 0.2"], flags="--label-column class")
        self.refuse(table(*rows), ["classes 3"], code=2, flags=flags + " --classes 3")
        made = self.train(SMALL, "--test-split 0.25 --label-column 3 --header none --data", table(*rows[1:]), name="headless")
        self.succeed("evaluate", made.folder, "--data", self.folder / "bad.csv")
        result = run("evaluate", made.folder, "--data", table(*rows[1:4], "9,set/train/cats/1.png,birds"))
        self.assert_refused(result, 65, ["bad.csv:4: training had no class 'birds'", "'cats', 'dogs'"])

    def test_drawn_digits_train_to_the_weights_of_idx(self):
        idx = self.folder / "idx"
        self.succeed("generate", idx, "--train-limit 300 --test-limit 60")
        for part, names in (("train", files.TRAIN), ("test", files.TEST)):
            records, size = files.read_idx(*(idx / name for name in names))
            for i, (image, label) in enumerate(records):
                write(self.folder / "png" / part / str(label) / f"{i:05}.png", files.png(image, *size))
        for flags, name in (("--layers 24", "mlp"), ("--model lenet", "lenet")):
            made = {}
            for data, options in (("idx", {}), ("png", {}), ("png", {"threads": 3}), ("png", {"ranks": 2})):
                if name == "lenet" and options.get("ranks"):
                    continue
                run_name = f"{name}-{data}-{'-'.join(options)}"
                done = self.train(flags, "--epochs 1 --progress off --data", self.folder / data,
                                  name=run_name, **options)
                summary = done.summary
                made[run_name] = (summary["weights_hash"], summary["epochs"][-1]["test_accuracy"])
            self.assertEqual(len(set(made.values())), 1, made)
        result = self.succeed("evaluate", self.folder / "mlp-png-", "--json --data",
                              self.folder / "png")
        self.assertEqual(json.loads(result.out)["examples"], 60)
        result = run("evaluate", self.folder / "mlp-idx-", "--data", self.folder / "png")
        self.assert_refused(result, 65, ["classes of pictures have names"])

    def test_png_and_jpeg_of_all_sizes(self):
        folder = self.folder / "set"
        for part in ("train", "test"):
            for name, jpeg in (("cats", RGB_JPEG), ("dogs", GRAY_JPEG)):
                write(folder / part / name / "a" / "deep.JPG", jpeg)
                write(folder / part / name / "wrong.png", jpeg)
                for i, (rows, columns, channels) in enumerate(((3, 9, 1), (16, 16, 3), (40, 8, 2), (7, 7, 4))):
                    write(folder / part / name / f"{i}.png",
                          files.png(pixels(i, rows, columns, channels), rows, columns, channels))
                write(folder / part / name / ".hidden.png", b"no picture")
                write(folder / part / name / "notes.txt", b"no picture")
                write(folder / part / name / "old.gif", b"GIF89a")
        self.refuse(folder, ["cats/1.png: is 16x16", "cats/0.png is 3x9", "--image-size"])
        hashes = set()
        for options in ({}, {"threads": 3}):
            made = self.train(SMALL, "--image-size 12x10 --data", folder, name=f"run-{len(options)}",
                              **options)
            self.assert_says(made.result.err, ["train: left out", "2 pictures", "train/cats/old.gif",
                                               "test/cats/old.gif"], made.result)
            hashes.add(made.summary["weights_hash"])
        self.assertEqual(len(hashes), 1)
        saved = json.loads((made.checkpoints[-1] / "network.json").read_text())
        self.assertEqual(saved["pictures"],
                         {"size": [12, 10], "channels": 3, "classes": ["cats", "dogs"]})
        gray = self.train(SMALL, "--image-size 8 --image-channels gray --data", folder, name="gray")
        self.assertEqual(json.loads((gray.checkpoints[-1] / "network.json").read_text())["pictures"]["channels"], 1)
        result = self.succeed("inspect", folder, "--image-size 8")
        self.assert_says(result.out, "8x8x3", result)

    def test_predictions_name_files_and_classes(self):
        folder = self.write_set()
        self.train(SMALL, "--data", folder)
        new = self.folder / "new"
        for i in range(5):
            write(new / f"{i}.png", files.png(pixels(i, 9, 4, 3), 9, 4, 3))
        outputs = {self.write_predictions(self.folder / "run", "--data", new, **options).read_text()
                   for options in ({}, {"threads": 2})}
        self.assertEqual(len(outputs), 1)
        rows = list(csv.DictReader(outputs.pop().splitlines()))
        self.assertEqual([row["file"] for row in rows], [str(new / f"{i}.png") for i in range(5)])
        self.assertLessEqual({row["label"] for row in rows}, {"cats", "dogs"})
        result = self.succeed("predict", self.folder / "run", "--data", new / "3.png")
        self.assert_says(result.out, ["3.png", rows[3]["label"]], result)
        result = self.succeed("predict", self.folder / "run", "--output - --data", folder)
        self.assert_says(result.out, ["test/cats/2.png", "test/dogs/0.png"], result)

    def test_classes_are_matched_by_name(self):
        folder = self.write_set()
        made = self.train(SMALL, "--data", folder)
        accuracy = made.summary["epochs"][-1]["test_accuracy"]
        shutil.rmtree(folder / "test" / "cats")  # "dogs" is class 1 still
        result = self.succeed("evaluate", self.folder / "run", "--data", folder, "--json")
        dogs = json.loads(result.out)
        self.assertEqual(dogs["examples"], 3)
        recall = made.summary["classes"][1]["recall"]
        self.assertAlmostEqual(dogs["accuracy"], recall, msg=f"all classes: {accuracy}")
        write(folder / "test" / "cows" / "1.png", files.png(pixels(1, 6, 5), 6, 5))
        result = run("evaluate", self.folder / "run", "--data", folder)
        self.assert_refused(result, 65, ["test/cows", "training had no class 'cows'"])
        self.refuse(folder, ["test/cows", "'cats', 'dogs'"])

    def test_a_part_as_test_set(self):
        folder = self.write_classes(self.folder / "all")
        self.refuse(folder, ["no folder `test`", "--test-split 0.2"])
        hashes = {self.train(SMALL, "--test-split 0.25 --data", folder, name=f"run-{n}",
                             threads=n).summary["weights_hash"] for n in (1, 3)}
        self.assertEqual(len(hashes), 1)
        result = self.succeed("evaluate", self.folder / "run-1", "--test-split 0.25 --json --data", folder)
        self.assertEqual(json.loads(result.out)["examples"], 4)

    def converted(self, folder):
        """The bytes of all training pictures."""
        to = self.folder / f"{folder.name}-npy"
        self.succeed("convert", folder, to, "--format npy")
        return (to / "train-images.npy").read_bytes()[128:]

    def test_conversion_gives_the_pixels(self):
        folder = self.write_set(channels=3)
        expected = b"".join(pixels(2 * i + label, 6, 5, 3) for i in range(8) for label in (0, 1))
        self.assertEqual(self.converted(folder), expected)

    def test_transparency_and_deep_colours(self):
        folder = self.folder / "set"
        clear, deep = pixels(1, 6, 5, 4), pixels(2, 6, 10, 3)  # two bytes a value
        for part in ("train", "test"):
            write(folder / part / "a" / "1.png", files.png(clear, 6, 5, 4))
            write(folder / part / "a" / "2.png", files.png(deep, 6, 5, 3, bits=16))
            write(folder / part / "a" / "3.png", files.png(pixels(3, 6, 5), 6, 5))
        on_white = bytes((clear[i + c] * clear[i + 3] + 255 * (255 - clear[i + 3]) + 127) // 255
                         for i in range(0, len(clear), 4) for c in range(3))
        rounded = bytes(round((deep[i] * 256 + deep[i + 1]) / 257) for i in range(0, len(deep), 2))
        gray = bytes(value for value in pixels(3, 6, 5) for _ in range(3))
        self.assertEqual(self.converted(folder), on_white + rounded + gray)

    def test_jpeg_gives_the_bits_of_the_slow_integer_transform(self):
        folder = self.folder / "set"
        for part in ("train", "test"):
            write(folder / part / "a" / "1.jpg", RGB_JPEG)
        got = self.converted(folder)
        self.assertEqual(len(got), 16 * 16 * 3)
        for row, column, expected in ((0, 0, (0, 3, 120)), (0, 15, (229, 6, 123)), (15, 0, (10, 235, 133)),
                                      (8, 8, (131, 126, 130))):  # as Pillow decodes it
            at = 3 * (16 * row + column)
            self.assertEqual(tuple(got[at:at + 3]), expected)

    def test_damaged_pictures_are_named(self):
        good = files.png(pixels(1, 6, 5), 6, 5)
        bomb = bytearray(files.png(pixels(1, 6, 5), 60000, 60000))
        deep = files.png(b"", 9000, 9000)
        at = RGB_JPEG.index(b"\xff\xc0")
        wide = RGB_JPEG[:at + 5] + b"\x10\x00\x10\x00" + RGB_JPEG[at + 9:]
        cases = ((b"", ["is empty"]), (b"GIF89a...", ["neither PNG nor JPEG (GIF)"]),
                 (good[:20], ["0.png", "byte"]), (good[:-20], ["cannot be decoded as PNG"]),
                 (good[:45] + b"\xff" + good[46:], ["cannot be decoded as PNG"]),
                 (good[:17] + b"\xff" + good[18:], ["header of the PNG file is damaged"]),
                 (bytes(bomb), ["more than 100,000,000 pixels"]),
                 (deep, ["9000 columns", "cannot come from"]),
                 (wide, ["4096 columns", "cannot come from"]), (RGB_JPEG[:100], ["0.png"]), (RGB_JPEG[:-60], ["cannot be decoded as JPEG"]),
                 (CMYK_JPEG, ["CMYK", "convert it to RGB"]))
        for case, (content, needles) in enumerate(cases):
            with self.subTest(case=case):
                folder = self.write_set(f"set-{case}", rows=16, columns=16)
                write(folder / "train" / "dogs" / "0.png", content)
                self.refuse(folder, ["dogs/0.png", "remedy:", *needles],
                            flags="--image-size 16" if b"IDAT" in content else "")

    def test_links_and_folders_in_folders(self):
        plain, linked, deep = self.write_set(), self.folder / "linked", self.folder / "deep"
        (linked / "train").mkdir(parents=True)
        (linked / "test").symlink_to(plain / "test")
        for name in ("cats", "dogs"):
            (linked / "train" / name).symlink_to(plain / "train" / name)
            for part in ("train", "test"):
                shutil.copytree(plain / part / name, deep / part / name / "a" / "b" / "c")
        made = [self.train("--data", folder, SMALL, name=folder.name + "-run") for folder in (plain, linked, deep)]
        self.assertEqual(len({run.summary["weights_hash"] for run in made}), 1)
        (plain / "train" / "lost+found").mkdir()  # on a disk of its own
        self.assertEqual(self.train("--data", plain, SMALL, name="disk-run").summary["weights_hash"],
                         made[0].summary["weights_hash"])
        (deep / "train" / "cats" / "up").symlink_to("..")
        self.refuse(deep, ["train/cats/up: is a link to", "a folder that it is in", "remove the link"])

    def test_folders_that_do_not_fit(self):
        folder = self.write_set()
        (folder / "train" / "empty").mkdir()
        self.refuse(folder, ["train/empty", "has no picture"])
        (folder / "train" / "empty").rmdir()
        self.refuse(folder, ["classes 3", "2 classes"], code=2, flags="--classes 3")
        self.refuse(folder, ["image-size"], code=2, flags="--image-size 3x")
        self.refuse(folder, ["has test files"], code=2, flags="--test-split 0.2")
        write(folder / "test" / "cats" / "0.png", files.png(pixels(1, 7, 5), 7, 5))
        self.refuse(folder, ["test/cats/0.png: is 7x5", "6x5", "--image-size 6x5"])
        flat = self.folder / "flat"
        write(flat / "1.png", files.png(pixels(1, 6, 5), 6, 5))
        self.refuse(flat, ["flat", "in a folder for its class"], flags="--test-split 0.2")
        self.refuse(self.folder / "nowhere", ["nowhere"], flags="--format picture")


if __name__ == "__main__":
    unittest.main()
