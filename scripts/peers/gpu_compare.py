#!/usr/bin/env python3
"""Lockstep beside PyTorch on one GPU, same files and network, interleaved in one run.

  scripts/peers/gpu_compare.py --lockstep build/gpu/lockstep [--python FOLDER/bin/python] [--rounds 3] [--compile off]
  scripts/peers/gpu_compare.py --show FILE          the table of measurements that --save wrote

Writes the built-in data set once, runs every contender in turn, ROUNDS times over, and prints a
Markdown table of medians. Examples/s are a batch over the median step; the first steps do not count.
"of peak" is what the step's products need, over the device's peak in float32 outside its matrix
units. What could not be measured is named below the table, with the reason. Nothing else should run
meanwhile. Exit code 1 where a contender failed.
"""
import argparse
import ctypes
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77
PEER = "PyTorch"
FLAGS = {
    "Lockstep": [],  # canonical, by strict products
    "Lockstep, allreduce": ["--reduction", "allreduce"],
}
STEPS = {128: 1000, 1024: 400, 16384: 60}


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lockstep", type=pathlib.Path, help="the command, built with CUDA")
    parser.add_argument("--python", help="an interpreter that has PyTorch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-sizes", default="128,1024,16384")
    parser.add_argument("--networks", default="700,500 4096,4096,4096", help="--layers, by spaces")
    parser.add_argument("--precision", choices=["float32", "tf32", "bf16"], default="float32")
    parser.add_argument("--compile", choices=["auto", "on", "off"], default="auto",
                        help="torch.compile of PyTorch's network, whose autotuning takes a minute a case")
    parser.add_argument("--save", type=pathlib.Path, help="writes the measurements as JSON")
    parser.add_argument("--show", type=pathlib.Path)
    a = parser.parse_args()
    if not (a.show or a.lockstep):
        parser.error("--lockstep PATH is missing")
    return a


def step_flops(layers, batch_size):
    """Of the products of a step: three for each layer, but for the first one's input gradient."""
    widths = [784, *map(int, layers.split(",")), 10]
    weights = [n_in * n_out for n_in, n_out in zip(widths, widths[1:])]
    return batch_size * (6 * sum(weights) - 2 * weights[0])


def device():
    """(Name, peak of device 0 in float32, in FLOP/s), asked of the driver."""
    driver = ctypes.CDLL("libcuda.so.1")
    handle, name = ctypes.c_int(), ctypes.create_string_buffer(100)
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(handle), 0):
        sys.exit("gpu_compare: the CUDA driver shows no device")
    driver.cuDeviceGetName(name, 100, handle)

    def attribute(number):
        value = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(value), number, handle)
        return value.value
    kilohertz, processors, major, minor = map(attribute, (13, 16, 75, 76))
    lanes = 64 if (major, minor) in [(6, 0), (7, 0), (7, 2), (7, 5), (8, 0)] else 128
    return name.value.decode(), 2 * lanes * processors * kilohertz * 1e3


def ended(command, limit=900):
    """(Exit code, output, the last line of what it complained of.)"""
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                              timeout=limit)
    except subprocess.TimeoutExpired:
        return 1, "", f"no end after {limit} s"
    said = (done.stderr.strip() or done.stdout.strip() or "no words").splitlines()
    return done.returncode, done.stdout, next((s for s in said if "error" in s.lower()), said[-1])


def lockstep(a, flags, data, layers, batch_size, steps):
    """Examples/s, or (exit code, reason)."""
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        code, _, reason = ended(
            [a.lockstep, "train", "--device", "cuda", "--data", data, "--layers", layers,
             "--batch-size", batch_size, "--steps", steps, "--epochs", 100000, "--shuffle", "none",
             "--drop-remainder", "--test-limit", 100, "--precision", a.precision,
             "--progress", "off", "--run-dir", run, *flags])
        if code != 0:
            return code, reason
        return batch_size / json.loads((run / "summary.json").read_text())["step_seconds"]["median"]


