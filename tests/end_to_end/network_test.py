"""Networks with shortcuts: one hash for any ranks and meshes and through a resume; their sizes; what is refused."""

import json
import re
import unittest

import command
from command import REPOSITORY, run
from files import write_set, write_signed

DATA = "--batch-size 24 --epochs 2 --progress off --threads 1"


def layer(kind, **keys):
    values = {key.replace("_", "-"): json.dumps(value) for key, value in keys.items()}
    return f'\n[[layer]]\nkind = "{kind}"\n' + "".join(f"{key.rstrip('-')} = {value}\n" for key, value in values.items())


def conv(filters, kernel=3, **keys):
    return layer("conv", filters=filters, kernel=kernel, padding="same", activation="identity", **keys)


def relu_norm(**keys):
    return layer("batch-norm", **keys, activation="relu")


def residual(relu_norm, norm):
    """Residual blocks with an identity and with a strided shortcut, and an output that three layers take."""
    return (conv(4) + relu_norm(name="stem")
            + conv(4) + relu_norm() + conv(4) + layer(norm, name="residual")
            + layer("add", name="block", from_=["residual", "stem"], activation="relu")
            + conv(6, stride=2) + relu_norm(name="deep")
            + conv(6, 1, name="shortcut", from_="block", stride=2)
            + layer("add", name="sum", from_=["deep", "shortcut"], activation="relu")
            + layer("conv", name="strided", from_="block", filters=3, kernel=2, stride=2)
            + layer("concatenate", from_=["strided", "sum"]) + layer("global-pool") + layer("dense", width=8))


RESIDUAL = residual(relu_norm, "batch-norm")
# Without statistics of the batch, for audits.
ROWS_ALONE = residual(lambda **keys: layer("layer-norm", **keys), "layer-norm")
WORLDS = [{"threads": ranks} for ranks in (1, 2, 3, 5)] + [{"ranks": 2}]


