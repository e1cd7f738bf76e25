"""Replicas on devices: the same bits as on the processor, what is refused, what the banner says.

Here the binary's devices are fakes that compute on the processor, as many as FAKE_CUDA_DEVICES
says. With the preset cuda's binary and GPUS=N in the environment the same tests use N real ones;
with GPUS=visible as many as CUDA would see.
"""

import json
import os
import random
import shutil
import subprocess
import unittest

import command

FEW = "--train-limit 300 --test-limit 100 --layers 40,24 --epochs 1"
LAUNCHES = ("threads", "ranks") if command.MPI else ("threads",)


def visible():
    """How many real devices a program sees here."""
    if not shutil.which("nvidia-smi"):
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    count = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return count if chosen is None else min(count, len([one for one in chosen.split(",") if one]))


ASKED = os.environ.get("GPUS", "fakes")
GPUS = 0 if ASKED == "fakes" else visible() if ASKED == "visible" else int(ASKED)


def setUpModule():
    if ASKED != "fakes" and GPUS == 0:
        raise unittest.SkipTest("there is no CUDA device: nvidia-smi lists none")


def devices(count):
    return {"env": {"FAKE_CUDA_DEVICES": str(count)}}


def needs(count):
    few = ASKED != "fakes" and GPUS < count
    return unittest.skipIf(few, f"needs {count} devices, there are {GPUS}")


