"""On a terminal: Ctrl-C, the progress bar, colours, completion."""

import fcntl
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import sys
import termios
import time
import unittest

import command
from command import LONG, SMALL, finish, mpirun, seconds, start, words
from failure_test import ON_TERMINAL, USUAL_GRACE


class Terminal:
    """A command on a terminal of its own, and what it prints there."""

    def __init__(self, argv, columns=100, env=None):
        self.master, terminal = pty.openpty()
        self.resize(columns)
        self.text = ""
        self.process = start([sys.executable, "-c", ON_TERMINAL, *argv], stdin=terminal, stdout=terminal,
                             stderr=terminal, env={"TERM": "xterm"} | USUAL_GRACE | (env or {}))
        os.close(terminal)

    def resize(self, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))

    def press(self, key):
        os.write(self.master, key)

    def read_until(self, pattern, limit=20.0):
        """Reads until the new text has the pattern, or without one to the end."""
        end = time.monotonic() + seconds(limit)
        new = ""
        while pattern is None or not re.search(pattern, new):
            if not select.select([self.master], [], [], max(0, end - time.monotonic()))[0]:
                raise AssertionError(f"no {pattern} in {self.text!r}")
            try:
                chunk = os.read(self.master, 65536).decode(errors="replace")
            except OSError:  # the command has ended
                break
            self.text += chunk
            new += chunk
        return new

    def code(self):
        self.read_until(None)
        return self.process.wait(timeout=seconds(10))

    def close(self):
        """Ends the command, if it runs."""
        os.close(self.master)  # what is printed from now on fails, instead of waiting for a reader
        if self.process.poll() is None:
            command.stop(self.process)


class OnTerminal(command.CommandTest):
    def begin(self, argv, **options):
        terminal = Terminal(argv, **options)
        self.addCleanup(terminal.close)
        return terminal

    def lines(self, text):
        """What can be read on the screen: without colours, and of each line the last text."""
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text).replace("\r\n", "\n")
        return [line.split("\r")[-1].replace("\x1b[K", "") for line in plain.split("\n")]

    def test_ctrl_c_ends_with_one_line_that_continues(self):
        folder = self.folder / "my run"
        job = [*words(LONG), "--run-dir", str(folder)]
        worlds = {"alone": [str(command.binary), *job], "threads": [str(command.binary), *job, "--ranks", "3"]}
        if command.MPI:
            worlds["processes"] = [*mpirun(3), *job, "--layers", "300", "--train-limit", "20000"]  # few epochs a second
        for world, argv in worlds.items():
            with self.subTest(world=world):
                terminal = self.begin(argv)
                terminal.read_until(r"\r\[[#.]+\] step")
                terminal.press(b"\x03")
                code = terminal.code()
                if world != "processes":  # mpirun's own
                    self.assertEqual(code, 75, terminal.text)
                found = [line for line in self.lines(terminal.text) if "stopped by" in line]
                self.assertEqual(len(found), 1, terminal.text)
                self.assertRegex(found[0], r"^lockstep: warning: stopped by SIG(INT|TERM) after [\d,]+ steps?; saved in ")
                again = shlex.split(re.search("continue with `(.*)`", found[0])[1])
                steps = len(command.Run(folder).metrics)
                result = finish(start([*again, "--resume-with", f"steps={steps + 3}", "--progress", "lines"]))
                self.assert_ends(result, 0)
                self.assert_says(result.out, f"{'1 rank' if world == 'alone' else '3 ranks'} on 1 host", result)
                self.assertEqual(len(command.Run(folder).metrics), steps + 3)
                self.assertEqual(command.Run(folder).summary["status"], "finished")
                shutil.rmtree(folder)

    def test_a_second_ctrl_c_ends_at_once(self):
        """Also within the second in which kill() repeats a signal."""
        env = command.faults("slow:rank=0,step=3,seconds=20")
        terminal = self.begin(words(command.binary, LONG, "--checkpoint-every 1 --progress lines --run-dir", self.folder / "run"),
                              env=env)
        saved = self.folder / "run/checkpoints/step-00000002"  # a thread writes it while the rank sleeps in step 3
        self.wait_until(saved.exists, terminal.process, "checkpoint of step 2")
        terminal.press(b"\x03")
        time.sleep(0.2)
        self.assertIsNone(terminal.process.poll())
        terminal.press(b"\x03")
        self.assertEqual(terminal.code(), -signal.SIGINT, terminal.text)

    def test_the_bar_follows_the_window(self):
        for argv in (words(command.binary), mpirun(1)) if command.MPI else (words(command.binary),):
            terminal = self.begin([*argv, *words(LONG, "--run-dir", self.folder / f"run{len(argv)}")], columns=70)
            wide = terminal.read_until(r"\r[^\r\n]*step [^\r\n]*\x1b\[K")
            self.assertLess(max(map(len, re.findall(r"\r([^\r\n]*step [^\r\n]*)\x1b\[K", wide))), 70)
            terminal.resize(120)
            terminal.read_until(r"\r\[[#.]{30}\] step [^\r\n]* left\x1b\[K")
            terminal.resize(30)
            terminal.read_until(r"\rstep [^\r\n]{0,24}\x1b\[K")

    def test_no_bar_and_no_colours_without_a_terminal(self):
        made = self.train(SMALL, "--ranks 2 --layers 700 --epochs 3")
        self.assertNotRegex(made.result.out + made.result.err, "[\r\x1b]")
        refused = command.run("train --nothing")
        self.assertNotIn("\x1b", refused.err)

    def test_colours_unless_no_color(self):
        for value, coloured in ((None, True), ("", True), ("1", False)):
            env = {} if value is None else {"NO_COLOR": value}
            terminal = self.begin(words(command.binary, "train --nothing"), env=env)
            self.assertEqual(terminal.code(), 2)
            self.assertEqual("\x1b[" in terminal.text, coloured, terminal.text)


