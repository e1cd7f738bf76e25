"""Optimizers, schedules, clipping, losses, weights and networks: one hash for any ranks and meshes, in micro-batches and through a resume;
what is refused of optimizers."""

import json
import shutil
import unittest

import command
from command import Run, run
from network_test import layer

DATA = "--data synthetic --train-limit 600 --test-limit 60 --batch-size 50 --progress off"
DENSE = "--layers 24,20 --epochs 2"
WIDE = "--layers 300,208 --epochs 1"  # of which each rank updates ranges of two segments
LENET = "--model lenet --epochs 1 --steps 3"

# Runs on a table, whose columns x, y and z are numbers, k a category and w a weight; p, q and r are flags.
ON_TABLE = "--batch-size 14 --epochs 2 --test-split 0.2 --progress off --data"
NETWORKS = {
    "skip": layer("dense", name="first", width=12, activation="relu") + layer("dense", name="second", width=12)
            + layer("add", name="sum", from_=["second", "first"], activation="relu")
            + layer("concatenate", from_=["sum", "first"]),
    "embedding": layer("embedding", vocabulary=9, width=3) + layer("flatten") + layer("dense", name="wide", width=10)
                 + layer("dense", name="deep", width=10, activation="relu") + layer("add", from_=["deep", "wide"]),
}
CLASSES = "--label-column k --ignore-columns p,q,r"
NUMBERS = "--label-column z,y --ignore-columns p,q,r"
FLAGS = "--label-column p,q,r"
# What is trained on the table, and the network: widths, or one of NETWORKS.
TABLE_RUNS = (
    ("--optimizer adamw --schedule cosine --warmup 2", f"{CLASSES} --weight-column w", "16,8"),
    ("--optimizer sgd --learning-rate 0.1 --momentum 0.9 --nesterov --clip-norm 0.5", f"{FLAGS} --weight-column w", "12"),
    ("--optimizer lamb --learning-rate 0.01 --schedule linear", f"{NUMBERS} --weight-column w --loss huber --huber-delta 0.3", "16,8"),
    ("--optimizer lars --learning-rate 0.5 --trust 0.02 --schedule step --decay-every 3",
     "--label-column z,y --ignore-columns p,q,r,w --loss absolute-error", "skip"),
    ("--optimizer adam --clip-value 0.01", f"{CLASSES} --weight-column w --class-weights balanced --label-smoothing 0.1", "skip"),
    ("--optimizer sgd --learning-rate 0.1 --weight-decay 0.01 --schedule exponential --decay 0.9",
     f"{FLAGS} --weight-column w", "skip"),
    ("--optimizer adamw --clip-norm 0.3", "--label-column p --ignore-columns q,r,x,y,z --weight-column w --class-weights 1,4 "
     "--standardize false", "embedding"),
    ("--optimizer lamb --learning-rate 0.02", "--label-column p,q --ignore-columns r,x,y,z,w --standardize false", "embedding"),
)

# optimizer, schedule, clipping, loss, network
TABLE = (
    ("--optimizer sgd --learning-rate 0.1", DENSE),
    ("--optimizer sgd --learning-rate 0.05 --momentum 0.9 --weight-decay 0.001 --schedule cosine --warmup 3", DENSE),
    ("--optimizer sgd --learning-rate 0.05 --momentum 0.9 --nesterov --clip-value 0.01 --schedule step --decay 0.5",
     DENSE),
    ("--optimizer sgd --learning-rate 0.2 --clip-norm 0.5 --label-smoothing 0.1 --class-weights 1,2,1,0.5,1,3,1,1,1,2", DENSE),
    ("--optimizer adam --schedule linear --warmup 1e --final-rate 0.1 --loss squared-error", DENSE),
    ("--optimizer adam --clip-norm 0.3 --weight-decay 0.01", DENSE),
    ("--optimizer adam --clip-value 0.001 --schedule exponential --decay 0.9 --decay-every 4", DENSE),
    ("--optimizer adamw --schedule cosine --final-rate 0.1", DENSE),
    ("--optimizer adamw --weight-decay 0.1 --clip-norm 0.2 --schedule linear --class-weights 1,2,1,0.5,1,3,1,1,1,2", DENSE),
    ("--optimizer lamb --learning-rate 0.01 --schedule cosine --warmup 5", DENSE),
    ("--optimizer lamb --learning-rate 0.01 --clip-norm 0.4", WIDE),
    ("--optimizer lars --learning-rate 0.5 --trust 0.02 --weight-decay 0.0001 --schedule linear --warmup 2", DENSE),
    ("--optimizer lamb --learning-rate 0.01 --schedule step --decay-every 2", LENET),
    ("--optimizer sgd --learning-rate 0.05 --momentum 0.9 --clip-norm 0.5 --schedule cosine", LENET),
)
THREADS = (2, 3, 5, 8)
MESHES = ("batch=2,model=2", "batch=1,model=3")

