"""LeNet on real MNIST: one hash on any number of ranks, and the accuracy it reaches.

`LeNet` runs with all tests; `Large`, with three epochs, is labelled slow.
"""

import unittest

import command
from tutorial_test import MNIST

PART = "--train-limit 700 --test-limit 200 --epochs 1"
WORLDS = [{"ranks": 1}, {"ranks": 2}, {"ranks": 3}, {"threads": 3}, {"ranks": 5}]


@unittest.skipUnless(MNIST.is_dir(), f"{MNIST}: no MNIST there; set LOCKSTEP_MNIST to its folder, "
                                     "or fetch it with scripts/get_mnist.sh")
class OnMnist(command.CommandTest):
    def accuracies(self, epochs):
        run = self.train("--model lenet --data", MNIST, f"--threads 1 --epochs {epochs}", ranks=2,
                         limit=600)
        return [epoch["test_accuracy"] for epoch in run.summary["epochs"]]


class LeNet(OnMnist):
    def hash_of(self, name, *args, **world):
        run = self.train("--model lenet --data", MNIST, PART, *args, name=name, **world)
        return (run.summary["weights_hash"], *run.losses)

    def test_one_hash(self):
        found = {str(world): self.hash_of(f"world-{number}", "--threads 1", **world)
                 for number, world in enumerate(WORLDS)}
        found["2 threads of products"] = self.hash_of("products", "--threads 2", ranks=1)
        self.assertEqual(len(set(found.values())), 1, found)

    def test_one_epoch(self):
        self.assertGreaterEqual(self.accuracies(1)[0], 0.98)


class Large(OnMnist):
    def test_three_epochs(self):
        """About 99 %, whatever the seed: lib/nn/README.md."""
        found = self.accuracies(3)
        self.assertEqual(len(found), 3)
        self.assertGreaterEqual(found[-1], 0.985)


if __name__ == "__main__":
    unittest.main()
