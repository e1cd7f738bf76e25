"""Meshes of batch x model: one hash under all of them, weights that any of them reads, refusals."""

import json
import unittest

import command

FEW = "--train-limit 1000 --test-limit 200 --epochs 1 --threads 1"
MESHES = [(2, "model=2"), (3, "batch=1,model=3"), (4, "batch=2,model=2"), (4, "model=4"),
          (6, "batch=3,model=2")]


class Mesh(command.CommandTest):
    def test_one_hash_under_every_mesh(self):
        listed = command.REPOSITORY / "configs/layers.toml"
        for name, settings, launches in (
                ("mlp", "", ("threads", "ranks")),
                ("lenet", "--model lenet --train-limit 300", ("threads",)),
                ("sums", "--exchange sums", ("threads",)),
                ("listed", f"{listed} --train-limit 300", ("threads",))):
            alone = self.train(FEW, settings, name=f"alone {name}")
            for ranks, mesh in MESHES if name in ("mlp", "sums") else MESHES[1:4]:
                for launch in launches:
                    with self.subTest(settings=settings, mesh=mesh, launch=launch):
                        run = self.train(FEW, settings, "--mesh", mesh, **{launch: ranks},
                                         name=f"{name} {mesh} {ranks} {launch}")
                        self.assertEqual(run.summary["weights_hash"], alone.summary["weights_hash"])
                        self.assertEqual(run.losses, alone.losses)
                        self.assertEqual(run.summary["ranks"], ranks)

    def test_over_mpi_alone(self):
        alone = self.train(FEW, name="alone")
        run = self.train(FEW, "--mesh batch=2,model=2 --backend mpi", ranks=4, name="mpi")
        self.assertEqual(run.summary["weights_hash"], alone.summary["weights_hash"])

    def test_weights_are_read_under_any_mesh(self):
        run = self.train(FEW, "--mesh batch=2,model=2", threads=4)
        expected = run.summary["epochs"][-1]["test_loss"]
        what = (run.checkpoints[-1], "--data synthetic --test-limit 200")
        tables = set()
        for ranks, mesh in [(1, "auto"), (2, "batch=2"), *MESHES]:
            found = json.loads(self.succeed("evaluate", *what, "--json --mesh", mesh,
                                            threads=ranks).out)
            self.assertEqual(found["loss"], expected, mesh)
            self.assertEqual(found["weights_hash"], run.summary["weights_hash"])
            tables.add(self.write_predictions(*what, "--mesh", mesh, threads=ranks).read_text())
        self.assertEqual(len(tables), 1)

    def test_the_plan_is_that_of_the_replicas(self):
        run = self.train(FEW, "--mesh batch=2,model=2", threads=4)
        planned = json.loads(self.succeed("plan --train-limit 1000 --ranks 4 --mesh batch=2,model=2",
                                          "--json").out)
        self.assertEqual(planned["digest"], run.summary["plan_digest"])
        self.assertEqual((planned["ranks"], planned["ranks_a_replica"]), (2, 2))
        shown = self.succeed("plan --train-limit 1000 --ranks 4 --mesh batch=2,model=2").out
        for text in ("the plan of 2 replicas of 2 ranks", "a replica, in leaves", "replica 1"):
            self.assertIn(text, shown)

    def test_the_banner_says_so(self):
        run = self.train(FEW, "--mesh model=2", threads=4)
        self.assertIn("mesh       2 replicas of 2 ranks", run.result.out)

    def test_refusals(self):
        for settings, ranks, needles in (
                ("--mesh batch=2,model=2", 3, ["4 places", "3 ranks"]),
                ("--mesh model=2", 3, ["3 ranks", "groups of 2"]),
                ("--mesh model=11 --layers 3", 11, ["model=11", "no dense layer has 11 outputs"]),
                ("--mesh model=2 --reduction allreduce", 2, ["--reduction canonical"]),
                ("--mesh model=2 --audit-every 2", 2, ["audit-every", "mesh model=2"])):
            for launch in ("threads", "ranks"):
                with self.subTest(settings=settings, launch=launch):
                    result = command.run("train", FEW, settings, "--progress off",
                                         **{launch: ranks})
                    self.assert_refused(result, 2, needles)

    def test_a_run_that_diverges_ends_on_every_rank(self):
        result = command.run("train", FEW, "--learning-rate 1e30 --mesh batch=2,model=2",
                             "--run-dir", self.folder / "run", ranks=4)
        self.assertEqual(result.code, 76, str(result))


if __name__ == "__main__":
    unittest.main()