REFUSED = {
    "--optimizer adagrad": ["optimizer", "'adagrad' is none of adam|adamw|sgd|lamb|lars"],
    "--momentum 0.9": ["--momentum", "--optimizer adam", "--beta1"],
    "--optimizer sgd --nesterov": ["--nesterov", "without momentum", "--momentum"],
    "--optimizer sgd --momentum 1": ["--momentum 1.0", "[0, 1)"],
    "--weight-decay -0.1": ["--weight-decay -0.1", "not a finite float32 of at least 0"],
    "--weight-decay much": ["weight-decay", "'much' is not a finite number"],
    "--clip-norm 0": ["--clip-norm 0.0", "not a finite float32 above 0"],
    "--epsilon 1e-13": ["--epsilon 1e-13", "not a finite float32 of at least 1e-12"],
    "--clip-norm 1 --clip-value 1": ["--clip-norm", "--clip-value", "use one of them"],
    "--optimizer sgd --beta2 0.5": ["--beta2 with --optimizer sgd", "does not use it", "adamw"],
    "--trust 5": ["--trust with --optimizer adam", "lars"],
    "--decay-every 1": ["--decay-every with --schedule constant", "exponential"],
    "--schedule linear --decay-every 5": ["--decay-every with --schedule linear", "exponential"],
    "--decay 0.5": ["--decay with --schedule constant", "exponential"],
    "--schedule step --final-rate 0.5": ["--final-rate with --schedule step", "cosine"],
    "--keep-every 7": ["--keep-every", "--checkpoint-every"],
    "--snapshot-every 3": ["--snapshot-every without --survive"],
    "--schedule cosine --warmup 99": ["--warmup 99 with --schedule cosine", "leaves none of 24 steps", "a shorter --warmup"],
    "--warmup soon": ["warmup", "'soon' is neither a number of steps"],
    "--schedule step --decay-every 0": ["--schedule step", "--decay-every"],
    "--schedule step --decay 2": ["--decay", "at most 1"],
    "--schedule linear --final-rate 2": ["--final-rate", "from 0 to 1"],
    "--label-smoothing 1": ["--label-smoothing 1.0", "outside [0, 1)"],
    "--micro-batch 3": ["micro-batch 3", "leaves of 4 examples", "--micro-batch 4"],
    "--micro-batch 8 --exchange activations": ["micro-batch", "activations", "--exchange sums"],
    "--micro-batch 8 --audit-every 2": ["--audit-every with --micro-batch"],
    "--beta2 1": ["--beta2 1.0", "[0, 1)"],
}


