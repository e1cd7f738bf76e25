"""The installed package: a consumer outside the tree builds on it, and the examples print what they
should.

The build under test is installed into a folder that is then moved. Built against the moved copy only:
apps/examples, a consumer of three lines, and every public header by itself.
"""

import os
import re
import shutil
import tempfile
import unittest
from pathlib import Path

import command
import files
from command import CommandTest, call, mpirun

EXAMPLES = command.REPOSITORY / "apps/examples"
TUTORIAL = "--train-limit 5000 --test-limit 5000"
WARNINGS = "-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"

CONSUMER = """cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
find_package(lockstep 0.1 REQUIRED COMPONENTS distribute train)
add_executable(consumer consumer.cpp)
target_link_libraries(consumer PRIVATE lockstep::lockstep)
file(GLOB headers headers/*.cpp)
add_library(headers OBJECT EXCLUDE_FROM_ALL ${headers})
target_link_libraries(headers PRIVATE lockstep::lockstep)
target_compile_options(headers PRIVATE -O0)
"""

MISTAKES = (
    ("range_dataset(3).map([](std::string) { return 1; });", "takes neither an element of the data set nor the parts"),
    ("range_dataset(3).map([](std::int64_t) {});", "map: the function returns nothing"),
    ("range_dataset(3).filter([](int) { return std::string(); });", "filter: the function does not return bool"),
    ("range_dataset(3).flat_map([](int) { return 1; });", "the function does not return a Dataset"),
    ("from_generator<int>([] { return 1; });", "from_generator: the function does not return a generator"),
    ("struct Row { int x; auto fields() { return std::tie(x); } }; from_elements(std::vector<Row>(2)).batch(2);",
     "batch: fields() of the element is not const, or returns neither a pair nor a tuple"),
    ("s.run([](int a, int b) { return a + b; }, v);", "run: the function does not take each replica's arguments"),
    ("s.distribute_dataset(range_dataset(3));", "call batch(global batch size) before"),
    ("s.distribute_datasets_from_function([](int) { return 1; });", "does not take an InputContext"),
    ("s.reduce(ReduceOp::sum, Tensor<float>({1}), 0);", "reduce, gather: the value is not a per-replica value"),
    ("s.reduce(ReduceOp::sum, v, 0.5);", "reduce, gather: the axis is not a whole number"),
    ("s.reduce(0, v);", "reduce: the first argument is ReduceOp::sum or ReduceOp::mean"),
    ("auto t = s.run([] { return std::optional<int>(1); }); s.reduce(ReduceOp::sum, t);",
     "a replica's value is not a number, tensor of numbers, or pair"),
    ("s.gather(v);", "gather: give the value and an axis"),
    ("s.gather(std::vector<float>{1}, 0);", "reduce, gather: the value is not a per-replica value"),
    ('train::Metric m{"mine", [](float output) { return output; }};', "a metric's function returns a double"),
    ("train::Replica r({2, {3}, 2}, range_dataset(4).batch(2));", "Replica: give a shape and a distributed data set"),
    ("train::Replica r({2, {3}, 2}, data::Plan({.records = 8, .batch_size = 2}));",
     "Replica: give a shape and a distributed data set"),
    ("train::Replica* r = nullptr; r->train(v);", "train: the batch is not an element of a distributed data set of pairs"),
    ("train::Replica* r = nullptr; r->train(std::pair(Tensor<float>(), Tensor<float>()));",
     "train: the batch is not an element of a distributed data set of pairs"))

NAMES = """cmake_minimum_required(VERSION 3.25)
project(names LANGUAGES CXX)
find_package(lockstep REQUIRED)
add_library(names OBJECT names.cpp)
target_link_libraries(names PRIVATE lockstep::lockstep)
target_compile_options(names PRIVATE -fsyntax-only -fmax-errors=0)
"""

# The line of train/plot.hpp.
PLOT = """#include <array>
#include <lockstep/train/plot.hpp>
using namespace lockstep::train;
void draw_run() { plot(std::array{History{"", read_epochs("runs/A")}}, "history.svg"); }
"""

