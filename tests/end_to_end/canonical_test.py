"""One hash of the weights for any ranks, backend, threads and instruction set; allreduce has many."""

from pathlib import Path

import command

# name: the rest of the command line. Batches that do not divide, leaves that are cut short.
JOBS = {
    "tutorial": "--train-limit 1000 --test-limit 300 --epochs 1",
    "wide": "--layers 130,70,33 --batch-size 100 --train-limit 450 --test-limit 130 --epochs 2",
    "linear": "--layers none --batch-size 37 --train-limit 300 --test-limit 90 --epochs 2 --leaf 5",
    "deep": "--layers 20,20,20,20 --batch-size 512 --train-limit 900 --test-limit 50 --epochs 3",
}
RANKS = (1, 2, 3, 4, 5, 8, 13, 16)
WORLDS = ([("", {"threads": ranks}) for ranks in RANKS] +
          [(f"--backend {backend}", {"ranks": ranks})
           for backend in ("shared", "mpi") for ranks in RANKS])
SUMS = ([("--exchange sums", {"threads": ranks}) for ranks in (1, 3, 8)] +
        [("--exchange sums --backend shared", {"ranks": ranks}) for ranks in (2, 5, 13)] +
        [("--exchange sums --backend mpi", {"ranks": ranks}) for ranks in (3, 4)])


class Canonical(command.CommandTest):
    def hashes(self, job, worlds, *flags):
        """Every epoch's hash and loss, of every world: one tuple where all agree."""
        found = {}
        for world in worlds:
            backend, ranks = world if isinstance(world, tuple) else ("", world)
            name = f"run-{len(list(self.folder.iterdir()))}"
            run = self.train(job, backend, *flags, name=name, **ranks)
            lines = tuple((e["weights_hash"], e["train_loss"], e["test_loss"], e["test_accuracy"])
                          for e in run.summary["epochs"])
            found.setdefault(lines + tuple(run.losses), []).append(world)
        return found

    def assert_one(self, found):
        self.assertEqual(len(found), 1, "\n".join(f"{worlds}: {key}" for key, worlds in
                                                  found.items()))

    def test_known_hashes(self):
        """A change of the code that changes the weights in every world alike is found here alone."""
        for precision, expected in (("float32", "ee20f26b627cd83c"), ("bf16", "73975eac8c6e6fd7")):
            with self.subTest(precision=precision):
                run = self.train("--train-limit 5000 --test-limit 5000 --epochs 1 --precision", precision,
                                 name=precision, threads=2)
                self.assertEqual(run.summary["weights_hash"], expected, str(run.result))

    def test_ranks_backends_and_exchanges(self):
        """Two jobs in each world, and each job with every backend and exchange."""
        for number, (name, job) in enumerate(JOBS.items()):
            with self.subTest(job=name):
                worlds = [world for place, world in enumerate(WORLDS)
                          if (place + place // len(RANKS) + number) % 2 == 0]
                self.assert_one(self.hashes(job, worlds + SUMS[number % 2::2], "--threads 1"))

    def test_threads_of_a_rank(self):
        for name, job in JOBS.items():
            with self.subTest(job=name):
                found = self.hashes(job, [{"threads": 1}], "--threads 1")
                two = self.hashes(job, [{"threads": 1}, {"ranks": 2}, {"threads": 3}],
                                  "--threads 2")
                self.assertEqual(found.keys(), two.keys())

    def test_instruction_sets(self):
        job = JOBS["wide"]
        expected = self.hashes(job, [{"threads": 2}])
        for simd in ("scalar", "avx2", "avx512"):
            with self.subTest(simd=simd):
                if not self.has(simd):
                    self.skipTest(f"this processor has no {simd}")
                self.assertEqual(self.hashes(job, [{"threads": 2}], f"--simd {simd}").keys(),
                                 expected.keys())

    def test_terms_that_are_zero(self):
        """Images, most of whose pixels are zero, and layers wide enough to leave terms out."""
        for job in ("tutorial", "wide"):
            expected = self.hashes(JOBS[job], [{"threads": 2}])
            worlds = [{"threads": 1}, {"ranks": 2}, {"threads": 3}]
            self.assertEqual(self.hashes(JOBS[job], worlds, "--zeros dense").keys(),
                             expected.keys())

    @staticmethod
    def has(simd):
        flags = Path("/proc/cpuinfo").read_text().split()
        return simd == "scalar" or {"avx2": "avx2", "avx512": "avx512f"}[simd] in flags

    def test_products_in_bf16(self):
        """One hash again, and not that of float32; in leaves of 32, 8 and 5."""
        for name in ("deep", "wide", "linear"):
            found = None
            with self.subTest(job=name):
                job = JOBS[name]
                worlds = [("--backend shared", {"ranks": 2}), ("--exchange sums", {"threads": 3}),
                          ("--exchange sums --backend mpi", {"ranks": 5})]
                found = self.hashes(job, [{"threads": 1}, *worlds], "--precision bf16")
                self.assert_one(found)
                others = self.hashes(job, [{"threads": 2}], "--precision bf16 --threads 2")
                others |= self.hashes(job, [{"threads": 2}], "--precision bf16 --zeros dense")
                self.assertEqual(found.keys(), others.keys())
                self.assertFalse(found.keys() & self.hashes(job, [{"threads": 1}]).keys())
            for simd in ("scalar", "avx2", "avx512") if found else ():
                with self.subTest(job=name, simd=simd):
                    if not self.has(simd):
                        self.skipTest(f"this processor has no {simd}")
                    others = self.hashes(job, [{"threads": 2}], f"--precision bf16 --simd {simd}")
                    self.assertEqual(others.keys(), found.keys())

    def test_allreduce_depends_on_the_ranks(self):
        """So that the tests above could fail."""
        found = self.hashes(JOBS["tutorial"], [{"threads": ranks} for ranks in (1, 2, 3)],
                            "--reduction allreduce")
        self.assertEqual(len(found), 3)
