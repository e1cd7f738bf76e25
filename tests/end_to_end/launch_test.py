"""`lockstep launch`: failed jobs are started again and end as if nothing had happened; errors that would repeat are not."""

import fcntl
import os
import signal
import time
import unittest

import command
from command import children, faults, finish, mpirun, run, step_of, trained_once, words
from survive_test import RECOVERY

EPOCHS = 18  # about a second, in which tests kill ranks
STEPS = 100 * EPOCHS
JOB = (f"--train-limit 2000 --test-limit 200 --layers 64,32 --batch-size 20 --epochs {EPOCHS} --checkpoint-every 10 "
       f"--keep {STEPS} --progress off")
LONG_JOB = JOB.replace(f"--epochs {EPOCHS}", "--epochs 600")


def launch(*args, flags=""):
    return words(command.binary, "launch", flags, "--", *args)


@unittest.skipUnless(command.MPI, "LOCKSTEP_MPI=OFF")
class Launch(command.CommandTest):
    def begin(self, ranks, job=JOB, recovery="", **options):
        made = command.Run(self.folder / "run")
        process = self.start(launch(*mpirun(ranks, "train", *((job,) if isinstance(job, str) else job), "--run-dir", made.folder, options=recovery)), **options)
        return process, made

    def mpirun_and_ranks(self, process, made, step):
        """The processes of the job, once it has saved a checkpoint of this step or a later one."""
        jobs, ranks = [], []

        def has_saved():
            jobs[:] = children(process.pid, "mpirun")
            ranks[:] = children(jobs[0]) if jobs else []
            return ranks and max(map(step_of, made.checkpoints), default=0) >= step

        self.wait_until(has_saved, process, f"step {step}")
        return jobs[0], ranks

    def test_lost_ranks_and_launchers_are_replaced(self):
        process, made = self.begin(3)
        first, ranks = self.mpirun_and_ranks(process, made, 50)
        os.kill(ranks[1], signal.SIGKILL)
        self.wait_until(lambda: first not in children(process.pid, "mpirun"), process, "end of the first mpirun")
        job, _ = self.mpirun_and_ranks(process, made, 150)
        os.kill(job, signal.SIGKILL)
        result = finish(process)
        self.assert_ends(result, 0)
        self.assert_says(result.err, ["ended with code 137 in step", "restart 1 follows", "restart 2 follows"], result)
        whole = trained_once(JOB)
        self.assertEqual(made.summary["weights_hash"], whole.summary["weights_hash"], str(result))
        self.assertEqual(made.losses, whole.losses)
        self.assertEqual(len(made.losses), STEPS)

    def test_a_run_that_another_one_began_goes_on_in_its_own_folder(self):
        whole = trained_once(JOB)
        resume = ("--progress off --resume", whole.folder / "checkpoints" / "step-00000050")
        process, made = self.begin(2, resume)
        _, ranks = self.mpirun_and_ranks(process, made, 100)
        os.kill(ranks[1], signal.SIGKILL)
        result = finish(process)
        self.assert_ends(result, 0)
        self.assert_says(result.err, "restart 1 follows", result)
        self.assertEqual(made.summary["weights_hash"], whole.summary["weights_hash"], str(result))
        self.assertEqual(made.losses, whole.losses)

    def test_a_run_that_its_own_checkpoint_continues(self):
        """And a later one when the job is started again."""
        made = self.train(JOB.replace(f"--epochs {EPOCHS}", "--steps 50"))
        process, made = self.begin(2, ("--checkpoint-every 10 --progress off --resume-with steps=100 --resume", made.folder / "checkpoints/step-00000050"),
                                   env=faults("kill:rank=1,step=80"))
        result = finish(process)
        self.assert_refused(result, 137, ["ended with code 137 in step 80; restart 1 follows", "as 2 times before"])
        self.assertGreater(max(map(step_of, made.checkpoints)), 50)

    def test_a_run_that_another_one_began_goes_on_from_the_checkpoint_that_it_began_with(self):
        whole = trained_once(JOB)
        resume = ("--progress off --resume-with epochs=60000 --checkpoint-every end --resume", whole.folder / "checkpoints" / "step-00000050")
        process, made = self.begin(2, resume)
        has_steps = lambda: (made.folder / "metrics.jsonl").exists() and len(made.losses) > STEPS
        self.wait_until(has_steps, process, "train")
        before = children(process.pid, "mpirun")
        os.kill(children(before[0])[1], signal.SIGKILL)
        start = str(made.folder / "checkpoints" / "step-00000050")
        self.wait_until(lambda: made.summary["resumed_from"] == start and has_steps(), process, "train again")
        os.kill(process.pid, signal.SIGUSR1)
        result = finish(process)
        self.assert_ends(result, 75)
        self.assert_says(result.err, "restart 1 follows", result)

    def test_survivors_that_are_all_killed_are_replaced(self):
        """Of which mpirun's recovery says nothing: it returns 0."""
        process, made = self.begin(3, JOB + " --survive", RECOVERY)
        for rank in self.mpirun_and_ranks(process, made, 50)[1]:
            os.kill(rank, signal.SIGKILL)
        result = finish(process)
        self.assert_ends(result, 0)
        self.assert_says(result.err, ["ended with code 86 in step", "restart 1 follows"], result)
        self.assertEqual(made.summary["status"], "finished")
        self.assertEqual(len(made.losses), STEPS)

    def test_ranks_that_are_all_killed_before_they_record_anything(self):
        """Of which mpirun's recovery says nothing: it returns 0, as it does for a complete run, where no summary is written."""
        made = command.Run(self.folder / "run")
        recovers = {"OMPI_MCA_orte_enable_recovery": "1"}
        for options, env in ((RECOVERY, None), (RECOVERY.replace(" 1", " yes"), None), ("--enable-recovery", None), ("", recovers)):
            killed = [*mpirun(2, program="sh", options=options), "-c", "kill -9 $$", "--run-dir", str(made.folder)]
            result = command.call([str(command.binary), "launch", "--max-restarts", "0", "--", *killed], env=env)
            self.assert_refused(result, 86, ["ended with code 86"])
            if options == "--enable-recovery":  # the last time beside a summary of another job
                self.train(command.SMALL, name="run")
        for flags in ("--survive --dry-run", "--survive", ""):
            job = mpirun(2, "train", command.SMALL, flags, "--resume auto --run-dir", made.folder, options=RECOVERY)
            result = command.call(launch(*job, flags="--max-restarts 0"))
            self.assert_ends(result, 0)
            self.assert_says(result.out, "dry run" if "dry" in flags else "nothing is left to train", result)

    def test_survivors_of_another_folder_or_clock_are_replaced(self):
        """launch looks for a relative run in the ranks' folder, and does not compare times with its own clock."""
        place = self.folder / "lockstep"  # the name of a program
        place.mkdir()
        made = command.Run(place / "run")
        process = self.start(launch(*mpirun(2, "train", JOB, "--survive --run-dir run", options=f"{RECOVERY} --wdir {place}")))
        _, ranks = self.mpirun_and_ranks(process, made, 50)
        os.utime(made.folder / "summary.json", (1e9, 1e9))
        for rank in ranks:
            os.kill(rank, signal.SIGKILL)
        result = finish(process)
        self.assert_ends(result, 0)
        self.assert_says(result.err, ["ended with code 86 in step", "restart 1 follows"], result)
        self.assertEqual(made.summary["status"], "finished")

    def test_a_rank_that_ends_before_MPI_starts(self):
        """Of whose code mpirun's recovery says nothing: it returns 1. Ranks of its host do not wait for the limit of the start."""
        job = words("train", JOB, "--survive --run-dir", self.folder / "run")
        for job in (mpirun(1, *job, options=RECOVERY) + words(": -n 1 false"),
                    mpirun(1, "0.5", program="sleep", options=RECOVERY) + words(": -n 2", command.binary, *job)):
            result = command.call(launch(*job, flags="--max-restarts 0"), limit=20)
            self.assert_ends(result, 86)
            self.assert_says(result.err, ["another rank of this host has ended in the start", "the job ended with code 86"], result)

    def test_a_second_job_in_the_folder_does_not_end_the_first(self):
        process, made = self.begin(2, LONG_JOB + " --survive", RECOVERY)
        self.mpirun_and_ranks(process, made, 50)
        for flags in ("--survive", "--survive --resume auto"):
            second = command.call(mpirun(2, "train", JOB, flags, "--run-dir", made.folder, options=RECOVERY))
            self.assert_says(second.err, "is in use by another job", second)
        second = command.call(launch(*mpirun(2, "train", JOB, "--survive --run-dir", made.folder, options=RECOVERY)))
        self.assert_refused(second, 2, ["is in use by another job"])
        time.sleep(4)  # longer than launch waits for a launcher whose job has ended
        self.assertIsNone(process.poll())
        os.kill(process.pid, signal.SIGUSR1)
        result = finish(process)
        self.assert_ends(result, 75)
        self.assertNotIn("restart", result.err)

    def test_a_request_to_stop_is_passed_on(self):
        process, made = self.begin(2)
        self.mpirun_and_ranks(process, made, 20)
        os.kill(process.pid, signal.SIGUSR1)
        result = finish(process)
        self.assert_ends(result, 75)
        self.assert_says(result.err, ["stopped by SIGUSR1", "saved in"], result)
        self.assertNotIn("restart", result.err)
        process, made = self.begin(3)
        self.assert_ends(finish(process), 0)
        self.assertEqual(len(made.losses), STEPS)

    def test_the_code_of_a_stop_is_the_ranks_own(self):
        delay = {"OMPI_MCA_odls_base_sigkill_timeout": "2"}  # the ranks have that time to save
        process, made = self.begin(2, LONG_JOB, env=delay)
        self.mpirun_and_ranks(process, made, 20)
        os.kill(process.pid, signal.SIGTERM)  # for which mpirun returns a code of its own
        result = finish(process)
        self.assert_ends(result, 75)
        self.assert_says(result.err, ["stopped by SIGTERM", "saved in"], result)

    def test_what_is_not_started_again(self):
        folder = self.folder / "run"
        refused = command.call(launch(command.binary, "train --epochs 0 --run-dir", folder))
        self.assert_refused(refused, 2, ["--epochs"])
        self.assertNotIn("restart", refused.err)
        for wrong, code in (("--layrs 8", 2), ("--resume no/such", 65), ("--epochs 0", 2)):
            job = mpirun(2, "train", wrong, "--survive --run-dir", folder, options=RECOVERY)
            refused = command.call(launch(*job))  # of which mpirun's recovery says nothing
            self.assert_refused(refused, code, [wrong.split()[wrong.startswith("--resume")]])
            self.assertNotIn("restart", refused.err)
        for code in (65, 75, 76):
            ending = ["sh", "-c", f"exit {code}", "--run-dir", str(folder)]
            result = command.call([str(command.binary), "launch", "--", *ending])
            self.assert_ends(result, code)
            self.assertNotIn("restart", result.err)
        failing = ["sh", "-c", "exit 86", "--run-dir", str(folder)]
        result = command.call([str(command.binary), "launch", "--", *failing])
        self.assert_refused(result, 86, ["code 86", "restart 2 follows", "as 2 times before", "doctor", "remedy"])
        result = command.call([str(command.binary), "launch", "--max-restarts", "1", "--", *failing])
        self.assert_refused(result, 86, ["after 1 restart", "--max-restarts"])
        missing = ["sh", "-c", "exit 127", "--run-dir", str(folder)]  # as a script without its program
        result = command.call([str(command.binary), "launch", "--max-restarts", "0", "--", *missing])
        self.assert_refused(result, 127, ["ended with code 127"])

    def test_a_launcher_without_ranks_is_killed(self):
        """But not a script that starts children and then becomes a rank."""
        fifo, script = self.folder / "fifo", self.folder / "mpirun"
        os.mkfifo(fifo)
        script.write_text(f"#!/bin/sh\nsleep 0.5\nread line < {fifo}\n")
        script.chmod(0o755)
        own = words(command.binary, "launch --max-restarts 0 --")
        hung, script = [self.start([*own, *job, "--run-dir", str(self.folder / "run")])
                        for job in ([str(script)], ["sh", "-c", "sleep 0.5; exec sleep 12"])]
        hung, script = finish(hung), finish(script)
        self.assert_refused(hung, 137, ["hung after its ranks had ended"])
        self.assert_ends(script, 0)

    def test_programs_of_several_contexts_are_resumed(self):
        job = mpirun(1, "train", command.SMALL, "--run-dir", self.folder / "run")
        result = command.call(launch(*job, ":", "-n", "1", *words(*job[job.index("1") + 1:])))
        self.assert_ends(result, 0)
        self.assertEqual(command.Run(self.folder / "run").summary["ranks"], 2)

    def test_a_locked_folder_is_waited_for(self):
        """Of a refusal mpirun's recovery says nothing."""
        with open(self.folder / "err", "w") as err:
            process, made = self.begin(2, JOB + " --survive", RECOVERY, stderr=err)
        _, ranks = self.mpirun_and_ranks(process, made, 50)
        with open(made.folder / ".lock") as lock:
            for rank in ranks:
                os.kill(rank, signal.SIGKILL)
            fcntl.flock(lock, fcntl.LOCK_EX)  # as soon as rank 0 has ended
            says = lambda: "the folder of the run is locked" in (self.folder / "err").read_text()
            self.wait_until(says, process, "wait for the lock")
        self.assert_ends(finish(process), 0)
        self.assertEqual(len(made.losses), STEPS)

    def test_an_error_of_one_rank_of_survivors_is_not_repeated(self):
        """mpirun's recovery passes no code on, and asks the other ranks to stop."""
        process, made = self.begin(2, JOB + " --survive", RECOVERY, env=faults("flip-weight:rank=1,step=5,weight=99999999"))
        result = finish(process)
        self.assert_refused(result, 2, ["rank 1 on", "99999999"])
        self.assertNotIn("restart", result.err)

    def test_a_diagnosis_of_the_attempt_before_is_removed(self):
        """It would end this one while its ranks start."""
        diagnosis = self.folder / "run" / "flight" / "diagnosis.txt"
        diagnosis.parent.mkdir(parents=True)
        diagnosis.write_text("rank 1 is behind\n")
        job = ["sh", "-c", f"test ! -e {diagnosis}", "--run-dir", str(self.folder / "run")]
        self.assert_ends(command.call([str(command.binary), "launch", "--max-restarts", "0", "--", *job]), 0)

    def test_refusals(self):
        self.assert_refused(run("launch train x"), 2, ["1 word: train", "-- COMMAND"])
        self.assert_refused(run("launch"), 2, ["no command", "--"])
        self.assert_refused(run("launch -- true", ranks=2), 2, ["mpirun has started it", "launch -- mpirun"])
        self.assert_refused(run("launch -- mpirun lockstep train"), 2, ["no --run-dir", "remedy"])
        self.assert_refused(run("launch -- /no/such --run-dir", self.folder / "run"), 2, ["/no/such cannot be started"])
        self.assert_refused(run("launch --max-restart 1 -- true"), 2, ["--max-restarts"])