class Completion(command.CommandTest):
    def test_bash_completes_subcommands_flags_and_values(self):
        script = self.folder / "lockstep"
        script.write_text(self.succeed("completion bash").out)
        (self.folder / "some folder").mkdir()
        cases = {("tr",): ["train"], ("train", "--shu"): ["--shuffle"], ("train", "--shuffle", ""): ["global", "none"],
                 ("train", "--shuffle", "=", "gl"): ["global"], ("evaluate", "--repo"): ["--report"],
                 ("train", "--nesterov", "=", ""): ["true", "false"], ("train", "--report", "=", ""): [],
                 ("bench", "collectives", "--backend", "t"): ["threads", "tcp"],
                 ("evaluate", "--label"): [], ("bench", "da"): ["data"], ("completion", "z"): ["zsh"],
                 ("train", "--data", "so"): ["some folder"], ("train", "--survive", "--epo"): ["--epochs"],
                 ("convert", "--format", "n"): ["npy"], ("convert", "--format", "c"): ["csv"],
                 ("train", "--format", "c"): ["csv", "cifar"], ("bench", "step", "so"): ["some folder"],
                 ("inspect", "so"): ["some folder"], ("bench", "so"): [], ("help", "so"): [], ("help", "pre"): ["predict"]}
        for words_there, expected in cases.items():
            with self.subTest(words=words_there):
                program = (f"source {script}; COMP_WORDS=(lockstep \"$@\") COMP_CWORD=$#; _lockstep; "
                           "[ ${#COMPREPLY[@]} -eq 0 ] || printf '%s\\n' \"${COMPREPLY[@]}\"")
                result = command.call(["bash", "-c", program, "bash", *words_there], cwd=self.folder)
                self.assert_ends(result, 0)
                self.assertEqual((result.out.splitlines(), result.err), (expected, ""), str(result))

    def test_every_shell_knows_every_subcommand(self):
        listed = re.findall(r"^  ([a-z]+) ", self.succeed("--help").out, re.MULTILINE)
        self.assertIn("completion", listed)
        for shell in ("bash", "zsh", "fish"):
            script = self.succeed("completion", shell).out
            for name in (*listed, "label-column", "report"):
                self.assertIn(name, script)
            if shutil.which(shell):
                (self.folder / shell).write_text(script)
                self.assert_ends(command.call([shell, "-n", str(self.folder / shell)]), 0)
        for words_there, needle in (("", "no shell"), ("csh", "no completion for 'csh'")):
            self.assert_refused(command.run("completion", words_there), 2, [needle, "lockstep completion bash"])


if __name__ == "__main__":
    unittest.main()
