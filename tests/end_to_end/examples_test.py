"""The examples beside the library print the guide's numbers, and train as the command does."""

import re
import unittest

import command
from command import CommandTest, call, mpirun

GUIDE = """2 replicas in sync
range(6) in global batches of 4:
  {0: [0, 1], 1: [2, 3]}
  {0: [4], 1: [5]}
  warning: shard-policy auto: the data does not come from files, so it is sharded as by data
  element spec: int64 (?)
100 ones in batches of 16: 7 steps, 100 examples, label - 0.3 * feature = 0.7
10 epochs of 5 steps: 50 steps
range(9) in batches of 4: 3 steps, then nothing
  next(): no replica has data for another step
  remedy: catch it and go on with the next epoch, or use next_as_optional()
from a function that shards range(16) itself:
  {0: [0, 2, 4, 6], 1: [1, 3, 5, 7]}
  {0: [8, 10, 12, 14], 1: [9, 11, 13, 15]}
four steps of an infinite generator:
  {0: [[0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]], 1: [[2.0, 2.0, 2.0, 2.0], [3.0, 3.0, 3.0, 3.0]]}
  {0: [[4.0, 4.0, 4.0, 4.0], [5.0, 5.0, 5.0, 5.0]], 1: [[6.0, 6.0, 6.0, 6.0], [7.0, 7.0, 7.0, 7.0]]}
  {0: [[8.0, 8.0, 8.0, 8.0], [9.0, 9.0, 9.0, 9.0]], 1: [[10.0, 10.0, 10.0, 10.0], [11.0, 11.0, 11.0, 11.0]]}
  {0: [[12.0, 12.0, 12.0, 12.0], [13.0, 13.0, 13.0, 13.0]], 1: [[14.0, 14.0, 14.0, 14.0], [15.0, 15.0, 15.0, 15.0]]}
the first value of [5, 6, 7, 8]: {0: [5], 1: [6]}
  x + 1: {0: [6], 1: [7]}
  replica ids: {0: 0, 1: 1}
  reduce(sum, axis 0): 11, shape ()
  gather(axis 0): [5, 6]
  local results of replica 0: [5]
  a constant 1.0 for each replica: {0: 1.0, 1: 1.0}
a mirrored variable: [0.5, 1.0], verified; a metric: 24 examples
doubled, in global order: {""" + ", ".join(f"{i}: {2 * i}" for i in range(24)) + "}\n"


class Examples(CommandTest):
    maxDiff = None

    def example(self, name, ranks=None):
        """What the program beside the command prints."""
        program = command.binary.parent / "apps" / name
        result = call(mpirun(ranks, program=program) if ranks else [str(program)])
        self.assert_ends(result, 0)
        return result.out

    def test_guide_alone_and_under_mpirun(self):
        self.assertEqual(self.example("guide"), GUIDE)
        self.assertEqual(self.example("guide", ranks=2), GUIDE)

    def test_custom_loop_trains_as_the_command(self):
        run = self.train("--layers 32 --train-limit 1000 --test-limit 100 --epochs 2")
        outputs = {ranks: self.example("custom_loop", ranks) for ranks in (None, 1, 2, 3)}
        self.assertEqual(len(set(outputs.values())), 1, outputs)
        lines = outputs[2].splitlines()
        self.assertEqual(lines[-1], f"weights {run.summary['weights_hash']}")
        losses = [float(re.search(r"loss (\S+),", line)[1]) for line in lines[:-1]]
        for epoch, loss in zip(run.summary["epochs"], losses, strict=True):
            self.assertAlmostEqual(epoch["train_loss"], loss, delta=1e-6)


if __name__ == "__main__":
    unittest.main()
