"""Other builds train the weights of build/dev, to the last bit: aarch64's, under qemu, and release's.

`Emulated` runs with all tests of the preset aarch64, of which `Tutorial` is labelled slow; `Release` with the preset
release.
"""

import unittest

import command

PEER = command.REPOSITORY / "build/dev/lockstep"
QEMU = ["qemu-aarch64", "-L", command.REPOSITORY / "build/aarch64-sysroot"]
# Instructions of the optimizers: the processor that qemu emulates. The strict products are NEON on all of them.
PROCESSORS = {
    "NEON": "cortex-a72",
    "SVE": "a64fx",
    "SVE2": "max,sve-default-vector-length=256",
    "SVE of 256 bits": "max,sve-default-vector-length=32",
    "SVE2 of 128 bits": "max,sve-default-vector-length=16",
}
NETWORKS = (
    "--layers 300,33 --batch-size 50 --train-limit 220 --test-limit 60 --epochs 2",  # wide enough to leave out zeros
    "--layers 20,20,20 --leaf 5 --batch-size 37 --train-limit 300 --test-limit 60 --epochs 1 --exchange sums",
    "--layers 300,33 --precision bf16 --batch-size 50 --train-limit 220 --test-limit 60 --epochs 1",
    "--layers 20 --train-limit 200 --test-limit 20 --epochs 1 --augment shift=2,rotate=10,noise=0.05",
    "configs/layers.toml --batch-size 32 --train-limit 64 --test-limit 20",
    "configs/resnet.toml --batch-size 8 --train-limit 16 --test-limit 8 --epochs 1",
)
OPTIMIZERS = (
    "--optimizer sgd --momentum 0.9 --nesterov --schedule cosine --warmup 1",
    "--optimizer adam --clip-norm 0.3 --label-smoothing 0.1",
    "--optimizer adamw --clip-value 0.001 --schedule exponential --decay 0.9",
    "--optimizer lars --learning-rate 0.5 --weight-decay 0.0001",
    "--optimizer lamb --learning-rate 0.01 --loss squared-error",
)


@unittest.skipUnless(PEER.is_file(), f"no {PEER}, whose weights are the measure: scripts/test.sh aarch64 builds it")
class Beside(command.CommandTest):
    def trained(self, program, *args, **options):
        """What a run left: its losses, evaluations and hash, and the bytes of its weights."""
        folder = self.folder / str(len(list(self.folder.iterdir())))
        argv = command.words(*program, "train", *args, "--progress off --run-dir", folder)
        self.assert_ends(command.call(argv, cwd=command.REPOSITORY, **options), 0)
        run = command.Run(folder)
        figures = [(epoch["weights_hash"], epoch["train_loss"], epoch["test_loss"]) for epoch in run.summary["epochs"]]
        return run.losses, figures, (run.checkpoints[-1] / "model.safetensors").read_bytes()

    def assert_same(self, args, processors, ranks, **options):
        expected = self.trained([PEER], args, "--ranks 2", **options)
        for name in processors:
            for count in ranks:
                with self.subTest(args=args, processor=name, ranks=count):
                    found = self.trained([*QEMU, command.binary], args, f"--ranks {count}",
                                         env={"QEMU_CPU": PROCESSORS[name]}, **options)
                    self.assertEqual(found, expected)


class Emulated(Beside):
    def test_networks(self):
        for number, args in enumerate(NETWORKS):
            self.assert_same(args, ["NEON"], (1, 3) if number < 2 else (2,))

    def test_optimizers(self):
        for args in OPTIMIZERS:
            self.assert_same("--layers 24 --batch-size 40 --train-limit 80 --test-limit 20 --epochs 1 " + args,
                             PROCESSORS, (2,))


class Tutorial(Beside):
    def test_first_100_steps(self):
        self.assert_same("configs/tutorial.toml --data synthetic --test-limit 500 --steps 100", ["SVE2"], (2,),
                         limit=1200)


class Release(Beside):
    def test_networks_and_optimizers(self):
        small = "--layers 24 --batch-size 40 --train-limit 80 --test-limit 20 --epochs 1"
        for args in (*NETWORKS, *(f"{small} {args}" for args in OPTIMIZERS)):
            with self.subTest(args=args):
                expected = self.trained([PEER], args, "--ranks 2")
                self.assertEqual(self.trained([command.binary], args, "--ranks 3"), expected)


if __name__ == "__main__":
    unittest.main()
