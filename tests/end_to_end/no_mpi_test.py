"""A build without MPI (LOCKSTEP_MPI=OFF): ranks are threads, and whatever needs MPI is refused."""

import unittest

import command

FEW = "--train-limit 300 --test-limit 100 --layers 40,24 --epochs 1"


class NoMpi(command.CommandTest):

    def test_ranks_as_threads(self):
        hashes = {self.train(FEW, name=str(ranks), threads=ranks).summary["weights_hash"]
                  for ranks in (1, 2, 3)}
        self.assertEqual(len(hashes), 1)

    def refused(self, *args, **options):
        result = command.run("train", FEW, *args, "--run-dir", self.folder / "run", **options)
        self.assert_refused(result, 2, ["this build has no MPI", "remedy", "--ranks"])
        self.assertFalse((self.folder / "run").exists())

    def test_backends_that_need_mpi(self):
        for backend in ("mpi", "shared"):
            with self.subTest(backend=backend):
                self.refused("--backend", backend)

    def test_under_a_launcher(self):
        # With mpirun's own delay: nothing but that lets rank 0 say it if rank 1 ends first.
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                self.refused(ranks=ranks, env={"OMPI_MCA_odls_base_sigkill_timeout": "1"})


if __name__ == "__main__":
    unittest.main()
