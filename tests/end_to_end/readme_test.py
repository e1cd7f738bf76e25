"""The commands of README.md and of the guides, pasted in order into one new shell, as a reader would.

Every line `$ ...` of a ```console block and every ```python block runs, or stands in NOT_RUN with the reason. A
shortened command stands in SHORTER. What the others print of a run's weights or of a plan's digest is compared.
"""

import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from subprocess import STDOUT

import command
from tutorial_test import MNIST

# Regular expressions of whole commands.
NOT_RUN = {
    r"scripts/quickstart\.sh": "installs and builds",
    r"mpirun -n 2 build/release/lockstep train": "quickstart.sh prints it",
    r"scripts/test\.sh": "runs this test",
    r"sbatch .*": "needs a Slurm cluster: slurm_test.sh has one",
    r".* srun .*": "needs a Slurm cluster: slurm_test.sh has one",
    r".* --host h1.*": "needs two hosts: hosts_test.sh has them",
    r"cmake --install .*": "package_test installs",
    r"cmake --preset release .*": "quickstart.sh builds",
    r"cmake --preset cuda .*": "needs the CUDA toolkit: scripts/gpu_check.sh builds this",
    r".*build/cuda/lockstep .*": "needs a GPU: scripts/gpu_check.sh runs these",
    r"scripts/gpu_check\.sh": "needs a GPU",
    r"scripts/(kill_ranks|guard_cost)\.py.*": "takes minutes: survive_test kills ranks",
}
# Commands that may also end with this code.
MAY_END_WITH = {r"mpirun -n 3 .* doctor .*": "1"}  # fewer than 3 cores
# What is replaced in a command, and why.
SHORTER = [
    # The network is not there: `mnist` is a folder of MNIST, or of drawn digits.
    (r"^scripts/get_mnist\.sh && ", ""),
    # The drawn digits and configs/tutorial.toml, with fewer records and epochs.
    (r"lockstep train(?! --resume|.* --(data|train-limit))", "lockstep train --train-limit 2000 --test-limit 1000"),
    (r"lockstep train(?! --resume|.* --(data|epochs))", "lockstep train --epochs 1"),
]
PRINTED = re.compile(r"^(?:weights|  digest +) *([0-9a-f]{16})", re.MULTILINE)
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
END = re.compile(r"\n@@ end (\d+) ([\d ]+)\n")  # the codes of a pipe's commands


def steps_of(document):
    """The commands of a document in order, as (language, text, hashes that it is said to print)."""
    if language := re.search(r"^```(sh|bash|shell)", document.read_text(), re.MULTILINE):
        raise AssertionError(f"{document}: {language[0]}: commands stand in ```console, so that this test runs them")
    for language, text in BLOCK.findall(document.read_text()):
        if language == "python":
            yield language, text, []
            continue
        for lines in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            line, _, printed = lines.partition("\n")
            yield language, line.partition("  #")[0].strip(), PRINTED.findall(printed)


def iris_csv(folder):
    """What README's Python lines write, with other numbers: 150 records of three classes."""
    names = ["sepal length (cm)", "sepal width (cm)", "petal length (cm)", "petal width (cm)", "target"]
    rows = [[round(5 + k + i % 7 / 10, 1), 3, round(1.5 + 1.7 * k + i % 5 / 10, 1), round(0.2 + k + i % 3 / 10, 1), k]
            for k in range(3) for i in range(50)]
    (folder / "iris.csv").write_text("\n".join(",".join(map(str, row)) for row in [names, *rows]) + "\n")


class Readme(command.CommandTest):
    def checkout(self):
        """A view of the repository with the build under test as build/release, and no runs."""
        view = self.folder / "lockstep"
        (view / "build/release").mkdir(parents=True)
        for path in command.REPOSITORY.iterdir():
            if path.name not in ("build", "runs", "mnist", ".git"):
                (view / path.name).symlink_to(path)
        (view / "build/release/lockstep").symlink_to(command.binary)
        if MNIST.is_dir():
            (view / "mnist").symlink_to(MNIST.resolve())
        else:
            self.succeed("generate", view / "mnist")
        return view

    def shell_line(self, language, text, hashes, view):
        """What runs for a step, and the hashes that it must print; or None."""
        if language == "python":
            if "pandas" not in text or (find_spec("pandas") and find_spec("sklearn")):
                return f"{sys.executable} - <<'PYTHON'\n{text}PYTHON", []
            self.assertIn("iris.csv", text, "no substitute for this Python without pandas and scikit-learn")
            print("REPLACED: no pandas and scikit-learn here, so iris.csv is the test's own", file=sys.stderr)
            iris_csv(view)
            return None
        if any(re.fullmatch(pattern, text) for pattern in NOT_RUN):
            return None
        shorter = text
        for pattern, replacement in SHORTER:
            shorter = re.sub(pattern, replacement, shorter)
        return shorter, hashes if shorter == text else []

    def check(self, document, before=()):
        """Pastes the document's commands, after those of `before`."""
        if not command.MPI:
            self.skipTest("the build under test has no MPI")
        view = self.checkout()
        steps = [(line, []) for line in before] + [step for step in (self.shell_line(*step, view) for step in steps_of(document)) if step]
        lines = [line for line, _ in steps]
        script = self.folder / "paste.sh"
        script.write_text("".join(f"{line}\nprintf '\\n@@ end %d %s\\n' {i} \"${{PIPESTATUS[*]}}\"\n" for i, line in enumerate(lines)))
        # A new shell, without the settings that command.py gives to mpirun.
        settings = [f"{name}={value}" for name, value in command.environment().items() if not name.startswith("OMPI_")]
        result = command.call(["env", "-i", *settings, "bash", str(script)], cwd=view, limit=120, stderr=STDOUT)
        self.assertEqual(result.code, 0, str(result))
        outputs = END.split(result.out)
        self.assertEqual(outputs[1::3], [str(i) for i in range(len(lines))], str(result))
        for (line, hashes), output, ended in zip(steps, outputs[0::3], outputs[2::3]):
            with self.subTest(document=document.name, command=line):
                *before, code = ended.split()
                self.assertLessEqual(set(before), {"0", "141"}, f"\n$ {line}\n{output}")  # 141: its reader has left
                codes = ["0", *(code for pattern, code in MAY_END_WITH.items() if re.fullmatch(pattern, line))]
                self.assertIn(code, codes, f"\n$ {line}\n{output}")
                self.assertNotIn("lockstep: error", output, f"\n$ {line}\n{output}")
                self.assertEqual(hashes and PRINTED.findall(output), hashes, f"\n$ {line}\n{output}")
        print(f"{document.name}: {len(lines)} commands, {result.seconds:.0f} s", file=sys.stderr)

    def test_readme(self):
        self.check(command.REPOSITORY / "README.md")

    def test_guides(self):
        exports = [text for _, text, _ in steps_of(command.REPOSITORY / "README.md") if text.startswith("export ")]
        for guide in sorted((command.REPOSITORY / "apps/guides").glob("*.md")):
            shutil.rmtree(self.folder / "lockstep", ignore_errors=True)
            with self.subTest(guide=guide.name):
                self.check(guide, exports)
