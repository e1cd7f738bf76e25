"""`lockstep bench data`: it reads what training reads, no more and no less, and says how fast."""

import json
import unittest

import command
import files
from command import run

KEYS = ["records", "bytes", "open_seconds", "seconds", "records_per_second", "bytes_per_second"]


class BenchData(command.CommandTest):
    def bench(self, *args, **options):
        result = self.succeed("bench data --json", *args, **options)
        self.assertEqual(len(result.out.splitlines()), 1, str(result))
        return json.loads(result.out)

    def test_every_record_is_read_once(self):
        data = files.write_set(self.folder / "data", train=300, test=1)
        for options in ({}, {"threads": 3}, {"ranks": 2}):
            for shuffle in ("none", "global"):
                with self.subTest(shuffle=shuffle, **options):
                    found = self.bench("--data", data, "--batch-size 64 --shuffle", shuffle,
                                       **options)
                    self.assertEqual(list(found), [*KEYS, "ranks"])
                    self.assertEqual((found["records"], found["bytes"]), (300, 300 * 16))
                    for part in found["ranks"]:
                        self.assertEqual(list(part), KEYS)
                        self.assertEqual(part["bytes"], 16 * part["records"])
                        self.assertGreater(part["seconds"], 0)
                    self.assertEqual(sum(part["records"] for part in found["ranks"]), 300)

    def test_the_plan_is_that_of_training(self):
        found = self.bench("--data synthetic --train-limit 100 --batch-size 32 --ranks 3 "
                           "--shard-policy off")
        self.assertEqual([part["records"] for part in found["ranks"]], [100, 100, 100])

    def test_seconds(self):
        found = self.bench("--data synthetic --train-limit 100 --seconds 1")
        self.assertGreaterEqual(found["seconds"], 1)
        self.assertGreater(found["records"], 200)
        self.assertEqual(found["records"] % 100, 0)

    def test_table(self):
        result = self.succeed("bench data --data synthetic --train-limit 100 --ranks 2")
        self.assert_says(result.out, ["100 records", "rank 0", "rank 1", "all", "records/s"],
                         result)

    def test_refusals(self):
        for args, code, needles in (("bench", 2, ["nothing to measure"]),
                                    ("bench dta", 2, ["'dta'", "bench data"]),
                                    ("bench data --seconds 0", 2, ["--seconds"]),
                                    ("bench data --layers 3", 2, ["'--layers'"]),
                                    ("bench data --data nowhere", 65, ["nowhere"]),
                                    ("bench data --drop-remainder --batch-size 99999", 2,
                                     ["drop-remainder"])):
            for options in ({}, {"ranks": 2}):
                with self.subTest(args=args, **options):
                    self.assert_refused(run(args, **options), code, needles)
        self.assert_says(self.succeed("bench --help").out, ["bench data"], None)


if __name__ == "__main__":
    unittest.main()