class Networks(command.CommandTest):
    def setUp(self):
        super().setUp()
        self.data = self.folder / "data"
        write_set(self.data, train=90, test=30, side=6)

    def run_file(self, text=RESIDUAL):
        path = self.folder / "own.toml"
        path.write_text(text)
        return path

    def trained(self, *args, text=RESIDUAL, name="run", **world):
        return self.train(self.run_file(text), "--data", self.data, DATA, *args, name=name, **world)

    def test_one_hash_for_any_ranks_and_meshes(self):
        found = {}
        cases = [(world, exchange) for world in WORLDS for exchange in ("activations", "sums")]
        cases += [({"threads": 4}, "auto --mesh batch=2,model=2"), ({"ranks": 2}, "auto --mesh model=2")]
        for number, (world, exchange) in enumerate(cases):
            one = self.trained("--exchange", exchange, name=f"run-{number}", **world)
            found.setdefault((one.summary["weights_hash"], *one.losses), []).append((world, exchange))
        self.assertEqual(len(found), 1, found.values())

    def test_the_order_of_inputs_and_the_shortcut_count(self):
        """No two of these networks are the same function."""
        other = RESIDUAL.replace('["strided", "sum"]', '["sum", "strided"]')
        none = RESIDUAL.replace('["residual", "stem"]', '["residual", "residual", "stem"]')
        self.assertEqual(len({self.trained(text=text, name=f"run-{i}").summary["weights_hash"]
                              for i, text in enumerate((RESIDUAL, other, none))}), 3)

    def test_a_continued_run_has_the_hash(self):
        whole = self.trained("--checkpoint-every 3", threads=3, name="whole").summary["weights_hash"]
        stopped = self.trained("--checkpoint-every 3", threads=2, name="stopped")
        stopped.cut_back(3)
        other = self.run_file(RESIDUAL.replace("filters = 3", "filters = 5"))
        refused = run("train", other, "--resume", stopped.folder)
        self.assert_refused(refused, 2, ["--resume: layer 12 is", "filters = 5", "trained with", "filters = 3"])
        self.assertNotIn("residual", refused.err)
        self.succeed("train --progress off --resume", stopped.folder, threads=5)
        self.assertEqual(stopped.summary["weights_hash"], whole)

    def test_audits(self):
        found = {self.trained(flags, text=ROWS_ALONE, name=f"run-{number}", threads=3).summary["weights_hash"]
                 for number, flags in enumerate(("", "--audit-every 1"))}
        self.assertEqual(len(found), 1)

    def test_embeddings(self):
        """Of a table of whole numbers; one that has no row is bad data, in training and evaluation."""
        rows = [f"{i % 3},{i % 7},{i * i % 7},{i % 5}" for i in range(80)]
        config = self.run_file(layer("embedding", vocabulary=7, width=4) + layer("flatten"))
        table = self.folder / "table.csv"
        table.write_text("\n".join(["label,a,b,c", *rows]))
        flags = ("--data", table, "--test-split 0.25 --standardize false", DATA)
        found = {self.train(config, *flags, "--exchange", exchange, name=f"{ranks}-{exchange}", threads=ranks)
                 .summary["weights_hash"] for ranks in (1, 3) for exchange in ("activations", "sums")}
        self.assertEqual(len(found), 1)
        table.write_text("\n".join(["label,a,b,c", *rows]).replace("6", "9"))
        texts = ["table.csv: record ", ": layer 1 (embedding 4 of 7): value ", " of 3 is 9.0, no whole number from 0 to 6", "`vocabulary`"]
        self.assert_refused(run("train", config, *flags, "--run-dir", self.folder / "run", threads=2), 65, texts)
        for subcommand in ("evaluate", "predict"):
            self.assert_refused(run(subcommand, self.folder / "1-sums", "--data", table, threads=2), 65, texts)
        (self.folder / "parts").mkdir()  # one record of the test set alone: of the last rank
        for part, last in (("train", "0,1,2,3"), ("test", "0,1,9,3")):
            (self.folder / "parts" / f"{part}.csv").write_text("\n".join(["label,a,b,c", *rows, last]))
        texts[0] = "test.csv: record "
        for number, world in enumerate(({"threads": 3}, {"ranks": 2})):
            folder = self.folder / f"parts-{number}"
            self.assert_refused(run("train", config, "--data", self.folder / "parts", "--standardize false", DATA,
                                    "--run-dir", folder, **world), 65, texts)
            self.assertEqual(command.Run(folder).summary["exit_code"], 65)
            for words in ("evaluate", f"predict --output {self.folder / 'predictions.csv'}"):
                self.assert_refused(run(words, self.folder / "1-sums", "--data", self.folder / "parts", **world), 65, texts)

    def test_checkpoints_are_evaluated(self):
        trained = self.trained(threads=2)
        saved = json.loads((trained.checkpoints[-1] / "network.json").read_text())
        self.assertEqual(saved["layers"][6]["from"], ["residual", "stem"])
        self.assertEqual(saved["layers"][9]["from"], "block")
        result = self.succeed("evaluate", trained.checkpoints[-1], "--data", self.data, "--json", threads=3)
        self.assertEqual(json.loads(result.out)["loss"], trained.summary["epochs"][-1]["test_loss"])
        outputs = [self.folder / f"{threads}.csv" for threads in (1, 3)]
        for threads, output in zip((1, 3), outputs):
            self.succeed("predict", trained.folder, "--data", self.data, "--output", output, threads=threads)
        self.assertEqual(len({output.read_bytes() for output in outputs}), 1)
        self.assertEqual(len(outputs[0].read_text().splitlines()), 31)
        saved["layers"][6]["from"] = ["residual", "stemm"]
        write_signed(trained.checkpoints[-1] / "network.json", json.dumps(saved).encode())
        self.assert_refused(run("evaluate", trained.checkpoints[-1], "--data", self.data), 65,
                            ["network.json", "from: 'stemm' is the name of no layer"])

    def test_printed_graphs_are_run_files(self):
        printed = self.succeed("train", self.run_file(), "--print-config").out
        self.assertIn('from = ["residual", "stem"]', printed)
        self.assertIn('from = "block"', printed)
        again = self.succeed("train", self.run_file(printed), "--print-config").out
        self.assertEqual(printed, again)

    def test_the_sizes_of_layers(self):
        config = REPOSITORY / "configs/resnet.toml"
        found = json.loads(self.succeed("plan --network --json --ranks 2", config).out)
        self.assertEqual([(row["output"], row["parameters"], row["flops"]) for row in found["layers"][10:13]],
                         [("16x16x16", 64, 0),
                          ("16x16x16", 8 * 16 + 16, 2 * 8 * 16 * 16 * 16),
                          ("16x16x16", 64, 0)])
        for key in ("parameters", "flops"):
            self.assertEqual(found[key], sum(row[key] for row in found["layers"]))
        self.assertGreater(found["bytes"], sum(row["bytes"] for row in found["layers"]))
        trained = self.train(config, "--train-limit 128 --test-limit 32 --epochs 1")
        self.assert_says(trained.result.out, "conv 8@3x3, batch-norm as stem, ", trained.result)
        self.assert_says(trained.result.out, ", 15 more layers, global-pool average, dense 10, 20,458", trained.result)
        network = json.loads((trained.checkpoints[-1] / "network.json").read_text())
        self.assertEqual(network["parameters"], found["parameters"])
        result = self.succeed("plan --network", config)
        self.assert_says(result.out, ["add 'stage1' of residual1, stem", "16x16x16", "total", "FLOPs", "memory"], result)
        chain = self.succeed("plan --network --data synthetic --layers 20")
        self.assert_says(chain.out, ["dense 20", "15,700", "31,360", "of rank 0 of 1 rank"], chain)
        self.assert_refused(run("plan --network --range 10"), 2, ["--range", "--network"])

    def test_the_memory_is_what_training_needs(self):
        """Of a rank: the optimizer's moments, and the snapshots of weights and moments."""
        def planned(*flags):
            return json.loads(self.succeed("plan --network --json", *flags).out)

        adam, weights = planned(), 4 * 905010
        for flags, moments in (("--optimizer sgd", 0), ("--optimizer sgd --momentum 0.9", 1)):
            with self.subTest(flags):
                found = planned(flags)
                self.assertEqual(found["snapshot_bytes"], (1 + moments) * weights)
                self.assertEqual(found["bytes"], adam["bytes"] - 2 * (2 - moments) * weights)
        run_file = self.folder / "sgd.toml"
        run_file.write_text('optimizer = "sgd"\nbalance = true\ndevice = "cuda"\n')
        self.assertEqual(planned(run_file, "--ranks 4"), planned("--optimizer sgd --balance --device cuda --ranks 4"))
        self.assertEqual(planned("--survive")["snapshot_bytes"], (3 + 6) * weights)
        lenet = REPOSITORY / "configs/lenet.toml"
        few, many = (planned(lenet, f"--data synthetic --threads {threads}")["bytes"] for threads in (1, 32))
        self.assertLess(few, many)  # which gather windows of more images at once
        for flags in ("", "--optimizer sgd"):
            with self.subTest(flags):
                large = ("--layers 200000,200000", flags)
                refused = run("train --train-limit 100 --run-dir", self.folder / "run", *large)
                self.assert_refused(refused, 2, ["layers: 1 rank on", "of memory"])
                total = re.search(r"total.*  (\S+ .?B)$", self.succeed("plan --network", *large).out, re.M)[1]
                self.assert_says(refused.err, f"needs {total} of memory", refused)
        for flags, words in (("--momentum 0.9", ["--momentum", "--optimizer adam"]),
                             ("--reduction allreduce --balance", ["balance", "reduction allreduce"]),
                             ("--reduction allreduce --mesh model=2 --ranks 2", ["mesh model=2", "reduction allreduce"]),
                             ("--audit-every 5 --mesh model=2 --ranks 2", ["audit-every", "mesh model=2"]),
                             ("--device cuda --exchange activations", ["exchange activations", "device cuda"]),
                             ("--survive --mesh model=2 --ranks 2", ["survive", "mesh model=2"])):
            with self.subTest(flags):  # as train does
                self.assert_refused(run("plan --network", flags), 2, words)

    def test_objects_in_colour(self):
        """One hash for any ranks, and from files; evaluation has the run's loss."""
        limits = "--train-limit 96 --test-limit 30"
        objects = self.folder / "objects"
        self.succeed("generate", objects, "--data synthetic-rgb --format npy", limits)
        runs = [self.train(REPOSITORY / "configs/resnet.toml", "--epochs 1 --batch-size 24 --progress off", limits, "--data", data,
                           name=f"run-{number}", **world)
                for number, (data, world) in enumerate((("synthetic-rgb", {"threads": 1}), ("synthetic-rgb", {"threads": 3}),
                                                        ("synthetic-rgb", {"ranks": 2}), (objects, {"threads": 2})))]
        self.assertEqual(len({run.summary["weights_hash"] for run in runs}), 1)
        found = self.succeed("evaluate", runs[0].folder, "--data synthetic-rgb --test-limit 30 --json")
        self.assertEqual(json.loads(found.out)["loss"], runs[0].summary["epochs"][-1]["test_loss"])

    def test_refusals(self):
        cases = (
            (RESIDUAL.replace('from = "block"', 'from = "blok"', 1),
             ["own.toml:55", "layer 10 (conv 6@1x1 stride 2) 'shortcut'", "'blok'", "did you mean 'block'?"]),
            (RESIDUAL.replace('["residual", "stem"]', '["residual", "sum"]'),
             ["layer 7 (add) 'block'", "'sum' is layer 11 (add), which comes later", "no loops"]),
            (RESIDUAL.replace('["residual", "stem"]', '["residual", "block"]'), ["layer 7 (add) 'block'", "itself"]),
            (RESIDUAL.replace('name = "sum"', 'name = "stem"'), ["layer 11 (add) 'stem'", "layer 2", "the same name"]),
            (RESIDUAL.replace('["residual", "stem"]', '["residual", "input"]'),
             ["own.toml:", "layer 7 (add) 'block'", "6x6x4 and 6x6x1", "remedy"]),
            (RESIDUAL.replace('["strided", "sum"]', '["strided", "stem"]'),
             ["layer 13 (concatenate)", "3x3x3 and 6x6x4"]),
            (RESIDUAL.replace('from = ["strided", "sum"]\n', ""), ["layer 13 (concatenate)", "two or more inputs"]),
            (RESIDUAL.replace('["residual", "stem"]', "[3, 4]"), ["own.toml:", "from: is neither text nor a number, nor a list"]),
            (RESIDUAL.replace('["residual", "stem"]', "[]"), ["own.toml:", "from: [] names no layer"]),
            (RESIDUAL.replace('name = "stem"', 'name = "input"'), ["own.toml:", "name: 'input'"]),
            (RESIDUAL.replace("stride = 2", "stride = 0", 1), ["own.toml:", "stride: 0 is not a whole number"]),
            (RESIDUAL.replace('kind = "add"', 'kind = "ad"', 1), ["own.toml:", "did you mean 'add'?"]),
            (RESIDUAL + layer("global-pool"), ["layer 16 (global-pool average)", "takes images"]),
        )
        for number, (text, needles) in enumerate(cases):
            with self.subTest(number=number):
                result = run("train", self.run_file(text), "--data", self.data, DATA, "--run-dir", self.folder / "run",
                             threads=2 if number % 2 else None)
                self.assert_refused(result, 2, needles)
                self.assertFalse((self.folder / "run").exists())


if __name__ == "__main__":
    unittest.main()