class Optimizers(command.CommandTest):
    def hash_of(self, *args, data=DATA, **world):
        folder = self.folder / "run"
        result = run("train", *args, data, "--run-dir", folder, **world)
        self.assert_ends(result, 0)
        weights = Run(folder).summary["weights_hash"]
        shutil.rmtree(folder)
        return weights

    def test_one_hash_for_any_ranks_and_meshes(self):
        hashes = set()
        for number, (optimizer, network) in enumerate(TABLE):
            args = (optimizer, network)
            one = self.hash_of(*args)
            for threads in (3,) if network == LENET else THREADS:
                with self.subTest(optimizer=optimizer, threads=threads):
                    self.assertEqual(self.hash_of(*args, threads=threads), one)
            for ranks in (2, 3, 5, 8) if number == 3 else (2,):
                with self.subTest(optimizer=optimizer, mpirun=ranks):
                    self.assertEqual(self.hash_of(*args, ranks=ranks), one)
            for mesh in MESHES[:1] if network == LENET else MESHES:
                with self.subTest(optimizer=optimizer, mesh=mesh):
                    ranks = 4 if mesh == MESHES[0] else 3
                    self.assertEqual(self.hash_of(*args, "--mesh", mesh, threads=ranks), one)
            with self.subTest(optimizer=optimizer, micro_batches=True):
                self.assertEqual(self.hash_of(*args, f"--micro-batch {4 + number}", threads=2 + number % 2), one)
            if number % 4 == 0:
                with self.subTest(optimizer=optimizer, exchange="sums"):
                    self.assertEqual(self.hash_of(*args, "--exchange sums", threads=3), one)
            hashes.add(one)
        self.assertEqual(len(hashes), len(TABLE))

    def test_weights_losses_and_networks_have_one_hash(self):
        path = self.folder / "table.csv"
        path.write_text("x,y,z,k,j,w,p,q,r\n" + "".join(
            f"{i * 7 % 23},{i * i % 19},{i * 5 % 17 + 0.5},{i * i % 5},{i * 3 % 9},{i * i % 4 / 3},{int(i % 3 == 0)},{int(i * i % 7 > 2)},{i % 2}\n"
            for i in range(100)))
        hashes = set()
        for number, (optimizer, data, network) in enumerate(TABLE_RUNS):
            flags = (optimizer, data, ON_TABLE, path)
            if network in NETWORKS:
                config = self.folder / f"{network}.toml"
                config.write_text(NETWORKS[network])
                flags = (config, *flags)
            else:
                flags = (f"--layers {network}", *flags)
            one = self.hash_of(*flags, data="")
            worlds = [({"threads": threads}, "") for threads in THREADS]
            worlds += [({"threads": 4}, "--mesh batch=2,model=2"), ({"threads": 2}, "--mesh batch=1,model=2"),
                       ({"ranks": 2 if number % 2 else 3}, ""), ({"threads": 3}, "--exchange sums"),
                       ({"threads": 1 + number % 3}, "--micro-batch 2"), ({"threads": 4}, "--mesh batch=2,model=2 --micro-batch 3")]
            for world, more in worlds:
                with self.subTest(optimizer=optimizer, data=data, network=network, more=more, **world):
                    self.assertEqual(self.hash_of(*flags, more, data="", **world), one)
            hashes.add(one)
        self.assertEqual(len(hashes), len(TABLE_RUNS))

    def test_a_continued_run_has_the_hash(self):
        for optimizer in ("--optimizer sgd --learning-rate 0.1", "--optimizer sgd --learning-rate 0.1 --momentum 0.9",
                          "--optimizer lamb --schedule cosine --warmup 4 --clip-norm 1"):
            with self.subTest(optimizer=optimizer):
                whole = self.hash_of(DENSE, optimizer, "--checkpoint-every 7", threads=3)
                folder = self.folder / "stopped"
                self.succeed("train", DATA, DENSE, optimizer, "--checkpoint-every 7 --keep 9 --run-dir", folder, threads=2)
                run_ = Run(folder)
                run_.cut_back(7)
                self.succeed("train --progress off --resume", folder, threads=5)
                self.assertEqual(run_.summary["weights_hash"], whole)
                state = json.loads((run_.checkpoints[-1] / "state.json").read_text())
                self.assertEqual(state["optimizer"]["name"], optimizer.split()[1])
                shutil.rmtree(folder)

    def test_a_smoothed_loss_is_evaluated(self):
        run_ = self.train(DATA, DENSE, "--label-smoothing 0.1")
        result = self.succeed("evaluate", run_.folder, "--data synthetic --test-limit 60")
        self.assert_says(result.out, [f"loss {run_.summary['epochs'][-1]['test_loss']:.6f}",
                                      "softmax cross-entropy, smoothing 0.1"], result)

    def test_run_files_have_tables(self):
        path = self.folder / "run.toml"
        path.write_text('epochs = 2\nlayers = [24, 20]\n[optimizer]\nname = "sgd"\nmomentum = 0.9\nlearning-rate = 0.05\n'
                        '[schedule]\nname = "cosine"\nwarmup = "1e"\n')
        flags = "--optimizer sgd --momentum 0.9 --learning-rate 0.05 --schedule cosine --warmup 12"
        self.assertEqual(self.hash_of(path), self.hash_of(DENSE, flags))
        path.write_text('[optimizer]\nname = "sgd"\nmomenta = 0.9\n')
        self.assert_refused(run("train", path), 2, [f"{path}:3", "momenta", "momentum"])

    def test_records_and_the_picture(self):
        folder = self.folder / "run"
        self.succeed("train", DATA, DENSE, "--learning-rate 0.5 --optimizer sgd --schedule linear --clip-norm 0.2 --run-dir",
                     folder)
        metrics = Run(folder).metrics
        for line in metrics:
            self.assertAlmostEqual(line["learning_rate"], 0.5 * (1 - (line["step"] - 1) / len(metrics)), delta=1e-9)
            self.assertGreater(line["gradient_norm"], 0)
        result = self.succeed("train", DATA.replace("--progress off", ""), DENSE, "--dry-run --schedule cosine --warmup 5")
        self.assert_says(result.out, ["cosine schedule; warm-up of 5 steps"], result)
        self.assertGreater(result.out.count("█"), 100, result)

    def test_refusals(self):
        for flags, texts in REFUSED.items():
            for world in ({}, {"ranks": 2}) if "sgd" in flags else ({},):
                with self.subTest(flags=flags, **world):
                    result = run("train", DATA, DENSE, flags, "--run-dir", self.folder / "run", **world)
                    self.assert_refused(result, 2, texts)
                    self.assertFalse((self.folder / "run").exists())
        config = self.folder / "norm.toml"
        config.write_text(layer("batch-norm") + layer("flatten") + layer("dense", width=4))
        for result in (run("train", config, DATA, "--micro-batch 8", ranks=2),
                       run("plan --network", config, "--micro-batch 16")):
            self.assert_refused(result, 2, ["micro-batch with layer 1 (batch-norm)", "layer-norm"])


if __name__ == "__main__":
    unittest.main()
