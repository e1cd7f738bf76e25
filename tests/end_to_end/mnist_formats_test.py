"""Real MNIST in every format and number of files trains to the same weights on any ranks."""

import json
import unittest

import command
from tutorial_test import MNIST

FORMATS = ("idx", "csv", "npy", "tfrecord")
TRAIN = "--divide-by 255 --layers 24 --progress off"


@unittest.skipUnless(MNIST.is_dir(), f"{MNIST}: no MNIST there; set LOCKSTEP_MNIST to its folder, "
                                     "or fetch it with scripts/get_mnist.sh")
class MnistFormats(command.CommandTest):
    def convert(self, form, count, limits="--train-limit 2000 --test-limit 100"):
        to = self.folder / f"{form}-{count}"
        self.succeed("convert", MNIST, to, f"--format {form} --files {count}", limits)
        return to

    def test_the_same_weights_from_all_of_them(self):
        hashes, chunks = {}, 0
        for form in FORMATS:
            for count in (1, 16):
                data = self.convert(form, count)
                for ranks in (1, 2, 3):
                    chunks += 1
                    world = {"ranks" if chunks % 4 == 0 else "threads": ranks}
                    name = f"{form}-{count}-{ranks}"
                    made = self.train(TRAIN, "--steps 12 --data", data, name=f"run-{name}", **world)
                    hashes[name] = made.summary["weights_hash"]
        made = self.train(TRAIN, "--steps 12 --train-limit 2000 --test-limit 100 --data", MNIST)
        hashes["packed"] = made.summary["weights_hash"]
        self.assertEqual(len(hashes), 25)
        self.assertEqual(len(set(hashes.values())), 1, hashes)

    def test_whole_files_of_uneven_pieces_on_three_ranks(self):
        """16 files of 125 or 126 records: 6, 5 and 5 a rank."""
        limits = "--train-limit 2009 --test-limit 100"
        for form in FORMATS:
            with self.subTest(form=form):
                data = self.convert(form, 16, limits)
                plan_of = "--shard-policy file --batch-size 96 --data"
                plan = json.loads(self.succeed("plan --json --divide-by 255 --ranks 3", plan_of,
                                               data).out)
                self.assertEqual((plan["files"], plan["records"], plan["examples"]),
                                 (16, 2009, 2009))
                self.assertTrue(plan["disjoint"] and plan["proof"]["enumerated"], plan)
                self.assertEqual((plan["omitted"], plan["multiplicity"]), (0, {"min": 1, "max": 1}))
                self.assertGreater(max(plan["records_per_rank"]), min(plan["records_per_rank"]))
                made = self.train(TRAIN, "--epochs 1", plan_of, data, name=f"file-{form}", ranks=3)
                self.assertEqual(made.summary["examples"], 2009)
                self.assertEqual(made.summary["steps"], plan["steps"])
                self.assertEqual(made.summary["plan_digest"], plan["digest"])
                self.assertEqual(sum(line["examples"] for line in made.metrics), 2009)


if __name__ == "__main__":
    unittest.main()
