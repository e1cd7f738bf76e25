"""`lockstep bench`: the parts measure what they say; how fast that is, no test says."""

import json
import os
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
                                    ("bench dta", 2, ["'dta'", "'data', 'collectives'"]),
                                    ("bench data --seconds 0", 2, ["--seconds"]),
                                    ("bench data --layers 3", 2, ["'--layers'"]),
                                    ("bench data --data nowhere", 65, ["nowhere"]),
                                    ("bench data --drop-remainder --batch-size 99999", 2,
                                     ["drop-remainder"])):
            for options in ({}, {"ranks": 2}):
                with self.subTest(args=args, **options):
                    self.assert_refused(run(args, **options), code, needles)
        self.assert_says(self.succeed("bench --help").out, ["data", "collectives", "step"], None)


class BenchCollectives(command.CommandTest):
    OPERATIONS = ["all_reduce", "all_gather", "broadcast", "all_to_all", "shift"]
    SMALL = "bench collectives --max-bytes 5000 --factor 64 --rounds 2"

    def results(self, args, **options):
        found = json.loads(self.succeed(self.SMALL, "--json", args, **options).out)
        self.assertEqual(found["private_memory"], "--private-memory" in args)
        for one in found["results"]:
            places = [place for place in (one["out_of_place"], one["in_place"]) if place]
            self.assertTrue(places, one)
            for place in places:
                self.assertEqual(place["wrong"], 0, one)
                self.assertAlmostEqual(place["algbw"] * place["seconds"], one["bytes"], 3)
        return found["results"]

    def test_threads(self):
        for ranks in (2, 3, 5):
            for redop in ("sum", "min", "max"):
                with self.subTest(ranks=ranks, redop=redop):
                    found = self.results(f"--ranks {ranks} --redop {redop}")
                    self.assertEqual([one["operation"] for one in found],
                                     self.OPERATIONS)
                    for one in found:
                        self.assertEqual(one["count"] % ranks, 0)
                        self.assertIsNone(one["of_mpi"])

    def test_bus_bandwidth(self):
        """The factors of nccl-tests, doc/PERFORMANCE.md."""
        factors = {"all_reduce": 2 * 3 / 4, "all_gather": 3 / 4, "broadcast": 1,
                   "all_to_all": 3 / 4, "shift": 1}
        for one in self.results("--ranks 4"):
            place = one["in_place"] or one["out_of_place"]
            self.assertAlmostEqual(place["busbw"] / place["algbw"], factors[one["operation"]])

    def test_beside_mpi(self):
        for options in ({"ranks": 2}, {"ranks": 3}):
            with self.subTest(**options):
                found = self.results("--operation all_reduce,shift,shift", **options)
                self.assertEqual([(one["operation"], one["backend"]) for one in found],
                                 [("all_reduce", name) for name in
                                  ("shared", "mpi", "tcp", "MPI_Allreduce")] +
                                 [("shift", name) for name in
                                  ("shared", "mpi", "tcp", "MPI_Sendrecv")])
                for one in found:
                    of_mpi = one["backend"].startswith("MPI_")
                    self.assertEqual(one["of_mpi"] is None, of_mpi)
                    if of_mpi:
                        self.assertTrue(one["in_place"] and one["out_of_place"])
        found = self.results("--operation all_gather,broadcast,all_to_all --backend mpi "
                             "--private-memory", ranks=3)
        self.assertEqual([one["backend"] for one in found],
                         ["mpi", "MPI_Allgather", "mpi", "MPI_Bcast", "mpi", "MPI_Alltoall"])

    def test_table(self):
        result = self.succeed(self.SMALL, "--ranks 2")
        self.assert_says(result.out, ["# all_reduce", "algbw", "busbw", "#wrong", "threads"],
                         result)
        cores = len(os.sched_getaffinity(0))
        crowded = self.succeed(self.SMALL, f"--ranks {cores + 1} --operation shift")
        self.assert_says(crowded.err, f"{cores + 1} ranks share {cores} core", crowded)

    def test_refusals(self):
        for args, needles in (("", ["one rank", "mpirun"]),
                              ("--ranks 2 --operation sum", ["'sum'", "all_gather"]),
                              ("--ranks 2 --operation=", ["--operation", "the value is empty"]),
                              ("--ranks 2 --redop prod", ["'prod'", "sum|min|max", "give one of these"]),
                              ("--ranks 2 --backend mpi", ["'mpi'", "mpirun"]),
                              ("--ranks 2 --backend thread", ["'thread'", "'threads'", "give some of these"]),
                              ("--ranks 2 --private-memory=no", ["--private-memory: takes no value", "'no'"]),
                              ("--ranks 2 --json=false", ["--json: takes no value", "alone"]),
                              ("--ranks 2 --backend=", ["--backend", "the value is empty"]),
                              ("--ranks 2 --min-bytes 3", ["--min-bytes"]),
                              ("--ranks 512 --max-bytes 4G", ["--max-bytes", "need"]),
                              ("--ranks 2 --max-bytes 5G", ["--max-bytes", "5G", "4G"]),
                              ("--ranks 2 --max-bytes 5X", ["--max-bytes", "'5X'"]),
                              ("--ranks 2 --max-bytes 1P", ["--max-bytes", "'1P'", "K, M or G"]),
                              ("--ranks 2 --max-bytes 99999999999G", ["99999999999G is more than 4G"]),
                              ("--ranks 2 --min-bytes 1025 --max-bytes 1027", ["a multiple of 8 bytes"]),
                              ("--ranks 2 --min-bytes 2K --max-bytes 1K", ["--min-bytes"]),
                              ("--ranks 2 --rounds 0", ["--rounds"]),
                              ("--ranks 2 --data synthetic", ["'--data'"])):
            with self.subTest(args=args):
                self.assert_refused(run("bench collectives " + args), 2, needles)
        for backend, needles in (("threads", ["'threads'", "--ranks"]),
                                 ("mpi,tpc", ["'tpc'", "'tcp'", "give some of these"])):
            result = run("bench collectives --backend", backend, ranks=2)
            self.assert_refused(result, 2, needles)
            self.assertNotIn("# lockstep", result.out)