PROGRAM = """#include <lockstep/lockstep.hpp>
void body(lockstep::comm::Communicator& comm) { std::printf("rank %d\\n", comm.rank()); }
int main(int argc, char** argv) { return lockstep::run_replicas(argc, argv, body); }
"""

def per_replica(values):
    return "{" + ", ".join(f"{replica}: {value}" for replica, value in enumerate(values)) + "}"


def cut(batch, replicas):
    """The guide's rule: pieces of ceil(examples / replicas), in order."""
    each = -(-len(batch) // replicas)
    return [batch[replica * each:(replica + 1) * each] for replica in range(replicas)]


def division(replicas):
    """What the guide "Distributed Input" prints on data sets and their division, on any number of replicas."""
    lines = [f"Loss is {per_replica(cut([[0.7]] * size, replicas))}" for size in [16] * 6 + [4]]
    for count in (6, 4, 8):
        lines.append(f"range({count}) in batches of 4")
        lines += [f"  {per_replica(cut(list(range(first, min(first + 4, count))), replicas))}"
                  for first in range(0, count, 4)]
    return lines + ["auto shards as data", "data shards as data", "off shards as off"]


def iterators(replicas):
    """What it prints on iterators, element specs and the order of outputs."""
    lines = ["50 steps"]
    lines += [per_replica(cut(list(range(first, min(first + 4, 9))), replicas)) for first in (0, 4, 8)]
    lines += ["next(): no replica has data for another step",
              "  remedy: catch it and go on with the next epoch, or use next_as_optional()"]
    lines += ["float32 (?, 1)"] * 2 + ["sums ([48.0], [48.0])"]
    return lines + [f"{index}: {2 * index}" for index in range(24)]


def functions(replicas):
    """What it prints on data from functions."""
    lines = [f"sum {sum(range(first, first + 24))}" for first in range(0, 96, 24)]
    lines += [per_replica([1.0] * replicas)] * 4
    lines += [per_replica(cut([float(step)] * 4, replicas)) for step in range(4)]
    lines += [per_replica([[0, 1]] * replicas), per_replica([[2]] + [[]] * (replicas - 1))]
    return lines


def values_page(replicas):
    """What the page of DistributedValues prints for two replicas; for others, a number for each."""
    numbers = [5.0 + replica for replica in range(replicas)]
    return [per_replica([[number] for number in numbers]), per_replica(range(replicas)),
            per_replica([[number + 1] for number in numbers]), f"{sum(numbers)}, shape ()", "[5.0]",
            "[0.5, 1.0], 24 examples"]


def strategy_page(replicas):
    return [f"ranks: {replicas}, replicas in sync: {replicas}", "weight 14.0",
            f"2 logical devices in each of {replicas} replicas", f"sum {6.0 * replicas}",
            "no logical device 2: each replica has 2 partitions", "  remedy: give an id from 0 to 1",
            f"gathered {[[1.0], [2.0]] * replicas}"]


# TensorFlow's losses and accuracies, training and testing, of tutorial_test.py's network 700,500 on drawn digits.
DIGITS = [(0.7874, 0.7604, 0.4081, 0.8784), (0.2579, 0.9206, 0.3003, 0.9098), (0.1435, 0.9550, 0.2135, 0.9384)]


def cached(name):
    """A variable of the build under test."""
    cache = (command.binary.parent / "CMakeCache.txt").read_text()
    found = re.search(rf"^{name}:\w+=(.*)$", cache, re.MULTILINE)
    return found[1] if found else ""


class Copy:
    """The installed copy, and what was built on it; made once."""
    folder = None  # of everything
    prefix = None
    sanitizer = ""


def setUpModule():
    if not (command.binary.parent / "CMakeCache.txt").is_file():
        raise unittest.SkipTest(f"{command.binary.parent}: no build folder, so nothing to install")
    Copy.folder = Path(tempfile.mkdtemp(prefix="lockstep-package-"))
    unittest.addModuleCleanup(shutil.rmtree, Copy.folder, ignore_errors=True)
    Copy.sanitizer = cached("LOCKSTEP_SANITIZE")
    Copy.prefix = Copy.folder / "moved/lockstep"
    first = Copy.folder / "installed"
    cmake("--install", command.binary.parent, "--prefix", first)
    Copy.prefix.parent.mkdir()
    first.rename(Copy.prefix)
    build(EXAMPLES, Copy.folder / "examples")


def cmake(*args, code=0):
    """Runs cmake, with ccache where there is one: its keys leave out the folder's changing name."""
    env = {"CCACHE_BASEDIR": str(Copy.folder), "CCACHE_NOHASHDIR": "1"}
    if shutil.which("ccache"):
        env["CMAKE_CXX_COMPILER_LAUNCHER"] = "ccache"
    result = call([cached("CMAKE_COMMAND"), *map(str, args)], limit=300, env=env)
    if (result.code == 0) != (code == 0):
        raise AssertionError(str(result))
    return result


def configure(source, folder, *args, code=0):
    flags = f"-O1 {WARNINGS}"
    if Copy.sanitizer:
        flags = f"-O1 -fsanitize={Copy.sanitizer} -fno-sanitize-recover=all"
    return cmake("-S", source, "-B", folder, "-G", cached("CMAKE_GENERATOR"),
                 f"-DCMAKE_CXX_COMPILER={cached('CMAKE_CXX_COMPILER')}",
                 "-DCMAKE_BUILD_TYPE=None", f"-DCMAKE_PREFIX_PATH={Copy.prefix}",
                 f"-DCMAKE_CXX_FLAGS={flags}", *args, code=code)


def build(source, folder, *targets):
    configure(source, folder)
    cmake("--build", folder, "--parallel", os.cpu_count(), *(f"--target={name}" for name in targets))


def unsanitized(reason):
    """Skips a test in builds with a sanitizer; said once for each."""
    def decorate(test):
        def run(self):
            if Copy.sanitizer:
                self.skipTest(f"sanitizer {Copy.sanitizer}: {reason}")
            test(self)
        return run
    return decorate


class Examples(CommandTest):
    maxDiff = None

    def example(self, name, ranks=None, threads=None, **options):
        """What the program prints."""
        program = Copy.folder / "examples" / name
        argv = mpirun(ranks, program=program) if ranks else [str(program)]
        result = call(argv + (["--ranks", str(threads)] if threads else []), **options)
        self.assert_ends(result, 0)
        return result.out

    def outputs(self, name, worlds=(1, 2, 3), **options):
        """What it prints as each number of threads and, but for sanitizers (whose reports on Open
        MPI itself only programs of the tree suppress), of processes."""
        out = {f"{n} threads": self.example(name, threads=n, **options) for n in worlds}
        if not Copy.sanitizer:
            out |= {f"{n} processes": self.example(name, ranks=n, **options) for n in worlds}
        return out

    def assert_alike(self, outputs):
        self.assertEqual(len(set(outputs.values())), 1, outputs)
        return next(iter(outputs.values()))

    def test_programs_are_numbered_and_short(self):
        programs = sorted(EXAMPLES.glob("*.cpp"))
        self.assertEqual([path.name[:3] for path in programs], [f"{i:02}_" for i in range(1, 17)])
        for path in programs:
            self.assertLess(len(path.read_text().splitlines()), 100, path)
            self.assertTrue(hasattr(self, f"test_{path.stem}"), path)

    def test_01_tutorial(self):
        run = self.train(TUTORIAL)
        worlds = (2,) if Copy.sanitizer else (1, 2, 3)
        lines = {world: out.splitlines()
                 for world, out in self.outputs("01_tutorial", worlds).items()}
        for world, (first, *rest) in lines.items():
            self.assertIn(f"{world.split()[0]} replicas in sync", first)
            self.assertEqual(rest[-1], f"weights {run.summary['weights_hash']}", world)
        figures = self.assert_alike({world: "\n".join(rest) for world, (_, *rest) in lines.items()})
        for epoch, line in zip(run.summary["epochs"], figures.splitlines()[:-1], strict=True):
            numbers = [float(text) for text in re.findall(r"\d\.\d{3}", line)]
            expected = [epoch[f"{part}_{of}"] for part in ("train", "test")
                        for of in ("loss", "accuracy")]
            for number, exact in zip(numbers, expected, strict=True):
                self.assertAlmostEqual(number, exact, delta=0.0006)

    def assert_prints(self, name, expected):
        for world, out in self.outputs(name, (1, 2, 3, 8)).items():
            self.assertEqual(out.splitlines(), expected(int(world.split()[0])), world)

    def test_02_distributed_input(self):
        self.assert_prints("02_distributed_input", division)

    def test_03_replica_values(self):
        self.assert_prints("03_replica_values", values_page)

    def test_11_strategy(self):
        self.assert_prints("11_strategy", strategy_page)

    def test_14_distributed_iterators(self):
        self.assert_prints("14_distributed_iterators", iterators)

    def test_15_input_from_functions(self):
        self.assert_prints("15_input_from_functions", functions)

    def test_16_saved_variables(self):
        out = self.assert_alike(self.outputs("16_saved_variables", (1, 2, 3)))
        self.assertEqual(out, "equal before: no, after: yes\n")

    def test_the_table_of_guides_names_the_lines(self):
        table = re.findall(r"^\| [^|]* \| ([^|]*) \| `(\w+)` \| (\d+) \|$",
                           (EXAMPLES / "README.md").read_text(), re.MULTILINE)
        said = {(name, int(line)): block for block, name, line in table}
        found = {}
        for name in {name for name, _ in said}:
            for number, line in enumerate((EXAMPLES / f"{name}.cpp").read_text().splitlines(), 1):
                titles = re.match(r'\s*// ("[^"]*"(?:, "[^"]*")*)', line)
                if titles and number > 5:
                    found[name, number] = titles[1].replace('"', "")
        self.assertEqual(said, found)

    @unsanitized("Open MPI's own reports are in the way")
    def test_a_warning_reaches_the_user_once(self):
        program = Copy.folder / "examples/02_distributed_input"
        for argv in ([str(program), "--ranks", "2"], mpirun(2, program=program)):
            result = call(argv)
            self.assert_ends(result, 0)
            warnings = [line for line in result.err.splitlines() if "warning: " in line]
            self.assertEqual(len(warnings), 2, str(result))  # of AUTO and of OFF
            self.assertEqual(warnings[0], "02_distributed_input: warning: `policy=auto`: the data does "
                             "not come from files, so it is sharded as by data; to choose that, use "
                             "`policy=data`")

    def test_04_dataset_from_function(self):
        self.assertEqual(self.assert_alike(self.outputs("04_dataset_from_function")),
                         "z = 2.00 x -3.00 y +1.00, loss 0.0000\n")

    def test_05_prediction_in_order(self):
        lines = self.assert_alike(self.outputs("05_prediction_in_order")).splitlines()
        self.assertEqual([int(line.split(":")[0]) for line in lines], list(range(24)))
        self.assertGreater(len({line.split(": ")[1] for line in lines}), 5)

    def test_06_custom_layer(self):
        out = self.assert_alike(self.outputs("06_custom_layer", (1, 2, 3, 5)))
        accuracy = re.search(r"accuracy (\d\.\d+)", out)[1]
        self.assertGreater(float(accuracy), 0.5)
        program = [str(Copy.folder / "examples/06_custom_layer"), str(self.folder / "run")]
        self.assertEqual(call(program + ["--ranks", "2"]).out, out)
        evaluated = call(program + ["--ranks", "3"])
        self.assert_ends(evaluated, 0)
        self.assertEqual(evaluated.out, out.split(", weights")[0] + "\n")
        refused = call([str(Copy.prefix / "bin/lockstep"), "evaluate", program[1], "--data", "synthetic"])
        self.assert_ends(refused, 65)
        self.assertIn("06_custom_layer.cpp", refused.err)
        inspected = call([str(Copy.prefix / "bin/lockstep"), "inspect", program[1], "--verify"])
        self.assert_ends(inspected, 0)  # intact, although the command does not know the layer
        self.assert_says(inspected.out, ["network.json", "prelu"], inspected)
        resumed = call([str(Copy.prefix / "bin/lockstep"), "train", "--resume", program[1]])
        self.assert_refused(resumed, 2, ["was saved by a program", "--init"])

    def test_07_custom_loss(self):
        lines = self.assert_alike(self.outputs("07_custom_loss")).splitlines()
        losses = [float(line.split("hinge ")[1].split(",")[0]) for line in lines[:2]]
        self.assertLess(losses[1], 0.8 * losses[0])
        self.assertRegex(lines[-1], r"^weights ([0-9a-f]{16}), saved and read \1$")

    def test_12_regression(self):
        out = self.assert_alike(self.outputs("12_regression", (1, 2, 3, 5)))
        self.assertIn("2000 examples: loss 0.00", out)
        first, second = (float(text) for text in out.split("(0.5, -0.5): ")[1].split())
        self.assertAlmostEqual(first, -0.25, delta=0.05)
        self.assertAlmostEqual(second, 0.25, delta=0.05)

    def test_13_inference_service(self):
        run = self.folder / "run"
        self.succeed("train --data synthetic --train-limit 2000 --test-limit 100 --layers 32 --epochs 2 --run-dir", run)
        self.succeed("convert", "synthetic", self.folder / "csv", "--format csv --train-limit 9 --test-limit 100")
        header, *rows = (self.folder / "csv/test.csv").read_text().splitlines()
        label = header.split(",").index("label")
        cells = [row.split(",") for row in rows]
        lines = [",".join(cell for at, cell in enumerate(row) if at != label) for row in cells]
        asked = self.folder / "asked"
        pixels = [",".join(["0"] * 783 + [word]) for word in ("one", "1abc", "1e40", "nan")]
        asked.write_text("\n".join([*lines, "", "1,2", f"{lines[0]},{lines[1]}", *pixels, lines[0]]) + "\n")
        program = [str(Copy.folder / "examples/13_inference_service"), str(run)]
        with asked.open() as stdin:
            result = call(program, stdin=stdin)
        self.assert_ends(result, 0)
        out = result.out.splitlines()
        answers, errors, last = out[:100], out[100:-1], out[-1]
        right = sum(answer.split()[0] == row[label] for answer, row in zip(answers, cells, strict=True))
        self.assertEqual(right, round(100 * command.Run(run).summary["epochs"][-1]["test_accuracy"]))
        self.assertEqual(errors, [f"error: line {at}: {problem}" for at, problem in enumerate(
            ["the line is empty", "2 numbers, where an example has 784", "1,568 numbers, where an example has 784",
             *(f"'{word}' is not a finite number (in float32)" for word in ("one", "1abc", "1e40", "nan"))], 101)])
        self.assertEqual(last, answers[0])
        two = call(program + ["--ranks", "2"])
        self.assert_ends(two, 2)
        self.assertIn("only one rank can read stdin", two.err)

    def test_13_inference_service_of_a_table(self):
        """Columns as they are in the table: words, and numbers that are standardized."""
        rows = [f"{'red' if i % 2 else 'blue'},{i},{'odd' if i % 2 else 'even'}" for i in range(60)]
        table, run, asked = self.folder / "t.csv", self.folder / "run", self.folder / "asked"
        table.write_text("\n".join(["colour,number,label", *rows]) + "\n")
        self.succeed("train --data", table, "--test-split 0.2 --layers 8 --epochs 20 --batch-size 8 --run-dir", run)
        asked.write_text("red,5\nblue, 8\nred\nred,five\n")
        with asked.open() as stdin:
            result = call([str(Copy.folder / "examples/13_inference_service"), str(run)], stdin=stdin)
        self.assert_ends(result, 0)
        odd, even, *errors = result.out.splitlines()
        self.assertEqual([odd.split()[0], even.split()[0]], ["odd", "even"])
        self.assertEqual(errors, ["error: line 3: 1 value for 2 columns",
                                  "error: line 4: column 'number': 'five' is not a finite number (in float32)"])
        table.write_text("x,y\n" + "".join(f"{i},{i}.5\n" for i in range(60)))
        numbers = self.folder / "numbers"
        self.succeed("train --data", table, "--label-column y --task regression --test-split 0.2 --layers 4 --epochs 1",
                     "--run-dir", numbers)
        refused = call([str(Copy.folder / "examples/13_inference_service"), str(numbers)])
        self.assert_ends(refused, 2)
        self.assert_says(refused.err, ["does not predict classes", "another checkpoint"], refused)

    def test_08_mesh(self):
        out = self.assert_alike(self.outputs("08_mesh", (1, 2, 3, 6)))
        self.assertNotIn(": no", out)
        self.assertEqual(out.count("[[20.0, 14.0], [56.0, 41.0]]"), 3)

    def test_09_dtensor_tutorial(self):
        """TensorFlow's figures (tutorial_test.py) on 8 devices, whatever the mesh cuts."""
        devices = 2 if Copy.sanitizer else 8
        world = {"threads" if Copy.sanitizer else "ranks": devices}
        out = self.example("09_dtensor_tutorial", **world, limit=240)
        self.assertEqual(re.findall(r"mesh (.*)\n", out),
                         [f"batch={batch}, model={devices // batch}" for batch in (devices, 1, 2)])
        for block, trained in zip(out.split("mesh ")[1:], (1, 1, 3), strict=True):
            epochs = block.splitlines()[1:]
            numbers = [[float(text) for text in re.findall(r"\d\.\d{3}", line)] for line in epochs]
            for row, expected in zip(numbers, DIGITS[:trained], strict=True):
                for number, exact in zip(row, expected, strict=True):
                    self.assertAlmostEqual(number, exact, delta=0.006)

    def test_10_tfrecord_features(self):
        """Examples as TensorFlow writes them; the plane z = 2 x - 3 y + 1."""
        folder = self.folder / "readings"
        folder.mkdir()
        places = [(x, y) for x in range(-2, 3) for y in range(-2, 3)]
        for part in range(2):
            records = [files.tfrecord_example(position=[float(x), float(y)], height=[2 * x - 3 * y + 1],
                                              station=[b"north"]) for x, y in places[part::2]]
            (folder / f"readings-{part}.tfrecord").write_bytes(files.tfrecord(records))
        out = self.assert_alike(self.outputs("10_tfrecord_features", cwd=folder))
        self.assertEqual(out, """{height: 3, position: [-2.0, -2.0], station: "north", weight: 1.0}
{height: -3, position: [-2.0, 0.0], station: "north", weight: 1.0}
element spec: float32 (?, 2), int64 (?), float32 (?)
height = 2.00 x -3.00 y +1.00
""")
        wrong = files.tfrecord_example(position=[1.0], height=[3])
        (folder / "readings-2.tfrecord").write_bytes(files.tfrecord([wrong]))
        result = call([str(Copy.folder / "examples/10_tfrecord_features")], cwd=folder)
        self.assert_ends(result, 65)
        self.assertIn("readings-2.tfrecord: byte 0: record 0: ", result.err)
        self.assertIn("feature 'position' holds 1 value, not 2", result.err)

    def test_words_that_an_example_does_not_know(self):
        program = [str(Copy.folder / "examples/02_distributed_input")]
        for words in (["--rank", "2"], ["--ranks", "0"], ["2"]):
            result = call(program + words)
            self.assert_ends(result, 2)
            self.assertTrue(result.err.startswith("02_distributed_input: error: "), str(result))

    @unsanitized("Open MPI's own reports are in the way")
    def test_one_message_and_code_under_a_launcher(self):
        program = Copy.folder / "examples/04_dataset_from_function"
        for options, words, says in (("", ["--ranks", "2"], "--ranks under a launcher"),
                                     ("", [], "does not divide by 7")):
            result = call(mpirun(2 if words else 7, program=program) + words)
            self.assert_ends(result, 2)
            errors = [line for line in result.err.splitlines() if ": error: " in line]
            self.assertEqual(len(errors), 1, str(result))
            self.assertIn(says, errors[0])


class Consumer(CommandTest):

    @unsanitized("what is installed is for consumers without one")
    def test_three_lines_and_every_header_alone(self):
        source, folder = Copy.folder / "consumer", Copy.folder / "consumer-build"
        (source / "headers").mkdir(parents=True)
        (source / "CMakeLists.txt").write_text(CONSUMER)
        (source / "consumer.cpp").write_text(PROGRAM)
        include = Copy.prefix / "include"
        headers = [path.relative_to(include) for path in include.rglob("*.hpp")]
        self.assertLess(len(headers), 49)  # the public API and what it includes
        for header in headers:
            name = str(header).replace("/", "_").replace(".hpp", ".cpp")
            (source / "headers" / name).write_text(f"#include <{header}>\n" * 2)
        (source / "headers/plot_of_a_run.cpp").write_text(PLOT)
        build(source, folder, "consumer", "headers")
        result = call([str(folder / "consumer"), "--ranks", "2"])
        self.assert_ends(result, 0)
        self.assertEqual(sorted(result.out.splitlines()), ["rank 0", "rank 1"])

    @unsanitized("the same headers as without")
    def test_the_first_error_of_a_wrong_program_is_a_sentence(self):
        folder = Copy.folder / "mistakes"
        folder.mkdir()
        names = [f"mistake{i}" for i in range(len(MISTAKES))]
        (folder / "CMakeLists.txt").write_text(NAMES.replace("names.cpp", " ".join(f"{n}.cpp" for n in names)))
        for name, (text, _) in zip(names, MISTAKES, strict=True):
            (folder / f"{name}.cpp").write_text(
                "#include <lockstep/lockstep.hpp>\nusing namespace lockstep;\n"
                f"void wrong(Strategy& s, PerReplica<Tensor<float>>& v) {{\n{text}\n(void)s, (void)v;\n}}\n")
        configure(folder, folder / "build")
        out = cmake("--build", folder / "build", "--", "-k", "0", code=1).out
        for name, (text, says) in zip(names, MISTAKES, strict=True):
            errors = [line for line in out.split(f"{name}.cpp.o \n")[-1].splitlines() if "error: " in line]
            self.assertIn(says, errors[0], text)

    @unsanitized("the same headers as without")
    def test_no_name_clashes_with_std(self):
        """`using namespace lockstep; using namespace std;`: each name that the headers mention is
        looked up in both namespaces. std::data(v) is written with std:: beside our namespace data."""
        include, folder = Copy.prefix / "include", Copy.folder / "names"
        folder.mkdir()
        headers = sorted(path.relative_to(include) for path in include.rglob("*.hpp"))
        text = "".join((include / header).read_text() for header in headers)
        names = sorted(set(re.findall(r"\b[A-Za-z]\w+\b", re.sub(r"//.*", "", text))))
        lines = ["#include <bits/stdc++.h>", *(f"#include <{header}>" for header in headers)]
        first = len(lines) + 1
        for i, name in enumerate(names):
            lines += [f"namespace ours{i} {{ using lockstep::{name}; }}", f"namespace std{i} {{ using std::{name}; }}"]
        (folder / "names.cpp").write_text("\n".join(lines) + "\n")
        (folder / "CMakeLists.txt").write_text(NAMES)
        configure(folder, folder / "build")
        result = cmake("--build", folder / "build", code=1)
        unknown = set()
        for line, error in re.findall(r"names.cpp:(\d+):\d+: error: (.*)", result.out):
            self.assertGreaterEqual(int(line), first, error)
            if "may not name namespace" not in error:
                unknown.add(int(line) - first)
        clashes = {name for i, name in enumerate(names) if not unknown & {2 * i, 2 * i + 1}}
        self.assertEqual(clashes, {"data"})

    def test_only_one_name_is_taken_and_no_path_of_the_tree(self):
        self.assertEqual(os.listdir(Copy.prefix / "include"), ["lockstep"])
        for path in Copy.prefix.rglob("*"):
            self.assertFalse(path.name.endswith("-inl.hpp"), path)
            if path.suffix not in (".hpp", ".cmake"):
                continue
            text = path.read_text()
            self.assertNotIn(str(command.REPOSITORY), text, path)
            self.assertNotIn(str(Copy.folder), text, path)
            for name in re.findall(r'#include "([^"]*)"', text):
                self.assertTrue(name.startswith("lockstep/"), f"{path}: {name}")
                self.assertTrue((Copy.prefix / "include" / name).is_file(), f"{path}: {name}")

    def test_headers_name_only_files_that_are_installed(self):
        include, documents = Copy.prefix / "include/lockstep", Copy.prefix / "share/doc/lockstep"
        headers = {str(path.relative_to(include)) for path in include.rglob("*.hpp")}
        known = headers | {Path(name).name for name in headers}
        known |= {str(path.relative_to(documents)) for path in documents.rglob("*.md")}
        for header in sorted(headers):
            for name in re.findall(r"[\w/.-]+\.(?:hpp|cpp|cuh?|md)\b", (include / header).read_text()):
                self.assertIn(name.removeprefix("lockstep/"), known, header)

    def test_documents_name_only_files_that_are_installed(self):
        """Or, as README.md says, files of the source tree: its tests, scripts and sources."""
        documents = Copy.prefix / "share/doc/lockstep"
        pages = sorted(documents.rglob("*.md"))
        self.assertGreater(len(pages), 10)
        for page in pages:
            text = page.read_text()
            for link in re.findall(r"\]\(([^)#:]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
                self.assertTrue((page.parent / link).exists(), f"{page}: {link}")
            for name in re.findall(r"(?<![\w/.-])(?:apps|configs|data|lib|scripts|tests)/[\w/.-]*\w", text):
                if name.startswith(("scripts/", "tests/")) or name.endswith((".hpp", ".cpp")) and "examples" not in name:
                    there = command.REPOSITORY / name
                else:
                    there = documents / name
                self.assertTrue(there.exists(), f"{page}: {name}")

    def test_the_command_and_the_documents(self):
        result = call([str(Copy.prefix / "bin/lockstep"), "--version"])
        self.assert_ends(result, 0)
        self.assertRegex(result.out, r"^\d+\.\d+\.\d+\n$")
        for name in ("LICENSE", "README.md", "apps/examples/CMakeLists.txt", "apps/examples/01_tutorial.cpp",
                     "apps/guides/newcomer.md", "configs/tutorial.toml",
                     "lib/README.md", "lib/nn/README.md"):
            self.assertTrue((Copy.prefix / "share/doc/lockstep" / name).is_file(), name)
        for script in ("bash-completion/completions/lockstep", "zsh/site-functions/_lockstep",
                       "fish/vendor_completions.d/lockstep.fish"):
            self.assertIn("label-column", (Copy.prefix / "share" / script).read_text(), script)

    def test_another_version_or_part_is_refused(self):
        for asked, says in (("0.2", "version: 0.1"), ("1.0", "version: 0.1"),
                            ("0.1 COMPONENTS gardening", "gardening")):
            folder = self.folder / asked.replace(" ", "-")
            folder.mkdir()
            (folder / "CMakeLists.txt").write_text(
                "cmake_minimum_required(VERSION 3.25)\nproject(other LANGUAGES CXX)\n"
                f"find_package(lockstep {asked} REQUIRED)\n")
            result = configure(folder, folder / "build", code=1)
            self.assertIn(says, result.err)


class Docs(CommandTest):

    @unittest.skipUnless(shutil.which("doxygen"), "no doxygen: scripts/install.sh brings it")
    @unsanitized("the same headers as without")
    def test_headers_give_pages_without_a_warning(self):
        cmake("--build", command.binary.parent, "--target", "docs")
        page = command.binary.parent / "docs/html/index.html"
        self.assertTrue(page.is_file())


if __name__ == "__main__":
    unittest.main()