class BatchScript(command.CommandTest):
    """scripts/slurm/train.sbatch with an srun and an scontrol of the test's own; slurm_test.sh runs it under Slurm."""

    def submit(self, *args, starts=0):
        """A start of the job, on which srun ends with 86. It is queued again three times."""
        tools = self.folder / "tools"
        tools.mkdir(exist_ok=True)
        for name, line in (("srun", 'echo "$@" >>srun.log; exit 86'),
                           ("scontrol", 'if [ "$1" = requeue ]; then echo "$2" >>requeued; else echo "   NumNodes=2 NumCPUs=2"; fi')):
            (tools / name).write_text(f"#!/bin/sh\n{line}\n")
            (tools / name).chmod(0o755)
        env = {"PATH": f"{tools}:{os.environ['PATH']}", "LOCKSTEP": str(command.binary), "SLURM_SUBMIT_DIR": str(self.folder),
               "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "4"} | ({"SLURM_RESTART_COUNT": str(starts)} if starts else {})
        result = command.call(["bash", str(command.REPOSITORY / "scripts/slurm/train.sbatch"), *args], env=env)
        self.assert_ends(result, 86)
        return result

    def test_a_job_that_hung_is_queued_again_three_times(self):
        (self.folder / "run.toml").write_text('epochs = 1\nrun-dir = "runs/mine"\n')
        for attempt in (1, 2, 3, 4):
            result = self.submit("run.toml", starts=attempt - 1)
            self.assertEqual((self.folder / "requeued").read_text(), "7\n" * min(attempt, 3), str(result))
            self.assertEqual((self.folder / "lockstep-7.failures").exists(), attempt <= 3, str(result))
        started = (self.folder / "srun.log").read_text().splitlines()
        self.assertEqual(len(started), 4, started)
        for line in started:
            self.assertIn("--nodes=2 --ntasks=4 ", line)
            self.assertIn(" train --resume auto --run-dir runs/mine run.toml", line)

    def test_a_job_that_is_queued_again_continues_its_own_run(self):
        """Not the one that --resume names: the folder holds a run by then, so that would be refused."""
        asked = words("--resume runs/A --resume-with steps=100")
        for run_dir, flags in (("runs/slurm-7", []), ("runs/B", ["--run-dir", "runs/B"]), ("runs/C", ["--run-dir=runs/C"])):
            self.submit(*asked, *flags)
            (self.folder / run_dir / "checkpoints/step-00000010").mkdir(parents=True)
            self.submit(*asked, *flags)  # another job: training refuses the folder
            self.submit(*asked, *flags, starts=1)
            begin = " ".join(["train --resume auto --run-dir", run_dir, *asked, *flags])
            ends = [line.partition("lockstep ")[2] for line in (self.folder / "srun.log").read_text().splitlines()[-3:]]
            self.assertEqual(ends, [begin, begin, begin + " --resume auto"])


if __name__ == "__main__":
    unittest.main()