class Device(command.CommandTest):
    @property
    def processor(self):
        return command.trained_once(FEW)

    def on_device(self, *args, count=1, name="device", **world):
        return self.train(FEW, "--device cuda", *args, name=name, **devices(count), **world)

    def assert_same(self, run):
        self.assertEqual(run.summary["weights_hash"], self.processor.summary["weights_hash"])
        self.assertEqual(run.losses, self.processor.losses)
        for key in ("train_loss", "test_loss", "test_accuracy"):
            self.assertEqual(run.summary["epochs"][0][key],
                             self.processor.summary["epochs"][0][key])

    def test_one_rank(self):
        run = self.on_device("--hash-every 2 --checkpoint-every 1")
        self.assert_same(run)
        self.assertRegex(run.result.out, r"device +cuda, .* \(0000:..:..\.0\) on rank 0\n")
        self.assertRegex(run.result.out, "strict products in float32")
        self.assertRegex(run.summary["device"], r"\(0000:..:..\.0\)$")
        self.assertNotIn("warn", run.result.err)

    def test_optimizers_have_the_processors_bits(self):
        """Also with a schedule and weights of classes; the unit tests have all of them, on more ranks."""
        for number, flags in enumerate(("--optimizer sgd --momentum 0.9 --learning-rate 0.05 --weight-decay 0.001 --clip-value 0.01",
                                        "--optimizer lamb --clip-norm 0.5 --schedule cosine --warmup 2 --final-rate 0.1 "
                                        "--class-weights 1,2,1,0.5,1,3,1,1,0.2,2")):
            here = self.train(FEW, flags, name=f"here-{number}")
            for world in ({}, {"threads": 3}):
                there = self.on_device(flags, "--share-device", name=f"there-{number}-{len(world)}", **world)
                self.assertEqual(there.summary["weights_hash"], here.summary["weights_hash"])
                self.assertEqual(there.losses, here.losses)
                self.assertEqual([line.get("gradient_norm") for line in there.metrics],
                                 [line.get("gradient_norm") for line in here.metrics])

    def test_a_sweep_has_the_processors_bits(self):
        path = self.folder / "sweep.toml"
        path.write_text('data = "synthetic"\ntrain-limit = 100\ntest-limit = 20\nlayers = [8]\nepochs = 1\n'
                        '[sweep.settings]\noptimizer = ["sgd", "lamb"]\nlabel-smoothing = [0.0, 0.1]\n')
        hashes = []
        for out, flags in (("here", ""), ("there", "--device cuda --share-device")):
            self.succeed("sweep", path, flags, "--out", self.folder / out, threads=2, **devices(1))
            trials = json.loads((self.folder / out / "sweep.json").read_text())["trials"]
            hashes.append([trial["results"][-1]["weights_hash"] for trial in trials])
        self.assertEqual(len(set(hashes[0])), 4)
        self.assertEqual(*hashes)

    def test_weights_to_start_from(self):
        flags = ("--init-fresh last --init", self.processor.folder)
        here = self.train(FEW, *flags, name="here")
        self.assertEqual(self.on_device(*flags).summary["weights_hash"], here.summary["weights_hash"])
        path = self.folder / "frozen.toml"
        path.write_text('[[layer]]\nkind = "flatten"\n[[layer]]\nkind = "dense"\nwidth = 8\nfreeze = true\n')
        frozen = [self.train(path, "--data synthetic --train-limit 100 --test-limit 20 --epochs 1", device, name=f"frozen{i}", **devices(1))
                  for i, device in enumerate(("", "--device cuda"))]
        self.assertEqual(*[run.summary["weights_hash"] for run in frozen])

    def test_one_rank_over_nccl(self):
        self.assert_same(self.on_device("--backend nccl"))

    def test_processes_share_a_device(self):
        for ranks in (2, 3, 4):
            run = self.on_device("--share-device", ranks=ranks, name=f"{ranks} ranks")
            self.assert_same(run)
            self.assertIn("exchange staged over", run.result.out)
            self.assert_says(run.result.err, ["warning", "through memory of the host",
                                              "ranks share a device"], run.result)

    def test_threads_share_a_device(self):
        self.assert_same(self.on_device("--share-device", threads=3))

    @needs(3)
    def test_a_device_each_over_nccl(self):
        for ranks in (2, 3):
            run = self.on_device(threads=ranks, count=3, name=f"{ranks} ranks")
            self.assert_same(run)
            self.assertIn("exchange nccl", run.result.out)

    @needs(2)
    def test_a_device_each_staged(self):
        for launch in LAUNCHES:
            backend = "mpi" if launch == "ranks" else "threads"
            self.assert_same(self.on_device("--backend", backend, name=backend, count=2,
                                            **{launch: 2}))

    def test_policies(self):
        for name, policy in (("off", "--shard-policy off"), ("odd", "--batch-size 37 --leaf 5")):
            processor = self.train(FEW, policy, "--exchange sums", threads=2, name=f"{name} cpu")
            device = self.on_device(policy, "--share-device", threads=2, name=name)
            self.assertEqual(device.summary["weights_hash"], processor.summary["weights_hash"])

    def test_textbook(self):
        for precision in ("float32", "tf32", "bf16"):
            run = self.on_device("--reduction allreduce --share-device --precision", precision,
                                 threads=2, name=precision)
            self.assertIn(f"allreduce; library products in {precision}", run.result.out)
            expected = self.processor.summary["epochs"][0]["train_loss"]
            self.assertAlmostEqual(run.summary["epochs"][0]["train_loss"], expected, delta=0.02)

    def test_evaluate_and_predict(self):
        checkpoint = self.processor.checkpoints[-1]
        what = (checkpoint, "--data synthetic --test-limit 100")
        expected = json.loads(self.succeed("evaluate", *what, "--json").out)
        for ranks in (1, 3):
            world = {"threads": ranks} if ranks > 1 else {}
            found = self.succeed("evaluate", *what, "--json --device cuda --share-device",
                                 **devices(1), **world)
            self.assertEqual(json.loads(found.out), expected)
        refused = command.run("evaluate", *what, "--device cuda --backend nccl", **devices(1))
        self.assert_refused(refused, 2, ["backend nccl", "leave --backend out"])
        tables = [self.write_predictions(*what, device, **devices(1)).read_text() for device in ("", "--device cuda")]
        self.assertEqual(*tables)

    def test_a_network_of_bf16(self):
        made = self.train(FEW, "--precision bf16", name="bf16")
        for words in ("evaluate", "predict"):
            job = (words, made.folder, "--data synthetic --test-limit 100 --device cuda")
            refused = command.run(*job, **devices(1))
            self.assert_refused(refused, 2, ["trained in bf16", "--precision float32"])
            self.assertNotIn("--reduction", refused.err)
            refused = command.run(*job, "--precision bf16", **devices(1))
            self.assert_refused(refused, 2, ["--precision bf16 with --device cuda", "--precision float32"])
            self.assertNotIn("--reduction", refused.err)
            self.succeed(*job, "--precision float32", **devices(1))

    def test_steps_that_are_not_finite_are_skipped(self):
        numbers = random.Random(1)
        data = self.folder / "data"
        data.mkdir()
        for name, records in (("train.csv", 400), ("test.csv", 100)):
            rows = [[i % 3] + [round(numbers.gauss(i % 3, 1), 4) for _ in range(8)] for i in range(records)]
            if name == "train.csv":
                rows[77][1:] = [3e38] * 8  # too much for a layer's output
                rows[300][4] = 1e24        # too much for a gradient's square
            rows.insert(0, ["label"] + [f"x{i}" for i in range(8)])
            (data / name).write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
        job = ("--classes 10 --standardize false --layers 16,3 --batch-size 20 --epochs 2 --shuffle none --data", data)
        for count in (1, 3):
            ended = command.run("train", *job, f"--ranks {count} --share-device --device cuda --progress off",
                                "--run-dir", self.folder / f"ends-{count}", **devices(1))
            self.assert_refused(ended, 76, ["diverged at step 4", "the output of layer 1 (dense 16), for record 77"])
        job = ("--on-nonfinite skip", *job)
        processor = self.train(*job, name="skipping", threads=2)
        self.assertEqual(processor.summary["skipped_steps"], 4)
        for flags, count in (("", 1), ("--ranks 3 --share-device", 1), ("--ranks 2 --share-device", 1)):
            with self.subTest(flags=flags):
                run = self.train(*job, "--device cuda", flags, name="on" + flags.replace(" ", ""), **devices(count))
                self.assertEqual(run.summary["weights_hash"], processor.summary["weights_hash"])
                self.assertEqual(run.losses, processor.losses)
                self.assertEqual(run.summary["skipped_steps"], 4)
        run = self.train(*job, "--device cuda --reduction allreduce --ranks 2 --share-device", name="allreduce", **devices(1))
        self.assertEqual(run.summary["skipped_steps"], 4)
        self.assertEqual([line["step"] for line in run.metrics if "skipped" in line],
                         [line["step"] for line in processor.metrics if "skipped" in line])

    def test_refusals(self):
        cases = [
            ("", 2, 1, ["ranks 0-1", "same device", "0000:", "--share-device"]),
            ("--backend nccl --share-device", 2, 1, ["backend nccl", "share a device"]),
            ("--model lenet --layers 700,500", 1, 1, ["layer 1 (conv 20@5x5) is not dense", "--device cpu"]),
        ]
        if ASKED == "fakes":
            cases += [("", 1, 0, ["no", "device"]), ("", 3, 2, ["--share-device"])]
        for settings, ranks, count, needles in cases:
            if GPUS > 0 and count != GPUS:
                continue
            for launch in LAUNCHES:
                with self.subTest(settings=settings, ranks=ranks, devices=count, launch=launch):
                    result = command.run("train", FEW, settings, "--device cuda --progress off",
                                         "--run-dir", self.folder / "refused", **devices(count),
                                         **{launch: ranks})
                    self.assert_refused(result, 2, needles)

    def test_the_doctor_names_shared_devices(self):
        if command.MPI and GPUS <= 1:
            result = command.run("doctor --device cuda", ranks=2, **devices(1))
            self.assert_ends(result, 1)
            self.assert_says(result.out, ["error:", "ranks 0-1 use the same GPU", "0000:", "--share-device"], result)
        result = command.run("doctor --device cuda", **devices(1))
        self.assert_says(result.out, ["(0000:", "nothing is wrong"], result)

    def test_a_run_that_diverges(self):
        result = command.run("train", FEW, "--learning-rate 1e30 --device cuda --share-device",
                             "--run-dir", self.folder / "run", ranks=2, **devices(1))
        self.assertEqual(result.code, 76, str(result))
