"""Validation sets: the split, early stopping, the best checkpoint, through a resume, and what is refused."""

import json
import shutil
import unittest

import command
from command import Run, run, step_of

DATA = "--data synthetic --train-limit 400 --test-limit 60 --batch-size 40 --layers 16 --progress off"
# The loss on 120 records of validation is least after some epochs, and rises then.
SPLIT = "--validation 0.3 --learning-rate 0.02"
EARLY = f"{SPLIT} --epochs 40 --patience 3"
REFUSED = {
    "--patience 3": ["--patience", "no validation set", "--validation 0.1"],
    "--keep-best": ["--keep-best", "no validation set"],
    "--monitor score": ["--monitor", "no validation set"],
    "--validation 1.5": ["validation", "'1.5' is not below 1"],
    "--validation 0.9999": ["--validation 0.9999", "leaves no training record of 400 records"],
    "--validation 0.1 --patience 0": ["--patience", "0 is less than 1"],
    "--validation 0.1 --monitor accurcy": ["--monitor accurcy", "is none of loss|score", "--metrics"],
    "--validation 0.1 --monitor top-3 --metrics auc": ["--monitor top-3", "is none of loss|score|auc"],
    "--metrics top-10": ["metric 'top-10'", "there are 10 classes"],
    "--metrics f2": ["metric 'f2'", "use auc or top-K"],
    "--metrics auc,auc": ["--metrics auc,auc", "twice"],
}


def epochs_of(folder):
    """All that is recorded of each epoch but times."""
    lines = [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if "second" not in key} for line in lines]


def hash_in(checkpoint):
    return json.loads((checkpoint / "network.json").read_text())["weights_hash"]