class BenchStep(command.CommandTest):
    PHASES = ["data", "forward", "backward", "exchange", "update", "publish", "other"]
    SMALL = ("bench step --train-limit 200 --test-limit 10 --layers 30,20 --batch-size 40 "
             "--rounds 2 --round-steps 7 --json")

    def test_phases(self):
        products = 784 * 30 + 30 * 20 + 20 * 10
        for args, options in (("", {}), ("--ranks 3", {}), ("--reduction allreduce", {"ranks": 2}),
                              ("--zeros dense --micro-batch 10", {"ranks": 2})):
            with self.subTest(args=args, **options):
                result = self.succeed(self.SMALL, args, "--threads 1", **options)
                found = json.loads(result.out)
                self.assertEqual([found[key] for key in ("precision", "zeros", "micro_batch")],
                                 ["float32", *(("dense", 10) if "dense" in args else ("auto", 0))])
                self.assertEqual(list(found["phases"]), self.PHASES)
                ranks = len(found["seconds_of_ranks"])
                self.assertEqual(found["ranks"], ranks)
                phases = found["phases"]
                self.assertEqual(phases["forward"]["flops"], 2 * 40 * products)
                self.assertEqual(phases["backward"]["flops"],
                                 2 * 40 * (2 * products - 784 * 30))
                self.assertEqual(phases["exchange"]["bytes"] > 0, ranks > 1)
                self.assertGreater(phases["update"]["bytes"], 0)
                self.assertGreater(found["peak"]["flops_per_second"], 0)
                limit = found["limit"]
                self.assertAlmostEqual(
                    limit["share"] * found["step_seconds"],
                    limit["arithmetic_seconds"] + limit["bytes_seconds"])
                for one in found["seconds_of_ranks"]:
                    self.assertGreater(one["forward"], 0)
                    self.assertGreater(one["step"], one["forward"])

    def test_ranks_that_share_a_network(self):
        result = self.succeed(self.SMALL.replace(" --json", ""), "--ranks 2 --mesh model=2")
        self.assert_says(result.out, ["mesh       1 replica of 2 ranks", "limit:"], result)

    def test_a_measured_step_is_extended_to_more_ranks(self):
        step = self.folder / "step.json"
        step.write_text(self.succeed(self.SMALL, "--ranks 2 --threads 1").out)
        found = json.loads(self.succeed("plan --json --predict", step, "--ranks 1000").out)
        self.assertEqual([row["ranks"] for row in found["ranks"]],
                         [*(2 ** i for i in range(1, 10)), 1000])
        for row in found["ranks"]:
            self.assertEqual(row["same_batch"]["batch_size"], 40)
            self.assertEqual(row["same_examples_a_rank"]["batch_size"], 20 * row["ranks"])
        table = self.succeed("plan --predict", step, "--ranks-a-host 4 --between-hosts 2,50")
        self.assert_says(table.out, ["4,096", "1,024", "half of the step", "efficiency", "backend threads"], table)
        self.assertEqual(found["backend"], "threads")
        on_two = self.folder / "two.json"
        on_two.write_text(step.read_text().replace('"hosts":1', '"hosts":2'))
        shared = self.folder / "shared.json"
        shared.write_text(self.succeed(self.SMALL, "--ranks 2 --threads 1 --mesh model=2").out)
        for args, code, needles in (("--predict nowhere", 65, ["nowhere"]),
                                    ("--between-hosts 5,12", 2, ["--predict"]),
                                    (f"--predict {step} --between-hosts 5", 2, ["5,12"]),
                                    (f"--predict {step} --epoch 2", 2, ["--epoch"]),
                                    (f"--predict {on_two}", 65, ["two.json", "2 hosts", "on one host"]),
                                    (f"--predict {shared}", 65, ["shared.json", "--mesh"]),
                                    (f"--predict {step} --batch-size 9999999999999999", 2, ["--batch-size"]),
                                    (f"--predict {step} --ranks 1", 2, ["--ranks"])):
            with self.subTest(args=args):
                self.assert_refused(run("plan " + args), code, needles)
        (self.folder / "cut.json").write_text(step.read_text()[:100])
        self.assert_refused(run("plan --predict", self.folder / "cut.json"), 65, ["cut.json"])

    def test_table_and_roofline(self):
        figure = self.folder / "roof.svg"
        result = run(self.SMALL.replace(" --json", ""), "--roofline", figure)
        if result.code == 2 and "cairo" in result.err:
            self.skipTest("this build has no cairo")
        self.assert_says(result.out, [*self.PHASES, "GFLOP/s", "of peak", "limit:"], result)
        self.assertIn("<svg", figure.read_text())

    def test_run_file(self):
        file = self.folder / "run.toml"
        file.write_text('model = "lenet"\nbatch-size = 20\nepochs = 7\n')
        result = self.succeed("bench step", file, "--train-limit 100 --test-limit 10 --rounds 1 "
                              "--round-steps 3 --json --ranks 2")
        self.assertIn("conv", json.loads(result.out)["network"])

    def test_ranks_that_share_cores(self):
        ranks = len(os.sched_getaffinity(0)) + 1
        result = self.succeed("bench step --train-limit 200 --layers 30 --rounds 1 --round-steps 2", threads=ranks)
        self.assert_says(result.err, [f"{ranks} ranks share ", "remedy: start no more ranks"], result)

    def test_a_step_that_is_not_finite(self):
        """Neither a flag that `bench step` does not have, nor checkpoints, which it does not save."""
        result = run("bench step --train-limit 200 --layers 30 --learning-rate 1e30 --ranks 2")
        self.assert_refused(result, 76, ["diverged at step 2", "lower --learning-rate"])
        for word in ("--on-nonfinite", "checkpoint"):
            self.assertNotIn(word, result.err)

    def test_data_without_a_test_set(self):
        table = self.folder / "table.csv"
        table.write_text("x,label\n" + "".join(f"{i}.5,{i % 3}\n" for i in range(60)))
        digits = files.write_set(self.folder / "digits", train=60, test=1)
        for path in digits.glob("t10k*"):
            path.unlink()
        for data in (table, digits):
            for options in ({}, {"ranks": 2}):
                with self.subTest(data=data, **options):
                    self.succeed("bench step --layers 5 --batch-size 20 --rounds 1 --round-steps 2 --data", data,
                                 **options)

    def test_refusals(self):
        for args, code, needles in (("--rounds 0", 2, ["--rounds"]),
                                    ("--epochs 3", 2, ["'--epochs'"]),
                                    ("--on-nonfinite skip", 2, ["'--on-nonfinite'"]),
                                    ("--device cuda", 2, ["--device", "processors"]),
                                    ("--simd scalar", 2, ["scalar", "--simd auto"]),
                                    ("--roofline a.pdf", 2, ["a.pdf"]),
                                    ("--data nowhere", 65, ["nowhere"])):
            with self.subTest(args=args):
                self.assert_refused(run("bench step " + args), code, needles)
        self.assert_refused(run("bench step --roofline a.pdf", ranks=2), 2, ["a.pdf"])
        missing = run("bench step --roofline", self.folder / "missing" / "a.svg")
        self.assertIn(missing.code, (2, 74), missing)  # 2: a build without cairo
        self.assertEqual(missing.out, "")


if __name__ == "__main__":
    unittest.main()