def torch(a, data, layers, batch_size, steps):
    """Likewise."""
    if not a.python:
        return SKIPPED, "no interpreter with PyTorch was named (--python)"
    code, output, reason = ended([a.python, HERE / "torch_gpu_peer.py", "--data", data, "--layers",
                                  layers, "--batch-size", batch_size, "--steps", steps,
                                  "--precision", a.precision, "--compile", a.compile])
    if code != 0:
        return code, reason
    result = json.loads(output.splitlines()[-1])
    a.peer = f"PyTorch {result['torch']}, {'compiled' if result['compiled'] else 'not compiled'}"
    return result["examples_per_second"]


def measure(a):
    """What `print_table` takes: device, peak, and for every case the rates or the failure."""
    name, peak = device()
    cases = {}
    a.peer = PEER
    with tempfile.TemporaryDirectory() as data:
        code, _, reason = ended([a.lockstep, "generate", data])
        if code != 0:
            sys.exit(f"gpu_compare: lockstep generate: {reason}")
        for _ in range(a.rounds):
            for layers in a.networks.split():
                for batch_size in map(int, a.batch_sizes.split(",")):
                    steps = STEPS.get(batch_size, 200)
                    job = (data, layers, batch_size, steps)
                    contenders = {PEER: lambda: torch(a, *job)}
                    for trainer, flags in FLAGS.items():
                        if not flags and a.precision != "float32":
                            continue  # strict products know no other
                        contenders[trainer] = lambda flags=flags: lockstep(a, flags, *job)
                    for trainer, run in contenders.items():
                        case = cases.setdefault((layers, batch_size, trainer),
                                                {"rates": [], "code": 0, "reason": ""})
                        if case["code"] != 0:
                            continue  # it would fail again
                        result = run()
                        if isinstance(result, tuple):
                            case["code"], case["reason"] = result
                        else:
                            case["rates"].append(result)
                        print(f"{layers}, batch {batch_size}, {trainer}: {result}", file=sys.stderr)
    rows = [{"layers": key[0], "batch": key[1], "trainer": key[2], **case}
            for key, case in cases.items()]
    return {"device": name, "peak": peak, "precision": a.precision, "peer": a.peer,
            "rounds": a.rounds, "cases": rows}


def duration(seconds):
    return f"{seconds * 1e6:,.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:,.2f} ms"


def print_table(found):
    print(f"{found['device']}, {found['peak'] / 1e12:.1f} TFLOP/s in float32; precision "
          f"{found['precision']}; {found['peer']}; medians of {found['rounds']} interleaved rounds.\n")
    print("| layers | batch | trainer | examples/s | step | to PyTorch | of peak |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    rates = {(c["layers"], c["batch"], c["trainer"]): statistics.median(c["rates"])
             for c in found["cases"] if c["code"] == 0 and c["rates"]}
    for (layers, batch, trainer), rate in rates.items():
        peer = rates.get((layers, batch, PEER))
        ratio = f"{rate / peer:.2f}" if peer else "-"
        share = step_flops(layers, batch) * rate / batch / found["peak"]
        print(f"| {layers} | {batch:,} | {trainer} | {rate:,.0f} | {duration(batch / rate)} | "
              f"{ratio} | {share:.1%} |")
    missing = [c for c in found["cases"] if c["code"] != 0 or not c["rates"]]
    if missing:
        print("\nNot measured:\n")
    for case in missing:
        print(f"* {case['layers']}, batch {case['batch']:,}, {case['trainer']}: exit code "
              f"{case['code']}, {case['reason']}")


def main():
    a = arguments()
    found = json.loads(a.show.read_text()) if a.show else measure(a)
    if a.save:
        a.save.write_text(json.dumps(found, indent=1))
    print_table(found)
    sys.exit(1 if any(c["code"] not in (0, SKIPPED) for c in found["cases"]) else 0)


if __name__ == "__main__":
    main()
