"""Ranks that are lost under --survive: the others go on, with the weights and records of a run that nobody left."""

import os
import signal
import unittest

import command
from command import SMALL, children, faults, finish, mpirun, run, start, trained_once, without_times

RECOVERY = "--mca orte_enable_recovery 1"
EPOCHS = 18  # about a second, in which tests kill ranks
STEPS = 100 * EPOCHS
JOB = (f"--train-limit 2000 --test-limit 200 --layers 64,32 --batch-size 20 --epochs {EPOCHS} --hash-every 100 "
       f"--checkpoint-every 7 --keep {STEPS}")
TIMEOUT = 2


@unittest.skipUnless(command.MPI, "LOCKSTEP_MPI=OFF")
class Survive(command.CommandTest):
    def job(self, ranks=4, flags=""):
        return mpirun(ranks, "train", JOB, "--survive", flags, "--run-dir", self.folder / "run", options=RECOVERY)

    def begin(self, ranks=4, flags=""):
        made = command.Run(self.folder / "run")
        process = self.start(self.job(ranks, flags))
        self.wait_for_steps(process, made, 1)
        found = children(process.pid)
        self.assertEqual(len(found), ranks)
        return process, made, found

    def recorded(self, made):
        try:
            return len(made.metrics)
        except (OSError, ValueError):  # not yet there, or a line is being written
            return 0

    def wait_for_steps(self, process, made, steps):
        """Until so many steps are recorded."""
        self.wait_until(lambda: self.recorded(made) >= steps, process, f"record of {steps} steps")

    def assert_undisturbed(self, made, result=None):
        whole = trained_once(JOB)
        self.assertEqual(made.summary["weights_hash"], whole.summary["weights_hash"], str(result))
        self.assertEqual(without_times(made.metrics), without_times(whole.metrics), str(result))
        self.assertEqual(len(made.metrics), STEPS)
        self.assertEqual([epoch["weights_hash"] for epoch in made.summary["epochs"]],
                         [epoch["weights_hash"] for epoch in whole.summary["epochs"]])
        last = "checkpoints/step-%08d" % STEPS
        for file in (made.folder / last).iterdir():
            self.assertEqual(file.read_bytes(), (whole.folder / last / file.name).read_bytes(), file.name)

    def test_all_ranks_but_one_are_killed(self):
        """The first two at once, rank 0 among them; the last one speaks, writes and finishes."""
        process, made, ranks = self.begin()
        self.wait_for_steps(process, made, 100)
        for rank in (0, 3):
            os.kill(ranks[rank], signal.SIGKILL)
        self.wait_for_steps(process, made, 300)
        os.kill(ranks[1], signal.SIGKILL)
        result = finish(process)
        self.assert_ends(result, 0)
        self.assert_says(result.err, ["ended; 1 rank goes on", "rank 1 ended", "training goes on after step"], result)
        last = made.checkpoints[-1]
        self.assert_says(result.out, ["\ntest: ", f"\nweights {made.summary['weights_hash']} saved in {last}\n"], result)
        self.assert_undisturbed(made, result)
        lost = made.summary["ranks_lost"]
        self.assertEqual(sorted(loss["rank"] for loss in lost), [0, 1, 3], lost)
        self.assertTrue(all(0 < loss["step"] < STEPS for loss in lost), lost)

    def test_ranks_are_killed_in_each_phase(self):
        """A checkpoint of step 105, the evaluation after step 200, and reading the batch of step 301."""
        env = faults("kill:rank=0,step=105,phase=checkpoint", "kill:rank=2,step=200,phase=evaluation",
                     "kill:rank=1,step=301,phase=data")
        result = finish(self.start(self.job(), env=env))
        self.assert_ends(result, 0)
        made = command.Run(self.folder / "run")
        self.assert_undisturbed(made, result)
        lost = made.summary["ranks_lost"]
        self.assertEqual([loss["rank"] for loss in lost], [0, 2, 1], lost)
        for loss, step in zip(lost, (105, 200, 300)):
            self.assertTrue(step - 16 <= loss["step"] <= step, lost)

    def test_a_mesh_of_replicas_has_fewer_afterwards(self):
        process, made, ranks = self.begin(3, "--mesh batch=3,model=1")
        os.kill(ranks[1], signal.SIGKILL)
        result = finish(process)
        self.assert_ends(result, 0)
        self.assert_undisturbed(made, result)
        self.assertEqual([loss["rank"] for loss in made.summary["ranks_lost"]], [1])

    def test_what_rank_0_recorded_before_a_snapshot_stays(self):
        """Though rank 0 writes once a second, and these steps take less. The last checkpoint is written again."""
        env = faults("kill:rank=0,step=155,phase=step", f"kill:rank=1,step={STEPS},phase=checkpoint")
        result = finish(self.start(self.job(3, "--snapshot-every 8"), env=env))
        self.assert_ends(result, 0)
        made = command.Run(self.folder / "run")
        self.assert_undisturbed(made, result)
        self.assertEqual([loss["rank"] for loss in made.summary["ranks_lost"]], [0, 1])

    def test_a_rank_that_hangs_is_killed(self):
        process, made, ranks = self.begin(3, f"--timeout {TIMEOUT}")
        os.kill(ranks[1], signal.SIGSTOP)
        result = finish(process, command.LIMIT + 5 * TIMEOUT)
        self.assert_ends(result, 0)
        self.assert_says(result.err, [f"(process {ranks[1]}) is stopped", "killed, so that the other ranks",
                                      "rank 1 ended; 2 ranks go on"], result)
        self.assert_undisturbed(made, result)

    def test_a_rank_that_hangs_ends_itself(self):
        """Rank 0, of which the watchdog is the first."""
        process = self.start(self.job(3, f"--timeout {TIMEOUT}"), env=faults("slow:rank=0,step=99,seconds=1000,until=99"))
        result = finish(process, command.LIMIT + 5 * TIMEOUT)
        self.assert_ends(result, 0)
        self.assert_says(result.err, ["rank 0 made no progress for", "killed, so that the other ranks",
                                      "rank 0 ended; 2 ranks go on"], result)
        self.assert_undisturbed(command.Run(self.folder / "run"), result)

    def test_faulty_arithmetic_is_corrected(self):
        """A weight that is stuck in rank 0, and results that are wrong twice in rank 2."""
        job = JOB.replace(f"--epochs {EPOCHS}", "--epochs 2")
        for name, fault, flags, found, lost in (
                # All ranks get the weights of rank 0, so they are equal at the end of the epoch, after step 100.
                ("weight", "flip-weight:rank=0,step=98,times=always", "", [0, 0], [0]),
                ("weight-once", "flip-weight:rank=1,step=60", "--sentinel-steps 1", [1], []),
                # Rank 2 is audited in every fourth step.
                ("product", "flip-product:rank=2,step=60,times=always", "--audit-every 1 --leaf 5", [2, 2], [2])):
            with self.subTest(name):
                result = finish(start(mpirun(4, "train", job, "--survive", flags, "--run-dir", self.folder / name,
                                             options=RECOVERY), env=faults(fault)))
                self.assert_ends(result, 0)
                made = command.Run(self.folder / name)
                whole = self.train(job, flags, name=f"{name}-whole")
                self.assertEqual(made.summary["weights_hash"], whole.summary["weights_hash"], str(result))
                self.assertEqual(without_times(made.metrics), without_times(whole.metrics), str(result))
                self.assertEqual([fault["rank"] for fault in made.summary["faults"]], found, str(result))
                self.assertEqual([loss["rank"] for loss in made.summary.get("ranks_lost", [])], lost, str(result))
                self.assert_says(result.err, ["ms after the fault was found"], result)

    def test_a_fault_that_cannot_be_corrected(self):
        job = mpirun(3, "train", JOB, "--survive --snapshot-every 1 --run-dir", self.folder / "run", options=RECOVERY)
        result = finish(start(job, env=faults("flip-weight:rank=1,step=100,times=always")))
        self.assert_says(result.err, ["on rank 1 on ", "no snapshot in memory is from before the fault",
                                      "--sentinel-steps not greater than --snapshot-every"], result)
        self.assertEqual(command.Run(self.folder / "run").summary["status"], "failed")

    def assert_fails_before(self, ranks, flags, env, step, says):
        """The job ends with one error (70), and its checkpoints are those of steps before `step`."""
        result = finish(self.start(self.job(ranks, flags), env=env))
        made = command.Run(self.folder / "run")
        self.assertEqual(len(result.errors), 1, str(result))
        self.assert_says(result.err, [*says, "removed that may have the fault in it"], result)
        self.assertEqual((made.summary["status"], made.summary["exit_code"]), ("failed", 70), str(result))
        self.assertEqual([command.step_of(path) for path in made.checkpoints], list(range(7, step, 7)), str(result))

    def test_a_fault_that_recurs_leaves_no_checkpoint_in_doubt(self):
        """Of two ranks none has the majority. The part with the first weight is compared before step 64."""
        self.assert_fails_before(2, "", faults("flip-weight:rank=1,step=60,times=always"), 48,
                                 ["goes back to the last good snapshot", "the replica before step 64 differs"])

    def test_a_fault_that_only_a_repeated_step_shows_leaves_no_checkpoint_in_doubt(self):
        """No check finds it in step 34. The steps after 32 are repeated when rank 0 is lost."""
        env = faults("flip-product:rank=1,step=34", "kill:rank=0,step=45,phase=step")
        self.assert_fails_before(3, "--leaf 5", env, 32,
                                 ["rank 0 ended", ", repeated from a snapshot, has the loss", "step 32 or before"])

    def test_a_stop_after_a_loss_is_saved_and_resumed(self):
        """mpirun's own code is 1, because with its recovery it ignores those of ranks."""
        process, made, ranks = self.begin(3, "--snapshot-every 8")
        os.kill(ranks[0], signal.SIGKILL)
        self.wait_for_steps(process, made, 150)
        os.kill(process.pid, signal.SIGUSR1)
        result = finish(process)
        self.assert_ends(result, 1)
        self.assert_says(result.err, ["stopped by SIGUSR1", "saved in", "train --resume",
                                      "--survive --snapshot-every=8`"], result)
        self.assert_ends(run("train --resume", made.folder, ranks=2), 0)
        self.assert_undisturbed(made, result)

    def test_refusals(self):
        job = f"train {SMALL} --survive --dry-run"
        self.assert_refused(run(job, threads=2), 2, ["--survive: the ranks are threads", "mpirun"])
        self.assert_refused(run(job, ranks=2), 2, ["--survive: ", "mpirun --mca orte_enable_recovery 1"])
        for flags, reason in (("--backend mpi", "--backend shared"), ("--mesh batch=1,model=2", "mesh model=2"),
                              ("--reduction allreduce", "reduction allreduce"),
                              ("--shard-policy off", "shard policy")):
            refused = finish(start(mpirun(2, job, flags, options=RECOVERY)))
            self.assertNotEqual(refused.code, 0, str(refused))
            self.assertEqual(len(refused.errors), 1, str(refused))
            self.assert_says(refused.err, ["--survive", reason, "remedy"], refused)


if __name__ == "__main__":
    unittest.main()
