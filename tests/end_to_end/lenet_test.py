"""The accuracy that LeNet reaches on real MNIST.

`LeNet` runs with all tests; `Large`, with three epochs, is labelled slow.
"""

import unittest

import command
from tutorial_test import MNIST


@unittest.skipUnless(MNIST.is_dir(), f"{MNIST}: no MNIST there; set LOCKSTEP_MNIST to its folder, "
                                     "or fetch it with scripts/get_mnist.sh")
class OnMnist(command.CommandTest):
    def accuracies(self, epochs):
        run = self.train("--model lenet --data", MNIST, f"--threads 1 --epochs {epochs}", ranks=2,
                         limit=600)
        return [epoch["test_accuracy"] for epoch in run.summary["epochs"]]


class LeNet(OnMnist):
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
