"""The tutorial's run on real MNIST follows TensorFlow's own, on any number of ranks."""

import functools
import os
import re
import shutil
import tempfile
import unittest
from pathlib import Path

import command

MNIST = Path(os.environ.get("LOCKSTEP_MNIST") or command.REPOSITORY / "../shared/data/mnist")
FIRST_5000 = "--train-limit 5000 --test-limit 5000 --shuffle none --epochs 3"
# canonical_test proves for every number of ranks that both launches give the same weights.
WORLDS = [("threads", 1), ("ranks", 2), ("threads", 3), ("ranks", 5), ("ranks", 8)]
BATCH_LOSSES = {1: 2.327221, 2: 2.030329, 3: 1.797868, 5: 1.505690, 10: 0.683810, 20: 0.277930}
EPOCHS = [(0.6732, 0.8074, 0.4995, 0.8514),
          (0.2528, 0.9258, 0.3434, 0.8956),
          (0.1570, 0.9536, 0.2751, 0.9190)]
EPOCHS_700_10 = [None, None, (0.396, 0.905, 0.514, 0.855)]
FIGURES = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")
LINE = re.compile(r"epoch (\d)/3  training loss (\d\.\d{3}), accuracy (\d\.\d{3})"
                  r"   testing loss (\d\.\d{3}), accuracy (\d\.\d{3})  ")


def in_every_world(check):
    """A test that runs check(self, run) for each number of ranks."""
    @functools.wraps(check)
    def test(self):
        for launch, ranks in WORLDS:
            with self.subTest(launch=launch, ranks=ranks):
                check(self, first_5000(launch, ranks))
    return test


def setUpModule():
    if not MNIST.is_dir():
        raise unittest.SkipTest(f"{MNIST}: no MNIST there; set LOCKSTEP_MNIST to its folder, "
                                "or fetch it with scripts/get_mnist.sh")
    Tutorial.runs = Path(tempfile.mkdtemp(prefix="lockstep-tutorial-"))
    unittest.addModuleCleanup(shutil.rmtree, Tutorial.runs, ignore_errors=True)


@functools.cache
def first_5000(launch, ranks):
    """Every world trains once, whatever number of tests look at it."""
    folder = Tutorial.runs / f"{launch}-{ranks}"
    result = command.run("train --data", MNIST, FIRST_5000, "--run-dir", folder, **{launch: ranks})
    if result.code != 0:
        raise AssertionError(str(result))
    return command.Run(folder, result)


class Tutorial(command.CommandTest):
    runs = None

    def assert_epochs(self, run, expected):
        epochs = run.summary["epochs"]
        self.assertEqual(len(epochs), len(expected))
        for epoch, row in zip(epochs, expected):
            for name, value in zip(FIGURES, row or ()):
                delta = 0.003 if name.endswith("loss") else 0.004
                self.assertAlmostEqual(epoch[name], value, delta=delta,
                                       msg=f"{name} of epoch {epoch['epoch']}")

    @in_every_world
    def test_batch_losses_are_tensorflows(self, run):
        for step, loss in BATCH_LOSSES.items():
            self.assertAlmostEqual(run.losses[step - 1], loss,
                                   delta=2e-5 if step <= 10 else 1e-4, msg=f"step {step}")

    @in_every_world
    def test_epochs_are_tensorflows(self, run):
        self.assert_epochs(run, EPOCHS)

    @in_every_world
    def test_the_number_of_ranks_does_not_show(self, run):
        alone = first_5000("threads", 1)
        self.assertEqual(run.losses, alone.losses)
        for mine, other in zip(run.summary["epochs"], alone.summary["epochs"], strict=True):
            for name in (*FIGURES, "weights_hash"):
                self.assertEqual(mine[name], other[name], f"{name} of epoch {mine['epoch']}")

    @in_every_world
    def test_every_step_is_recorded_once(self, run):
        sizes = [128] * 39 + [8]
        self.assertEqual([line["examples"] for line in run.metrics], 3 * sizes)
        self.assertEqual([line["step"] for line in run.metrics], list(range(1, 121)))
        self.assertEqual([line["epoch"] for line in run.metrics],
                         [epoch for epoch in (1, 2, 3) for _ in sizes])

    @in_every_world
    def test_four_figures_are_printed_for_each_epoch(self, run):
        expected = [(str(epoch["epoch"]), *(f"{epoch[name]:.3f}" for name in FIGURES))
                    for epoch in run.summary["epochs"]]
        self.assertEqual(LINE.findall(run.result.out), expected, str(run.result))

    def test_the_net_that_the_tutorial_really_builds(self):
        for launch, ranks in (("ranks", 2), ("threads", 3)):
            with self.subTest(launch=launch, ranks=ranks):
                run = self.train("--data", MNIST, FIRST_5000, "--layers 700,10", name=launch,
                                 **{launch: ranks})
                self.assert_epochs(run, EPOCHS_700_10)

    def test_all_of_mnist_shuffled(self):
        run = self.train("--data", MNIST, "--shuffle global --epochs 3", ranks=2, limit=120)
        self.assertEqual(run.summary["examples"], 3 * 60_000)
        self.assertGreaterEqual(run.summary["epochs"][-1]["test_accuracy"], 0.972)