class Validation(command.CommandTest):
    def test_training_ends_at_the_same_epoch_on_any_ranks(self):
        one = self.train(DATA, EARLY, name="one")
        best = one.summary["best"]
        losses = [epoch["validation_loss"] for epoch in epochs_of(one.folder)]
        self.assertEqual(len(losses), best["epoch"] + 3)
        self.assertLess(len(losses), 40)
        self.assertEqual(losses.index(min(losses)) + 1, best["epoch"])
        self.assertTrue(one.summary["stopped_early"])
        for world in ({"threads": 3}, {"threads": 5}, {"ranks": 2} if command.MPI else {"threads": 2}):
            with self.subTest(**world):
                other = self.train(DATA, EARLY, name=f"other-{world}", **world)
                self.assertEqual(epochs_of(other.folder), epochs_of(one.folder))

    def test_the_checkpoint_of_the_best_epoch_is_kept(self):
        for monitor, figure, best_of in (("loss", "validation_loss", min), ("score", "validation_accuracy", max),
                                        ("auc", "validation_auc", max)):
            with self.subTest(monitor=monitor):
                kept = self.train(DATA.replace("off", "lines"), EARLY, f"--keep-best --keep 1 --monitor {monitor}",
                                  "--metrics top-2,auc", name=monitor, threads=2)
                best = kept.summary["best"]
                figures = [epoch[figure] for epoch in epochs_of(kept.folder)]
                self.assertEqual(figures.index(best_of(figures)) + 1, best["epoch"])
                self.assert_says(kept.result.out, [f"{best['step']} steps, saved in {kept.checkpoints[0]}"], kept.result)
                steps = 7 * len(figures)
                self.assertEqual([step_of(path) for path in kept.checkpoints], [best["step"], steps])
                evaluated = self.succeed("evaluate", kept.folder / "best", "--data synthetic --test-limit 50")
                self.assert_says(evaluated.out, [f"after {best['step']} steps"], evaluated)
                self.assert_says(self.succeed("inspect", kept.folder / "best").out, [kept.checkpoints[0].name], kept.result)
                state = kept.checkpoints[1] / "state.json"
                text = state.read_text()
                state.write_text("{")  # the older checkpoint knows the best one, too
                self.succeed("evaluate", kept.folder / "best", "--data synthetic --test-limit 50")
                state.write_text(text)
                # The last epoch is the best one, and a checkpoint is due at its end.
                shorter = self.train(DATA, SPLIT, f"--keep-best --checkpoint-every 7 --epochs {best['epoch']}",
                                     f"--monitor {monitor} --metrics top-2,auc", name=f"shorter-{monitor}")
                self.assertEqual(hash_in(kept.checkpoints[0]), shorter.summary["weights_hash"])
                evaluated = self.succeed("evaluate", shorter.folder / "best", "--data synthetic --test-limit 50")
                self.assert_says(evaluated.out, [f"after {best['step']} steps"], evaluated)
                other = self.folder / f"other-{monitor}"
                self.succeed("train --progress off --resume-with patience=4 --resume", kept.folder, "--run-dir", other)
                self.assertEqual([step_of(path) for path in Run(other).checkpoints], [steps + 7])
                self.assert_refused(run("evaluate", other / "best", "--data synthetic"), 65,
                                    [f"of step {best['step']}", "the run that this one continued"])

    def test_of_equal_epochs_the_first_is_the_best(self):
        """A rate so small that it changes no weight."""
        run = self.train(DATA, "--validation 0.3 --learning-rate 1e-30 --epochs 40 --patience 3")
        losses = [epoch["validation_loss"] for epoch in epochs_of(run.folder)]
        self.assertEqual(losses, 4 * losses[:1])
        self.assertEqual(run.summary["best"]["epoch"], 1)

    def test_a_continued_run_ends_at_the_same_epoch(self):
        whole = self.train(DATA, EARLY, "--checkpoint-every 5 --keep 99", name="whole", threads=2)
        best = whole.summary["best"]["epoch"]
        for after in (7 * (best - 1) + 3, 7 * best, 7 * (best + 1) + 5):  # steps
            folder = self.folder / f"after-{after}"
            shutil.copytree(whole.folder, folder)
            Run(folder).cut_back(after)
            epochs = folder / "epochs.jsonl"
            ended = epochs.read_text().splitlines(keepends=True)[:after // 7]
            epochs.write_text("".join(ended))
            with self.subTest(after=after):
                self.succeed("train --progress off --resume", folder, threads=3)
                self.assertEqual(epochs_of(folder), epochs_of(whole.folder))
                self.assertEqual(Run(folder).summary["best"], whole.summary["best"])
        before = (whole.folder / "summary.json").read_text()
        again = self.succeed("train --progress lines --resume", whole.folder)
        self.assert_says(again.out, "nothing is left to train", again)
        self.assertEqual((whole.folder / "summary.json").read_text(), before)
        early = whole.folder / "checkpoints" / "step-00000035"  # at the end of an epoch, and not of the run
        self.succeed("train --progress off --resume", early, "--run-dir", self.folder / "go-on")
        self.assertEqual(epochs_of(self.folder / "go-on"), epochs_of(whole.folder))

    def test_an_epoch_that_was_cut_short_is_the_best_only_without_a_whole_one(self):
        for steps, best in ((3, {"epoch": 1, "step": 3}), (10, {"epoch": 1, "step": 7})):
            made = self.train(DATA, SPLIT, f"--epochs 2 --steps {steps}", name=f"cut-{steps}")
            losses = [epoch["validation_loss"] for epoch in epochs_of(made.folder)]
            self.assertEqual(min(losses), losses[-1])
            self.assertEqual(made.summary["best"], best)
            self.succeed("train --progress off --resume-with steps=none --resume", made.folder)
            self.assertEqual(made.summary["best"], {"epoch": 2, "step": 14})
        equal = self.train(DATA, "--validation 0.3 --monitor score --learning-rate 1e-7 --epochs 1 --steps 3", name="equal")
        self.assertEqual(equal.summary["best"], {"epoch": 1, "step": 3})
        self.succeed("train --progress off --resume-with steps=none --resume", equal.folder)
        self.assertEqual(equal.summary["best"], {"epoch": 1, "step": 7})  # not compared with its own first steps

    def test_a_continued_run_compares_no_other_figure(self):
        """A loss above 1 would be better than any accuracy."""
        made = self.train(DATA, SPLIT, "--epochs 1 --learning-rate 1e-5")
        self.assertGreater(epochs_of(made.folder)[0]["validation_loss"], 1)
        self.succeed("train --progress off --resume-with monitor=score --resume-with epochs=3 --resume", made.folder)
        self.assertGreater(made.summary["best"]["epoch"], 1)
        early = self.train(DATA, EARLY, name="early", threads=2)
        ended = len(epochs_of(early.folder))
        self.succeed("train --progress off --resume-with monitor=score --resume", early.folder)
        self.assertGreater(len(epochs_of(early.folder)), ended)  # no epoch so far is the best by this figure

    def test_a_table_and_a_split_beside_it(self):
        table = self.folder / "table.csv"
        table.write_text("x,y,label\n" + "".join(f"{i * i % 17},{i % 5},{'ab'[i % 3 % 2]}\n" for i in range(100)))
        args = ("--data", table, "--test-split 0.2 --validation 0.25 --batch-size 8 --layers 4 --epochs 2")
        result = self.succeed("train", *args, "--run-dir", self.folder / "run")
        self.assert_says(result.out, ["60 training, 20 validation and 20 test records", "validation loss"], result)
        other = self.train(*args, "--progress off", name="other", threads=3)
        self.assertEqual(epochs_of(other.folder), epochs_of(self.folder / "run"))

    def test_a_plot_of_validation_losses(self):
        made = self.train(DATA, SPLIT, "--epochs 2")
        drawn = run("plot", made.folder, "--output", self.folder / "run.svg")
        if "no cairo" in drawn.err:
            self.skipTest(drawn.err)
        self.assert_ends(drawn, 0)
        self.assertTrue((self.folder / "run.svg").exists(), drawn)

    def test_a_sweep_chooses_by_it(self):
        path = self.folder / "sweep.toml"
        path.write_text('data = "synthetic"\ntrain-limit = 400\ntest-limit = 60\nlayers = [8]\nepochs = 1\nvalidation = 0.2\n'
                        '[sweep]\nmetric = "validation loss"\n[sweep.settings]\nlearning-rate = [0.0001, 0.01, 0.001]\n')
        result = self.succeed("sweep", path, "--out", self.folder / "out", threads=2)
        table = [line.split() for line in result.out.split("\n\n")[-1].splitlines()]
        self.assertEqual(table[0][:5], ["trial", "learning-rate", "validation", "loss", "accuracy"], result)
        losses = [float(line[2]) for line in table[1:]]
        self.assertEqual(losses, sorted(losses))
        path.write_text(path.read_text().replace("validation = 0.2\n", ""))
        self.assert_refused(run("sweep", path, "--out", self.folder / "none"), 2, [":7", "metric", "no validation set"])

    def test_refusals(self):
        for flags, texts in REFUSED.items():
            with self.subTest(flags=flags):
                self.assert_refused(run("train", DATA, flags), 2, texts)


if __name__ == "__main__":
    unittest.main()
