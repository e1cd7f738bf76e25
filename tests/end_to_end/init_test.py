"""Fine-tuning: weights to start from, frozen layers, and PyTorch's files; what does not fit is refused."""

import csv
import json
import math
import shutil
import struct
import unittest
from pathlib import Path

import command
from command import Run, call, faults, mpirun, run
from files import TEST, TRAIN, labels, png, read_safetensors, safetensors, write_set
from network_test import conv, layer, relu_norm
from survive_test import RECOVERY

DATA = "--batch-size 24 --progress off --threads 1"
FIGURES = json.loads((Path(__file__).parent / "torch_figures.json").read_text())
BODY = (conv(4, name="stem") + relu_norm(name="norm") + conv(3, name="deep") + layer("max-pool", size=2)
        + layer("flatten") + layer("dense", name="fc", width=8))
TORCH = (conv(4, name="stem.0") + relu_norm(name="stem.1") + conv(3, name="body.0")
         + layer("max-pool", size=2) + layer("flatten") + layer("dense", name="fc", width=8))
TORCH = TORCH.replace('activation = "identity"\nname = "body.0"', 'activation = "relu"\nname = "body.0"')
TORCH_FLAGS = "--init-layout pytorch --init-map last=head --init-fresh body.0.bias"
NOTHING_TRAINED = "--steps 1 --learning-rate 1e-30"  # a step below the rounding of any weight but zero


def frozen(text, *names):
    for name in names:
        text = text.replace(f'name = "{name}"\n', f'name = "{name}"\nfreeze = true\n')
    return text


def packed(values, kind):
    if kind == "BF16":  # the upper half of a float32
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return struct.pack(f"<{len(values)}{ {'F16': 'e', 'F32': 'f', 'F64': 'd'}[kind]}", *values)


def torch_tensors(kind="F32", exact=None):
    """The weights of scripts/peers/initial_weights.py; rounded to the type `exact` first."""
    tensors = {}
    for number, (name, shape) in enumerate(FIGURES["shapes"].items(), start=1):
        if name.endswith("num_batches_tracked"):
            tensors[name] = ("I64", [], struct.pack("<q", 7))
            continue
        start = 1.0 if name in ("stem.1.weight", "stem.1.running_var") else 0.0
        values = [start + 0.4 * math.sin(1.3 * i + number) for i in range(math.prod(shape))]
        if exact == "BF16":
            values = [struct.unpack("<f", b"\0\0" + struct.pack("<f", value)[2:])[0] for value in values]
        else:
            code = "e" if exact == "F16" else "f"
            values = [struct.unpack(f"<{code}", struct.pack(f"<{code}", value))[0] for value in values]
        tensors[name] = (kind, shape, packed(values, kind))
    return tensors


