"""The receipt: hashes of every tensor in metrics.jsonl, and `lockstep compare` of two runs."""

import json
import re
import shutil
import unittest

import command
from command import SMALL, call, mpirun, run

HASHED = SMALL + " --epochs 2 --progress off --hash-every 1"
TENSORS = ["0.weight", "0.bias", "1.weight", "1.bias"]
STEPS = 10  # of HASHED
HASH = re.compile(r"[0-9a-f]{16}\Z")


class HashEvery(command.CommandTest):
    def test_none_by_default(self):
        self.assertTrue(all("hashes" not in line for line in self.train(SMALL).metrics))

    def test_every_n_steps_each_tensor(self):
        for every, due in ((1, range(1, 11)), (3, (3, 6, 9)), (5, (5, 10)), (11, ())):
            with self.subTest(every=every):
                made = self.train(SMALL, f"--epochs 2 --hash-every {every}", name=f"every-{every}",
                                  threads=2)
                found = {line["step"]: line["hashes"] for line in made.metrics if "hashes" in line}
                self.assertEqual(list(found), list(due))
                for hashes in found.values():
                    self.assertEqual(list(hashes), TENSORS)
                    self.assertTrue(all(map(HASH.match, hashes.values())), hashes)
                self.assertEqual(len({tuple(hashes.values()) for hashes in found.values()}),
                                 len(found))

    def test_hashing_changes_nothing(self):
        plain, hashed = self.train(SMALL), self.train(SMALL, "--hash-every 2", name="hashed")
        self.assertEqual(plain.summary["weights_hash"], hashed.summary["weights_hash"])
        result = self.succeed("compare", plain.folder, hashed.folder)
        self.assert_says(result.out, ["the same", "5 steps", "--hash-every"], result)

    def test_bad_values_are_refused(self):
        for value in ("0", "-1", "all", "1.5"):
            with self.subTest(value=value):
                result = run("train", SMALL, f"--hash-every={value}", cwd=self.folder)
                self.assert_refused(result, 2, ["--hash-every", value])


class Plot(command.CommandTest):
    def test_figures_of_runs(self):
        runs = [self.train(SMALL, f"--epochs 3 --seed {seed}", name=f"seed-{seed}").folder for seed in (1, 2)]
        for what, file, begins, says in ((runs[:1], "a.png", b"\x89PNG", "3 epochs"), (runs, "b.svg", b"<?xml", "2 runs")):
            result = run("plot", *what, "--output", self.folder / file)
            if "no cairo" in result.err:
                self.skipTest(result.err)
            self.assert_ends(result, 0)
            self.assertIn(says, result.out)
            self.assertTrue((self.folder / file).read_bytes().startswith(begins))
        self.assert_refused(run("plot", self.folder / "none"), 65, ["none: no such folder", "give the folder of a run"])
        self.assert_refused(run("plot", runs[0], "--output", self.folder / "a.jpg"), 2, ["a.jpg: is neither *.svg nor *.png"])


