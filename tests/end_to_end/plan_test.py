"""`lockstep plan`: the guide's examples, what is refused, the digest; and `train` by the same plan."""

import json
import random
import sys
import unittest
from collections import Counter

import command
from command import run, words
from files import images, labels, write_set

NETWORK = "--layers 16 --epochs 2 --test-limit 40"


def write_split(folder, sizes, test=40):
    """A data folder whose training set stands in one pair of files for each size."""
    write_set(folder, train=1, test=test)
    for path in folder.glob("train-*"):
        path.unlink()
    for i, size in enumerate(sizes):
        name = f"train-{i:05}-of-{len(sizes):05}"
        (folder / f"{name}-images-idx3-ubyte").write_bytes(images(size))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(labels(size))
    return folder


class Plan(command.CommandTest):
    def plan(self, *args, **options):
        """The JSON of a plan in file order, with its ids."""
        result = self.succeed("plan", "--json --shuffle none", *args, **options)
        self.assertEqual(len(result.out.splitlines()), 1, str(result))
        return json.loads(result.out)

    def ids(self, *args):
        return self.plan("--ids", *args)["ids"]

    def refuse_plan(self, needles, *args, code=2):
        self.assert_refused(command.run("plan", *args), code, needles)

    def test_rebatching(self):
        examples = {(6, 2): [[[0, 1], [2, 3]], [[4], [5]]],
                    (4, 5): [[[0], [1], [2], [3], []]],
                    (8, 3): [[[0, 1], [2, 3], []], [[4, 5], [6, 7], []]],
                    (9, 2): [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], []]]}
        for (records, ranks), expected in examples.items():
            with self.subTest(records=records, ranks=ranks):
                self.assertEqual(
                    self.ids(f"--range {records} --batch-size 4 --ranks {ranks}"), expected)
        sizes = [len(step[0]) for step in self.ids("--range 100 --batch-size 16 --ranks 1")]
        self.assertEqual(sizes, [16] * 6 + [4])

    def test_policies(self):
        guide = "--batch-size 4 --ranks 2 --shard-policy"
        file = [[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4], [10]], [[5], [11]]]
        data = [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10, 11]]]
        off = [[[i, i + 1]] * 2 for i in range(0, 12, 2)]
        balanced = [[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5], [10, 11]]]
        self.assertEqual(self.ids("--files 6,6", guide, "file"), file)
        self.assertEqual(self.ids("--files 6,6", guide, "auto"), file)
        self.assertEqual(self.ids("--files 12", guide, "data"), data)
        self.assertEqual(self.ids("--files 12", guide, "off"), off)
        self.assertEqual(self.ids("--files 6,6", guide, "file --rebatch balanced"), balanced)
        self.assertEqual(self.ids("--range 12", guide, "auto"), data)

    def test_json(self):
        plan = self.plan("--files 12 --batch-size 4 --ranks 2 --ids")
        expected = {"policy": "data", "rebatch": "ceil", "records": 12, "files": 1, "ranks": 2,
                    "batch_size": 4, "steps": 3, "records_per_rank": [6, 6], "empty_batches": 0,
                    "idle_share": 0.0, "disjoint": True, "omitted": 0,
                    "multiplicity": {"min": 1, "max": 1},
                    "ids": [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10, 11]]]}
        self.assertEqual({key: plan[key] for key in expected}, expected)
        self.assertRegex(plan["digest"], "^[0-9a-f]{16}$")
        self.assertTrue(plan["reason"])
        off = self.plan("--files 12 --batch-size 4 --ranks 2 --shard-policy off")
        self.assertEqual((off["disjoint"], off["multiplicity"]), (False, {"min": 2, "max": 2}))
        dropped = self.plan("--range 10 --batch-size 4 --ranks 2 --drop-remainder "
                            "--record-bytes 100")
        self.assertEqual((dropped["omitted"], dropped["steps"]), (2, 2))
        self.assertEqual(dropped["multiplicity"], {"min": 0, "max": 1})
        self.assertEqual(dropped["bytes_per_rank"], [400, 400])
        self.assertEqual(self.plan("--files 6,6 --train-limit 8")["records"], 8)
        shares = [self.plan("--range 200 --ranks 4", flag)["largest_piece"] for flag in ("", "--balance")]
        self.assertEqual(shares, [32, 64])

    def test_warnings(self):
        """One for OFF, and one where AUTO falls back; none for one worker."""
        for args, needle in (("--range 12 --ranks 2 --shard-policy auto", "does not come from"),
                             ("--files 12 --ranks 2 --shard-policy off", "all records"),
                             ("--range 12 --ranks 1 --shard-policy auto", None),
                             ("--range 12 --ranks 1 --shard-policy file", None),
                             ("--range 12 --ranks 1 --shard-policy off", None),
                             ("--files 6,6 --ranks 2 --shard-policy file", None)):
            with self.subTest(args):
                result = self.succeed("plan", args)
                found = [line for line in result.err.splitlines() if "warning" in line]
                self.assertEqual(len(found), 1 if needle else 0, str(result))
                self.assert_says(result.err, needle or [], result)

    def test_refusals(self):
        for policy in ("auto", "file"):
            self.refuse_plan(["2 files", "3 workers", "--shard-policy data", "--shard-policy off",
                              "lockstep convert --files 3"],
                             f"--files 6,6 --ranks 3 --shard-policy {policy}")
        self.refuse_plan("does not come from files", "--range 9 --ranks 3 --shard-policy file")
        self.refuse_plan(["balanced", "--rebatch ceil"], "--range 9 --rebatch balanced")
        self.refuse_plan("more than one of", "--range 9 --files 9")
        self.refuse_plan("more than one of", "--range 9 --data synthetic")
        self.refuse_plan("did you mean '--batch-size'", "--range 9 --batch-sizes 3")
        self.refuse_plan("--layers without --network", "--range 9 --layers 3")
        self.refuse_plan("--optimizer without --network", "--range 9 --optimizer sgd")
        self.refuse_plan("did you mean 'file'", "--range 9 --shard-policy fil")
        self.refuse_plan(["--ids", "--train-limit"], "--range 1000001 --json --ids")
        self.refuse_plan("--json", "--range 9 --ids")
        self.refuse_plan("--files", "--files 6,x")
        self.refuse_plan("no records", "--files 0,0")
        self.refuse_plan("drop-remainder", "--range 9 --drop-remainder")
        for flag in ("--range 0", "--epoch 0", "--ranks 0", "--batch-size 0", "--ranks 9999999"):
            self.refuse_plan(flag.split()[0], *words(flag if "range" in flag else
                                                     f"--range 9 {flag}"))
        self.refuse_plan("no such file or folder", "--data", self.folder / "none", code=65)

    def test_random_plans(self):
        """What JSON states, against the ids it lists."""
        chance = random.Random(5)
        for _ in range(40):
            files = [chance.randrange(0, 30) for _ in range(chance.randrange(1, 9))] + [1]
            ranks, batch = chance.randrange(1, 9), chance.randrange(1, 40)
            policy = chance.choice(["data", "off"] + ["file"] * (2 if len(files) >= ranks else 0))
            rule = "balanced" if policy != "data" and batch >= ranks and chance.random() < .5 \
                else "ceil"
            shuffle = chance.choice(["none", "global"])
            args = (f"--files {','.join(map(str, files))} --ranks {ranks} --batch-size {batch} "
                    f"--shard-policy {policy} --rebatch {rule} --shuffle {shuffle} --epoch 3")
            with self.subTest(args):
                plan = self.plan("--ids", args)
                counts = Counter(i for step in plan["ids"] for ids in step for i in ids)
                times = ranks if policy == "off" else 1
                self.assertEqual(counts, {i: times for i in range(sum(files))})
                self.assertEqual([sum(len(step[r]) for step in plan["ids"]) for r in range(ranks)],
                                 plan["records_per_rank"])
                self.assertEqual(sum(not ids for step in plan["ids"] for ids in step),
                                 plan["empty_batches"])
                self.assertEqual(len(plan["ids"]), plan["steps"])
                self.assertTrue(all(any(step) for step in plan["ids"]))
                self.assertTrue(plan["proof"]["enumerated"])

    def test_batches_do_not_depend_on_the_ranks(self):
        def batches(ranks):
            ids = self.plan("--ids --range 203 --batch-size 24 --shuffle global",
                            f"--ranks {ranks}")["ids"]
            return [[i for piece in step for i in piece] for step in ids]
        expected = batches(1)
        for ranks in (2, 3, 7, 40):
            self.assertEqual(batches(ranks), expected)

    def test_a_million_million_records(self):
        """Arithmetic: neither time nor memory grows with records or steps."""
        argv = words(command.binary, "plan --range 1000000000000 --ranks 65536",
                     "--batch-size 1048576 --shuffle global")
        result = command.call(argv, limit=10)
        self.assert_ends(result, 0)
        self.assert_says(result.out, ["953,675", "disjoint, complete", "closed form"], result)
        plan = json.loads(self.succeed(*argv[1:], "--json").out)
        self.assertEqual(sum(plan["records_per_rank"]), 10 ** 12)

    def test_memory(self):
        """Peak memory of the same plan, measured in a process that has no other children."""
        probe = ("import resource, subprocess, sys\n"
                 "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
                 "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
        result = command.call([sys.executable, "-c", probe, str(command.binary),
                               *words("plan --range 1000000000000 --ranks 65536 --json",
                                      "--batch-size 1048576 --shuffle global")])
        self.assert_ends(result, 0)
        if command.TIME_FACTOR > 1:
            self.skipTest("sanitizers take memory of their own")
        self.assertLess(int(result.out), 50_000, "KiB")

    def test_picture(self):
        result = self.succeed("plan --files 6,6 --ranks 2 --batch-size 4 --shard-policy file "
                              "--shuffle none")
        self.assert_says(result.out, ["rank 1", "step 4", "6-7", "proof", "digest", "25.0 %",
                                      "verified by listing"], result)
        wide = self.succeed("plan --range 100000 --ranks 40 --batch-size 512 --precision bf16")
        self.assert_says(wide.out, ["leaves of 32", "rank 39"], wide)
        self.assertLess(len([l for l in wide.out.splitlines() if l.startswith("  rank")]), 20)
        picture = wide.out[wide.out.index("epoch 1"):]
        self.assertLessEqual(max(map(len, picture.splitlines())), 80)

    def test_help_and_launcher(self):
        text = self.succeed("plan --help").out
        for flag in ("--range", "--files", "--epoch", "--ids", "--json", "--shard-policy",
                     "--rebatch", "--leaf", "--record-bytes"):
            self.assertIn(flag, text)
        self.assertNotIn("--learning-rate", text)
        result = self.succeed("plan --range 9 --json", ranks=3)
        self.assertEqual(len(result.out.splitlines()), 1, str(result))
        self.assertEqual(json.loads(result.out)["ranks"], 3)
        self.assertEqual(json.loads(self.succeed("plan --range 9 --json --ranks 2", ranks=3).out)
                         ["ranks"], 2)
        self.assert_refused(run("plan --range 9 --classes 3"), 2, ["--classes"])

    def test_run_file(self):
        path = self.folder / "run.toml"
        path.write_text('batch-size = 4\nranks = 2\nlayers = [3]\nshuffle = "none"\n')
        self.assertEqual(json.loads(self.succeed("plan --json --ids --range 6", path).out)["ids"],
                         [[[0, 1], [2, 3]], [[4], [5]]])


class Training(command.CommandTest):
    SIZES = [13, 7, 11, 9, 12, 8, 10, 6, 14, 5, 13, 7, 11, 9, 12, 8]  # 155 in 16 files

    def plan(self, *args):
        return json.loads(self.succeed("plan", "--json", *args).out)

    def assert_follows(self, run, plan, epochs=2):
        self.assertEqual(run.summary["plan_digest"], plan["digest"])
        self.assertEqual(run.summary["steps"], epochs * plan["steps"])
        self.assertEqual(run.summary["examples"], epochs * plan["examples"])
        sizes = [sum(map(len, step)) for step in plan["ids"]]
        self.assertEqual([line["examples"] for line in run.metrics], sizes * epochs)

    def test_files_on_three_ranks(self):
        data = write_split(self.folder / "data", self.SIZES)
        for rule in ("ceil", "balanced"):
            args = f"--data {data} --shard-policy file --batch-size 20 --rebatch {rule}"
            plan = self.plan(args, "--ranks 3 --ids")
            self.assertEqual((plan["files"], plan["examples"]), (16, 155))
            hashes = set()
            for i, world in enumerate(({"threads": 3}, {"ranks": 3}, {"ranks": 3})):
                run = self.train(args, NETWORK, name=f"{rule}-{i}", **world)
                self.assert_follows(run, plan)
                hashes.add(run.summary["weights_hash"])
            self.assertEqual(len(hashes), 1)

    def test_a_folder_with_a_training_set_alone(self):
        data = write_split(self.folder / "data", (30, 10))
        args = f"--data {data} --ranks 2 --batch-size 8 --ids"
        whole = self.plan(args)
        for path in data.glob("t10k*"):
            path.unlink()
        self.assertEqual(self.plan(args), whole)
        self.assertEqual((whole["files"], whole["records"]), (2, 40))

    def test_the_guide(self):
        """12 records in two files: steps of 4, 4, 2 and 2; balanced: 4, 4 and 4."""
        data = write_split(self.folder / "data", [6, 6])
        for policy, sizes in (("file", [4, 4, 2, 2]), ("auto", [4, 4, 2, 2]), ("data", [4, 4, 4]),
                              ("off", [4] * 6), ("file --rebatch balanced", [4, 4, 4])):
            run = self.train(f"--data {data} --classes 10 --batch-size 4 --shard-policy {policy} --layers 5 "
                             "--epochs 1", name=policy.replace(" ", ""), ranks=2)
            self.assertEqual([line["examples"] for line in run.metrics], sizes)

    def test_digests(self):
        data = write_split(self.folder / "data", self.SIZES)
        for i, args in enumerate((f"--data {data} --batch-size 9 --leaf 2",
                                  "--train-limit 300 --batch-size 256 --precision bf16",
                                  f"--data {data} --train-limit 40 --shard-policy auto",
                                  f"--data {data} --shard-policy off --drop-remainder "
                                  "--batch-size 50 --seed 5 --rebatch balanced")):
            with self.subTest(args):
                plan = self.plan(args, "--ranks 2 --ids")
                self.assert_follows(self.train(args, NETWORK, name=f"run-{i}", threads=2), plan)

    def test_off_equals_one_worker(self):
        """Two workers cut a batch of 40 into two of 20, which one worker takes one by one."""
        data = write_split(self.folder / "data", [160])
        off = self.train(f"--data {data} --shard-policy off --batch-size 40", NETWORK, name="off",
                         ranks=2)
        alone = self.train(f"--data {data} --batch-size 20", NETWORK, name="alone", threads=1)
        self.assertEqual(off.summary["examples"], 2 * alone.summary["examples"])
        self.assertEqual(len(off.losses), len(alone.losses))
        for a, b in zip(off.losses, alone.losses):
            self.assertAlmostEqual(a, b, delta=1e-4)
        warnings = [line for line in off.result.err.splitlines() if "warning" in line]
        self.assertEqual(len(warnings), 1, str(off.result))

    def test_refusals(self):
        data = write_split(self.folder / "data", [6, 6])
        for args, needles in ((f"--data {data} --classes 10 --shard-policy file", ["2 files", "3 workers"]),
                              ("--shard-policy file", "does not come from files"),
                              ("--rebatch balanced", "balanced")):
            result = command.run("train", args, "--run-dir", self.folder / "run", ranks=3)
            self.assert_refused(result, 2, needles)
            self.assertFalse((self.folder / "run").exists())


if __name__ == "__main__":
    unittest.main()
