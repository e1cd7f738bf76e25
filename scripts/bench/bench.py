#!/usr/bin/env python3
"""Measures Lockstep alone and beside its peers: scripts/bench.sh, which builds it first.

Prints Markdown tables and appends the figures as a line of JSON to scripts/bench/results.jsonl.
"""
import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "peers"))
import compare
import higgs
import readers
from compare import LOCKSTEP, MPIRUN, has, output_of

PARTS = ["collectives", "step", "precision", "peers", "table", "reading"]


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/bench.sh", description=__doc__)
    parser.add_argument("venv", nargs="?", type=pathlib.Path,
                        help="the folder of scripts/peers/install.sh; without: no peers")
    parser.add_argument("--short", action="store_true", help="a minute or two, to see that it runs")
    parser.add_argument("--rounds", type=int, help="of peers and tables [3; short: 1]")
    parser.add_argument("--parts", default=",".join(PARTS), help=",".join(PARTS))
    parser.add_argument("--data", help="folder of IDX files of MNIST's shape [drawn digits]")
    parser.add_argument("--figure", type=pathlib.Path, help="draw the roofline of 2 ranks at 512 [short: 128]: *.svg or *.png")
    parser.add_argument("--no-record", action="store_true", help="leave results.jsonl as it is")
    higgs.add_flags(parser)
    a = parser.parse_args()
    a.rounds = a.rounds or (1 if a.short else 3)
    a.parts = a.parts.split(",")
    unknown = sorted(set(a.parts) - set(PARTS))
    if unknown:
        parser.error(f"--parts: {unknown[0]} is none of {','.join(PARTS)}")
    if a.venv is not None and not (a.venv / "bin" / "python").exists():
        parser.error(f"{a.venv}: not a folder of scripts/peers/install.sh")
    if a.data and not pathlib.Path(a.data).is_dir():
        parser.error(f"--data: {a.data} is not a folder")
    if a.figure and "step" not in a.parts:
        parser.error("--figure: is of the part step")
    if a.figure and (a.figure.suffix not in (".svg", ".png") or not a.figure.parent.is_dir()):
        parser.error(f"--figure: {a.figure} is not *.svg or *.png in a folder that exists")
    if a.short:
        a.records = min(a.records, 20_000)
    return a


def processor():
    lines = open("/proc/cpuinfo").read().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def commit():
    def git(*words):
        return subprocess.run(["git", "-C", HERE, *words], capture_output=True, text=True).stdout
    changed = "+" if git("status", "--porcelain", "--untracked-files=no").strip() else ""
    return git("rev-parse", "--short=12", "HEAD").strip() + changed


def warn_of_load():
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"bench: the load is {load:.1f}: other work runs here, so that only ratios of "
              "interleaved runs count (scripts/bench/METHOD.md)", file=sys.stderr)


# lockstep bench collectives

def collectives(a):
    words = ["--max-bytes", "1M"] if a.short else []
    found = json.loads(output_of([*MPIRUN, LOCKSTEP, "bench", "collectives", "--json", "--rounds",
                                  5 if a.short else 15, *words]))
    def best(result):
        return min(place["seconds"] for place in (result["out_of_place"], result["in_place"])
                   if place)
    figures = {}
    for result in found["results"]:
        by_size = figures.setdefault(result["operation"], {}).setdefault(result["bytes"], {})
        name = "MPI itself" if result["backend"].startswith("MPI_") else result["backend"]
        by_size[name] = best(result)
    if a.venv is not None and has(a.venv, "torch"):
        add_gloo(a, figures)
    return figures


def add_gloo(a, figures):
    """The same of PyTorch's gloo."""
    sizes = ",".join(str(size) for size in next(iter(figures.values())))
    out = output_of([a.venv / "bin" / "torchrun", "--nproc-per-node", 2,
                     HERE.parent / "peers" / "gloo_peer.py", "--bytes", sizes])
    for operation, times in json.loads(out.splitlines()[-1]).items():
        for size, seconds in times.items():
            figures[operation][int(size)]["gloo"] = seconds


def collectives_table(figures):
    backends = list(next(iter(next(iter(figures.values())).values())))
    def microseconds(times, name):
        return f"{1e6 * times[name]:,.2f}" if name in times else ""
    lines = ["| microseconds, 2 ranks | bytes | " + " | ".join(backends) +
             f" | {backends[0]} / MPI itself |", "| --- " * (len(backends) + 3) + "|"]
    for operation, sizes in figures.items():
        for size, times in sizes.items():
            cells = [microseconds(times, name) for name in backends]
            ratio = times[backends[0]] / times["MPI itself"]
            lines.append(f"| {operation} | {size:,} | " + " | ".join(cells) + f" | {ratio:.2f} |")
    return "\n".join(lines)