class Compare(command.CommandTest):
    def pair(self, a, b, first=HASHED, second=HASHED):
        """The folders of two runs; `a` and `b` say how they are launched."""
        return (self.train(first, name="a", **a).folder, self.train(second, name="b", **b).folder)

    def receipt(self, folders, same):
        """The JSON of a comparison, whose text and exit code must say the same."""
        told = run("compare", *folders, "--json")
        said = run("compare", *folders)
        for result in (told, said):
            self.assert_ends(result, 0 if same else 1)
            self.assertEqual(result.err, "", str(result))
        found = json.loads(told.out)
        self.assertEqual(found["same"], same, str(told))
        self.assertEqual(found["first_difference"] is None, same, str(told))
        self.assert_says(said.out.splitlines()[0], "the same" if same else "differ", said)
        if not same:
            first = found["first_difference"]
            self.assertNotEqual(first["a"], first["b"])
            self.assert_says(said.out, [f"step {first['step']}", first["what"], first["a"],
                                        first["b"]], said)
        return found

    def test_canonical_runs_are_the_same_for_any_ranks(self):
        for name, world in (("threads", {"threads": 3}), ("mpi", {"ranks": 2})):
            with self.subTest(world=name):
                folders = self.pair({"threads": 1}, world)
                found = self.receipt(folders, same=True)
                self.assertEqual((found["steps_compared"], found["hashed_steps_compared"],
                                  found["epochs_compared"]), (STEPS, STEPS, 2))
                self.assertEqual(found["settings"], {"ranks": ["1", str(*world.values())]})
                for folder in folders:
                    shutil.rmtree(folder)

    def test_allreduce_runs_differ_and_step_and_tensor_are_named(self):
        allreduce = HASHED + " --reduction allreduce"
        found = self.receipt(self.pair({"threads": 1}, {"threads": 3}, allreduce, allreduce),
                             same=False)
        a, b = (command.Run(self.folder / name).metrics for name in "ab")
        step, tensor = next((line["step"], name) for line, other in zip(a, b) for name in TENSORS
                            if line["hashes"][name] != other["hashes"][name])
        first = found["first_tensor_difference"]
        self.assertEqual((first["step"], first["what"]), (step, f"tensor {tensor}"))
        self.assertEqual((first["a"], first["b"]),
                         tuple(lines[step - 1]["hashes"][tensor] for lines in (a, b)))

    def test_other_seeds_differ_at_once(self):
        folders = self.pair({}, {}, second=HASHED + " --seed 23")
        found = self.receipt(folders, same=False)
        first = found["first_difference"]
        self.assertEqual((first["step"], first["what"]), (1, "loss"))
        self.assertEqual([first["a"], first["b"]],
                         [command.Run(folder).losses[0] for folder in folders])
        self.assertEqual(found["first_tensor_difference"]["what"], "tensor 0.weight")
        self.assertEqual(found["settings"], {"seed": ["22", "23"]})

    def test_one_bit_of_one_late_loss(self):
        a, b = self.pair({}, {}, SMALL, SMALL)
        metrics = b / "metrics.jsonl"
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        lines[3]["loss"] *= 1 + 2**-52
        metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
        first = self.receipt((a, b), same=False)["first_difference"]
        self.assertEqual((first["step"], first["what"]), (4, "loss"))

    def test_an_epoch_alone_can_differ(self):
        a, b = self.pair({}, {})
        summary = json.loads((b / "summary.json").read_text())
        summary["epochs"][1]["weights_hash"] = "0" * 16
        (b / "summary.json").write_text(json.dumps(summary))
        first = self.receipt((a, b), same=False)["first_difference"]
        self.assertEqual((first["step"], first["what"], first["b"]),
                         (STEPS, "epoch 2 weights_hash", "0" * 16))

    def test_a_shorter_run_is_compared_as_far_as_it_goes(self):
        found = self.receipt(self.pair({}, {}, second=HASHED + " --steps 7"), same=True)
        self.assertEqual((found["steps_compared"], found["epochs_compared"]), (7, 1))
        self.assertEqual(found["settings"], {"steps": ['"none"', "7"]})

    def test_an_unfinished_run(self):
        a, b = self.pair({}, {})
        (b / "summary.json").unlink()
        found = self.receipt((a, b), same=True)
        self.assertEqual((found["steps_compared"], found["epochs_compared"]), (STEPS, 0))
        result = run("compare", a, b)
        self.assert_says(result.out, "unfinished", result)

    def test_only_rank_0_speaks(self):
        a, b = self.pair({}, {}, second=HASHED + " --seed 23")
        result = call(mpirun(3, "compare", a, a))
        self.assert_ends(result, 0)
        self.assertEqual(result.out.count("the same"), 1, str(result))
        result = call(mpirun(3, "compare", a, b))
        self.assert_ends(result, 1)
        self.assertEqual(result.out.count("the runs differ"), 1, str(result))
        self.assert_refused(call(mpirun(3, "compare", a, self.folder / "none")), 65, "none")

    def test_a_full_disk_behind_stdout(self):
        made = self.train(SMALL)
        for flags in ([], ["--json"]):
            with self.subTest(flags=flags), open("/dev/full", "wb") as full:
                argv = command.words(command.binary, "compare", made.folder, made.folder) + flags
                self.assert_ends(command.finish(command.start(argv, stdout=full)), 74)


class Damaged(command.CommandTest):
    def test_what_is_no_run(self):
        good = self.train(SMALL).folder
        empty, file = self.folder / "empty", self.folder / "file"
        empty.mkdir()
        file.write_text("")
        for bad in (self.folder / "none", empty, file, "/dev/null"):
            for folders in ((good, bad), (bad, good)):
                with self.subTest(folders=folders):
                    result = run("compare", *folders)
                    self.assert_refused(result, 65, [bad, "remedy"])
                    self.assertEqual(result.out, "")

    def test_a_damaged_file_is_named_with_its_line(self):
        good = self.train(HASHED).folder
        metrics = (good / "metrics.jsonl").read_text()
        damages = {
            "cut line": ("metrics.jsonl", metrics[:-30], [":10", "cut off"]),
            "cut first line": ("metrics.jsonl", metrics[:30], [":1", "cut off"]),
            "no lines": ("metrics.jsonl", "", ["no step", "wait for the first step"]),
            "not JSON": ("metrics.jsonl", "<html>\n" + metrics, [":1", "not JSON"]),
            "a step twice": ("metrics.jsonl", metrics + metrics, [":11", "step 1", "step 10"]),
            "a loss that is none": ("metrics.jsonl", re.sub(r'"loss":[^,]*', '"loss":null',
                                                            metrics, count=1), [":1", "'loss'"]),
            "not UTF-8": ("metrics.jsonl", b"\xff\xfe\n", [":1", "not JSON"]),
            "cut summary": ("summary.json", (good / "summary.json").read_text()[:200],
                            ["cut off"]),
            "another summary": ("summary.json", '{"a": 1}', ["'epochs' is missing"]),
            "cut config": ("config.toml", 'seed = 1\ndata = "x', [":2", "not TOML"]),
            "another's config": ("config.toml", "sede = 3\n", [":1", "'sede'"]),
        }
        for name, (file, content, needles) in damages.items():
            with self.subTest(damage=name):
                bad = self.folder / "bad"
                shutil.rmtree(bad, ignore_errors=True)
                shutil.copytree(good, bad)
                text = content if isinstance(content, bytes) else content.encode()
                (bad / file).write_bytes(text)
                self.assert_refused(run("compare", good, bad), 65, [bad / file, *needles, "remedy"])

    def test_missing_files(self):
        good = self.train(SMALL).folder
        for name in ("config.toml", "metrics.jsonl"):
            with self.subTest(name=name):
                bad = self.folder / f"without-{name}"
                shutil.copytree(good, bad)
                (bad / name).unlink()
                self.assert_refused(run("compare", good, bad), 65, [bad / name, "remedy"])


if __name__ == "__main__":
    unittest.main()