class FineTuning(command.CommandTest):
    def setUp(self):
        super().setUp()
        self.data = self.folder / "data"
        write_set(self.data, train=90, test=10, side=6)
        self.few = self.folder / "few"
        write_set(self.few, train=90, test=30, side=6)
        for names, count in ((TRAIN, 90), (TEST, 30)):
            (self.few / names[1]).write_bytes(labels(count, classes=4))

    def run_file(self, text, name="own.toml"):
        path = self.folder / name
        path.write_text(text)
        return path

    def trained(self, text, *args, data=None, name="run", **world):
        return self.train(self.run_file(text), "--data", data or self.data, DATA, *args, name=name, **world)

    def base(self):
        return self.trained(BODY, "--epochs 1", name="base")

    def file(self, tensors, name="torch.safetensors"):
        path = self.folder / name
        path.write_bytes(safetensors(tensors))
        return path

    def test_one_hash_and_frozen_tensors_stay(self):
        base = self.base()
        before = read_safetensors(base.checkpoints[-1] / "model.safetensors")
        text = frozen(BODY, "stem", "norm")
        flags = ("--init-fresh last --epochs 2 --optimizer adamw --clip-norm 0.5 --checkpoint-every 3 --keep 9 --init",
                 base.folder)
        worlds = [{"threads": 1}, {"threads": 3}, {"ranks": 2}, {"threads": 4, "mesh": "--mesh batch=2,model=2"}]
        found = {}
        for number, world in enumerate(worlds):
            mesh = world.pop("mesh", "")
            one = self.trained(text, *flags, mesh, data=self.few, name=f"run-{number}", **world)
            found.setdefault((one.summary["weights_hash"], *one.losses), []).append(world)
        self.assertEqual(len(found), 1, found.values())
        after = read_safetensors(one.checkpoints[-1] / "model.safetensors")
        same = {name for name in after if after[name] == before.get(name)}
        self.assertEqual(same, {"0.weight", "0.bias", "1.gain", "1.bias", "1.mean", "1.variance"})
        self.assert_refused(run("train --progress off --resume", one.folder, "--init none"), 2, ["init", "--resume"])
        other = self.run_file(frozen(BODY, "stem"), "other.toml")
        self.assert_refused(run("train --progress off", other, "--resume", one.folder), 2, ["layer", "freeze = true"])

        shutil.rmtree(base.folder)  # a continued run does not read it again
        one.cut_back(3)
        self.succeed("train --progress off --resume", one.folder, threads=2)
        self.assertIn(one.summary["weights_hash"], next(iter(found)))

    def test_a_rank_is_lost(self):
        base = self.base()
        flags = (self.run_file(frozen(BODY, "norm")), "--data", self.few, DATA, "--epochs 3 --init-fresh last --init",
                 base.folder)
        whole = self.train(*flags, name="whole")
        lost = self.folder / "lost"
        argv = mpirun(3, "train", *flags, "--survive --snapshot-every 4 --run-dir", lost, options=RECOVERY)
        self.assert_ends(call(argv, env=faults("kill:rank=1,step=2,phase=data")), 0)
        summary = Run(lost).summary
        self.assertEqual([loss["rank"] for loss in summary["ranks_lost"]], [1])
        self.assertEqual(summary["weights_hash"], whole.summary["weights_hash"])

    def test_a_frozen_layer_in_the_middle(self):
        """Gradients pass it to the layers before, the same on any ranks and with any exchange; decay leaves it alone."""
        text = frozen(BODY, "norm", "deep")
        found = set()
        for number, (exchange, world) in enumerate((("sums", {"threads": 1}), ("sums", {"threads": 5}),
                                                    ("activations", {"threads": 2}))):
            one = self.trained(text, "--optimizer lars --weight-decay 0.1 --steps 3 --exchange", exchange,
                               name=f"run-{number}", **world)
            found.add(one.summary["weights_hash"])
        self.assertEqual(len(found), 1)
        after = read_safetensors(one.checkpoints[-1] / "model.safetensors")
        first = self.trained(text, NOTHING_TRAINED, name="first")
        before = read_safetensors(first.checkpoints[-1] / "model.safetensors")
        self.assertEqual({name for name in after if after[name] == before[name]},
                         {"1.gain", "1.bias", "1.mean", "1.variance", "2.weight", "2.bias"})

    def test_the_own_checkpoint_again(self):
        base = self.base()
        text = frozen(BODY, "stem", "norm", "deep", "fc")
        again = self.trained(text, NOTHING_TRAINED, "--init", base.checkpoints[-1], name="again")
        self.assertEqual(*(one.summary["epochs"][-1]["test_loss"] for one in (again, base)))
        result = run("train", self.run_file(text), "--data", self.data, "--dry-run --init", base.folder)
        self.assert_ends(result, 0)
        self.assert_says(result.out, ["step-00000004, after 4 steps: 12 tensors taken", "as stem frozen",
                                      "481 parameters, 90 of them trained"], result)

    def test_a_pytorch_file(self):
        """The predictions are PyTorch's: layouts, flattened images and running statistics."""
        text = frozen(TORCH, "stem.0", "stem.1", "body.0", "fc")
        one = self.trained(text, NOTHING_TRAINED, TORCH_FLAGS, "--init", self.file(torch_tensors()))
        output = self.folder / "p.csv"
        self.succeed("predict", one.folder, "--data", self.data, "--output", output)
        rows = list(csv.DictReader(output.read_text().splitlines()))
        self.assertEqual([int(row["label"]) for row in rows], FIGURES["labels"])
        for row, expected in zip(rows, FIGURES["probabilities"], strict=True):
            self.assertAlmostEqual(float(row["probability"]), expected, delta=1e-6)

    def test_types_of_numbers(self):
        for kind in ("F16", "BF16", "F64"):
            hashes = {self.trained(TORCH, NOTHING_TRAINED, TORCH_FLAGS, "--init",
                                   self.file(torch_tensors(stored, exact=kind)),
                                   name=f"{kind}-{stored}").summary["weights_hash"] for stored in (kind, "F32")}
            self.assertEqual(len(hashes), 1, kind)

    def test_what_is_trained_is_counted(self):
        path = self.run_file(frozen(BODY, "norm", "deep"))
        found = json.loads(self.succeed("plan --network --json", path, "--data", self.data).out)
        self.assertEqual([row["frozen"] for row in found["layers"]], [False, True, True, False, False, False, False])
        self.assertEqual((found["parameters"], found["trainable_parameters"]), (481, 354))
        result = self.succeed("plan --network", path, "--data", self.data)
        self.assert_says(result.out, ["'deep' frozen", "Trainable parameters: 354;", "statistics: 127."], result)

    def test_refusals(self):
        base = self.base().folder
        tensors = torch_tensors()
        torch = self.file(tensors)
        wrong = self.file(tensors | {"fc.weight": ("F32", [27, 8], tensors["fc.weight"][2])}, "wrong.safetensors")
        whole = self.file(tensors | {"fc.bias": ("I32", [8], bytes(32))}, "whole.safetensors")
        more = self.file(tensors | {"extra.0.weight": ("F32", [1], bytes(4))}, "more.safetensors")
        text = self.folder / "text.safetensors"
        text.write_text("no tensors at all")
        known = TORCH_FLAGS
        mixed = (TORCH.replace('kind = "flatten"', 'kind = "flatten"\nname = "flat"')
                 .replace('name = "fc"\nwidth = 8', 'name = "fc"\nwidth = 27') + layer("add", from_=["flat", "fc"]))
        self.assertEqual(mixed.count('"flat"') + mixed.count("27"), 3)
        cases = (
            (BODY, ("--init", self.folder / "none"), 65, ["none: no such run, checkpoint or file", "safetensors"]),
            (BODY, ("--init", text), 65, ["text.safetensors: byte 0", "header"]),
            (BODY, ("--init", self.data), 65, ["data: holds no checkpoint"]),
            (BODY, ("--init", base, "--data", self.few), 65,
             ["model.safetensors: tensor '6.weight' has the shape [8, 10], not [8, 4]", "layer 7 (dense 4)",
              "--init-fresh 6"]),
            (BODY, ("--init", torch), 65, ["no tensor '0.weight' for 0.weight of layer 1", "--init-map"]),
            (BODY, ("--init", base, "--init-fresh lost"), 2, ["--init-fresh", "'lost' is neither a layer", "'last'"]),
            (BODY, ("--init", base, "--init-map stem"), 2, ["'stem' is not OURS=THEIRS"]),
            (BODY, ("--init", base, "--init-map stem=0,0.bias=1.bias"), 2, ["0.bias is given twice"]),
            (BODY, ("--init", base, "--init-map stem.bias=1.bias --init-ignore 0.bias"), 2,
             ["both 0.bias of layer 1", "and 1.bias of layer 2", "take the tensor '1.bias'"]),
            (BODY, ("--init-fresh last",), 2, ["--init-fresh without --init"]),
            (TORCH, ("--init", wrong, known), 65, ["'fc.weight' has the shape [27, 8], not [8, 27]", "'fc'"]),
            (TORCH, ("--init", whole, known), 65, ["tensor fc.bias is of type I32, not F32"]),
            (TORCH, ("--init", more, known), 65, ["'extra.0.weight' [1] is of no layer", "--init-ignore extra.0"]),
            (TORCH, ("--init", more, known, "--init-ignore extre"), 2, ["has no tensor 'extre'"]),
            (TORCH, ("--init", torch, known.replace("=head", "=heat")), 2, ["no tensor 'heat.weight'", "'head.weight'"]),
            (TORCH, ("--init", torch, known.replace("=head", "=head,fc=head")), 65, ["'head.weight' has the shape"]),
            (mixed, ("--init", torch, known), 2, ["(add)", "joins flattened images", "PyTorch orders differently"]),
            (BODY.replace('name = "fc"', 'name = "fc"\nfreeze = 1'), (), 2, ["own.toml:", "freeze: 1 is neither true"]),
        )
        for number, (layers, args, code, needles) in enumerate(cases):
            with self.subTest(number=number):
                result = run("train", self.run_file(layers), "--data", self.data, DATA, *args, "--run-dir",
                             self.folder / "refused", threads=2 if number % 2 else None)
                self.assert_refused(result, code, needles)
                self.assertFalse((self.folder / "refused").exists())
        self.succeed("train", self.run_file(TORCH), "--data", self.data, DATA, "--dry-run --init", more, known,
                     "--init-ignore extra")

    def test_tables_have_the_same_columns(self):
        table = self.folder / "table.csv"
        rows = "".join(f"{i * 7 % 13},{i * 5 % 11},{i % 3}\n" for i in range(60))
        flags = f"--test-split 0.2 --layers 4 --epochs 1 --standardize true {DATA}"
        table.write_text("a,b,label\n" + rows)
        base = self.train("--data", table, flags, name="base").folder
        table.write_text("a,c,label\n" + rows)
        self.assert_refused(run("train --data", table, flags, "--dry-run --init", base), 2,
                            ["column 2 is 'c', but was 'b'", "--init-fresh 0"])
        table.write_text('a,"b\nd",label\n' + rows)
        self.assert_refused(run("train --data", table, flags, "--dry-run --init", base), 2,
                            ["column 2 is 'b?d', but was 'b'"])
        table.write_text("a,b,label\n" + rows + "90,1,2\n")
        result = self.succeed("train --data", table, flags, "--dry-run --init", base)
        self.assert_says(result.err, "standardized by the means and deviations of this training set", result)

    def test_words_of_a_column_are_the_same(self):
        table = self.folder / "table.csv"
        flags = f"--test-split 0.2 --layers 4 --epochs 1 {DATA}"

        def write(*words):
            table.write_text("a,b,label\n" + "".join(f'{i % 13},"{words[i % 2]}",{i % 3}\n' for i in range(60)))

        write("red", "blue")
        base = self.train("--data", table, flags, name="base").folder
        write("red", "a\nb")
        self.assert_refused(run("train --data", table, flags, "--dry-run --init", base), 2,
                            ["column 2, 'b': word 1 is 'a?b', but was 'blue'", "--init-fresh 0"])

    def test_outputs_are_the_same(self):
        """Classes, and columns to predict, by name and in order, unless the last layer is not taken."""
        table = self.folder / "table.csv"

        def tried(*args, **options):
            return run("train --data", table, "--test-split 0.2 --layers 4 --epochs 1", DATA, *args, **options)

        def write(classes):
            table.write_text("a,b,y,z,label\n" + "".join(
                f"{i * 7 % 13},{i * 5 % 11},{i * 3 % 17}.5,{i % 7}.25,{classes[i % 3]}\n" for i in range(60)))

        write(["rare", "some", "often"])
        classes = self.folder / "classes"
        values = self.folder / "values"
        for folder, flags in ((classes, "--ignore-columns y,z"), (values, "--label-column y,z --ignore-columns label")):
            self.assert_ends(tried(flags, "--run-dir", folder), 0)
        flags = f"--dry-run --label-column z,y --ignore-columns label --init {values}"
        self.assert_refused(tried(flags), 2, [values, "output 1 is 'z', but was 'y'", "--init-fresh last"])
        self.assert_ends(tried(flags, "--init-fresh last"), 0)
        same = tried(flags.replace("z,y", "y,z"))
        self.assert_ends(same, 0)
        self.assertNotIn("standardized", same.err)
        table.write_text(table.read_text() + "1,2,90.5,3.25,some\n")
        other = tried(flags.replace("z,y", "y,z"))
        self.assert_ends(other, 0)
        self.assert_says(other.err, ["numbers to predict are standardized by the means", "the last layer"], other)
        write(["a-rare", "some", "often"])
        flags = f"--dry-run --ignore-columns y,z --init {classes}"
        for options in ({}, {"threads": 3}):
            self.assert_refused(tried(flags, **options), 2,
                                [classes, "output 1 is 'a-rare', but was 'often'", "--init-fresh last"])
        self.assert_refused(tried(flags, "--init-fresh 1.bias"), 2, ["output 1 is 'a-rare'"])
        self.assert_ends(tried(flags, "--init-fresh last"), 0)

    def test_classes_of_pictures_are_the_same(self):
        pictures = self.folder / "pictures"
        for name in ("cat", "dog"):
            (pictures / name).mkdir(parents=True)
            for i in range(20):
                (pictures / name / f"{i}.png").write_bytes(png(bytes([i * 9 + 5 * (name == "cat")] * 16), 4, 4))
        flags = f"--test-split 0.2 --layers 4 --epochs 1 {DATA}"
        base = self.train("--data", pictures, flags, name="base").folder
        (pictures / "cat").rename(pictures / "wolf")
        self.assert_refused(run("train --data", pictures, flags, "--dry-run --init", base), 2,
                            ["output 1 is 'dog', but was 'cat'", "--init-fresh last"])
        self.succeed("train --data", pictures, flags, "--dry-run --init-fresh last --init", base)

    def test_the_best_epoch(self):
        body = self.run_file(BODY)
        flags = "--epochs 2 --validation 0.2 --keep-best --keep 9"
        base = self.train(body, "--data", self.data, DATA, flags, name="base")
        result = self.succeed("train", body, "--data", self.data, "--dry-run --init", base.folder / "best")
        best = f"step-{json.loads((base.checkpoints[-1] / 'state.json').read_text())['best']['step']:08}"
        self.assert_says(result.out, [best, "12 tensors taken"], result)
        self.assert_refused(run("train", body, "--data", self.data, DATA, "--init", self.folder / "none" / "best"), 65,
                            ["none/best: no such checkpoint"])


if __name__ == "__main__":
    unittest.main()