# lockstep bench step

CANONICAL, DENSE, ALLREDUCE = "canonical", "--zeros dense", "--reduction allreduce"
SHARED = "--mesh model=2"
AVX2 = "--simd avx2"
AVX2_ALLREDUCE = f"{ALLREDUCE}, AVX2"


def variants(ranks):
    """{name: (flags, environment)}; those held to AVX2 only where there is more. 2 ranks have all
    that 1 has."""
    found = {CANONICAL: ([], {}), DENSE: (["--zeros", "dense"], {})}
    if ranks == 2:
        found[SHARED] = (["--mesh", "model=2"], {})
    found[ALLREDUCE] = (["--reduction", "allreduce"], {})
    if "avx512f" in open("/proc/cpuinfo").read():
        found[AVX2] = (["--simd", "avx2"], {})
        found[AVX2_ALLREDUCE] = (["--reduction", "allreduce"], {"DNNL_MAX_CPU_ISA": "AVX2"})
    return found


def step(a):
    """{"ranks, batch": {variant: what `bench step` says in its median run}}, and of 2 ranks what
    `plan --predict` makes of 1."""
    figures = {}
    for ranks in (1, 2):
        for batch in (128,) if a.short else (32, 128, 512, 1024, 4096):
            flags = ["--threads", 1, "--rounds", 3, "--batch-size", batch, "--json"]
            if a.data:
                flags += ["--data", a.data]
            runs = {name: [] for name in variants(ranks)}
            for _ in range(a.rounds):
                for name, (more, environment) in variants(ranks).items():
                    runs[name].append(json.loads(output_of(
                        [*(MPIRUN if ranks == 2 else []), LOCKSTEP, "bench", "step", *flags, *more],
                        environment=environment)))
            figures[f"{ranks}, {batch}"] = of = {
                name: sorted(found, key=lambda run: run["step_seconds"])[len(found) // 2]
                for name, found in runs.items()}
            if ranks == 2:
                of["predicted"] = predicted(figures[f"1, {batch}"][CANONICAL])
    if a.figure:
        output_of([*MPIRUN, LOCKSTEP, "bench", "step", "--threads", 1, "--roofline", a.figure,
                   "--batch-size", 128 if a.short else 512, *(["--data", a.data] if a.data else [])])
    return figures


def predicted(one_rank):
    """Seconds of 2 ranks, of `plan --predict`."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(one_rank, file)
        file.flush()
        found = json.loads(output_of([LOCKSTEP, "plan", "--predict", file.name, "--ranks", 2,
                                      "--ranks-a-host", 2, "--json"]))
    of_two = found["ranks"][-1]["same_batch"]
    return of_two["compute_seconds"] + of_two["communication_seconds"]


def step_table(figures):
    lines = ["| ranks, batch | step | forward | backward | other phases | limit / step |"
             f" {DENSE} | limit / step | dense / step | 2 ranks as predicted of 1 |",
             "| --- " * 10 + "|"]
    for name, of in figures.items():
        found, dense = of[CANONICAL], of[DENSE]
        phases, whole = found["phases"], found["step_seconds"]
        products = phases["forward"]["seconds"] + phases["backward"]["seconds"]
        lines.append(
            f"| {name} | {1e3 * whole:.3f} ms | "
            + " | ".join(f"{phases[phase]['share_of_peak']:.0%} of the peak" for phase in
                         ("forward", "backward"))
            + f" | {1 - products / whole:.0%} of the step | {found['limit']['share']:.2f} | "
            f"{1e3 * dense['step_seconds']:.3f} ms | {dense['limit']['share']:.2f} | "
            f"{dense['step_seconds'] / whole:.2f} | "
            + (f"{1e3 * of['predicted']:.3f} ms |" if "predicted" in of else "|"))
    return "\n".join(lines) + "\n\n" + reduction_table(figures)


def reduction_table(figures):
    pairs = [(SHARED, CANONICAL), (CANONICAL, ALLREDUCE), (DENSE, ALLREDUCE),
             (AVX2, AVX2_ALLREDUCE)]
    names = variants(ranks=2)
    pairs = [pair for pair in pairs if pair[0] in names]
    lines = ["| ranks, batch, ms | " + " | ".join(names) + " | "
             + " | ".join(f"{one} / {other}" for one, other in pairs) + " |",
             "| --- " * (1 + len(names) + len(pairs)) + "|"]
    for name, of in figures.items():
        seconds = {variant: of[variant]["step_seconds"] for variant in names if variant in of}
        cells = [f"{1e3 * seconds[one]:.3f}" if one in seconds else "" for one in names]
        cells += [f"{seconds[one] / seconds[other]:.2f}" if one in seconds else ""
                  for one, other in pairs]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(lines)


def step_record(figures):
    """What is kept of them: seconds, and the limits."""
    def kept(variant, found):
        if variant == "predicted":
            return found
        seconds = {phase: of["seconds"] for phase, of in found["phases"].items()}
        record = {"step_seconds": found["step_seconds"], "seconds": seconds}
        if variant == AVX2_ALLREDUCE:  # the peak is of wider vectors
            return record
        return record | {"peak": found["peak"], "limit": found["limit"]}
    return {name: {variant: kept(variant, found) for variant, found in of.items()}
            for name, of in figures.items()}


def digits(a):
    """The folder of digits that is trained on."""
    data = a.data
    if data is None:
        data = HERE.parent.parent / "build" / "bench-digits"
        if not data.exists():
            part = data.with_suffix(".part")  # an interrupted run leaves no folder that looks whole
            shutil.rmtree(part, ignore_errors=True)
            output_of([LOCKSTEP, "generate", part])
            part.rename(data)
    return data


# lockstep train --precision

def precision(a):
    """{precision: {"batch N": examples/s of 2 ranks, "accuracy": after three epochs}}."""
    precisions, sizes = ("float32", "bf16"), (128,) if a.short else (128, 512, 4096)
    rates = {(name, size): [] for name in precisions for size in sizes}
    for _ in range(a.rounds):
        for name, size in rates:
            run = compare.lockstep(MPIRUN, "--precision", name)
            steps = compare.steps_of(100 if a.short else 300, size, "700,500")
            rates[name, size].append(run(digits(a), steps, size, "700,500")["examples_per_second"])
    found = {name: {f"batch {size}": statistics.median(rates[name, size]) for size in sizes}
             for name in precisions}
    for name in precisions:
        with tempfile.TemporaryDirectory() as folder:
            run = pathlib.Path(folder) / "run"
            output_of([*MPIRUN, LOCKSTEP, "train", "--data", digits(a), "--precision", name,
                       "--epochs", 1 if a.short else 3, "--run-dir", run])
            summary = json.loads((run / "summary.json").read_text())
        found[name]["accuracy"] = summary["epochs"][-1]["test_accuracy"]
    return found


def precision_table(figures):
    columns = list(next(iter(figures.values())))[:-1]
    lines = ["| examples/s, 2 ranks | " + " | ".join(columns) + " | test accuracy |",
             "| --- " * (len(columns) + 2) + "|"]
    for name, of in figures.items():
        lines.append(f"| {name} | " + " | ".join(f"{of[column]:,.0f}" for column in columns) +
                     f" | {of['accuracy']:.2%} |")
    return "\n".join(lines)


# Beside peers

def peers(a):
    sizes = "128" if a.short else "32,128,512,4096"
    works = compare.works_of(sizes, "" if a.short else "2048,2048,2048")
    steps = 100 if a.short else 300
    return compare.medians(compare.measure(a.venv, digits(a), works, a.rounds, steps))


def rounded(value):
    """Four digits of every number: the file stays small."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {str(key): rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, (list, tuple)) else value


def main():
    a = arguments()
    warn_of_load()
    record = {"commit": commit(), "date": time.strftime("%Y-%m-%d"), "processor": processor(),
              "cores": len(os.sched_getaffinity(0)), "short": a.short, "rounds": a.rounds,
              "asked": a.parts}
    print(f"On {record['cores']} cores of a {record['processor']}, commit {record['commit']}:")
    measures = {"collectives": (collectives, collectives_table, dict),
                "step": (step, step_table, step_record),
                "precision": (precision, precision_table, dict),
                "peers": (peers, compare.table, dict),
                "table": (lambda a: higgs.measure(a.venv, a), lambda f: higgs.table(f, a), dict),
                "reading": (lambda a: readers.measure(a.venv, a.rounds), readers.table, dict)}
    try:
        for part in PARTS:
            if part not in a.parts:
                continue
            if part in ("peers", "table", "reading") and a.venv is None:
                print(f"bench: {part} left out: no folder of scripts/peers/install.sh is given",
                      file=sys.stderr)
                continue
            measure, table, kept = measures[part]
            figures = measure(a)
            record[part] = kept(figures)
            print(f"\n{table(figures)}", flush=True)
    finally:  # of a run that ends early, too
        if not a.no_record and any(part in record for part in PARTS):
            with open(HERE / "results.jsonl", "a") as file:
                file.write(json.dumps(rounded(record)) + "\n")


if __name__ == "__main__":
    main()
