#!/usr/bin/env bash
# Installs what is missing, builds presets and runs their tests; a warning is an error with CI=true.
#   scripts/test.sh [PRESET...]     dev and aarch64, unless others are given: release, asan, tsan, fuzz, cuda; CI tests
#                                   all but tsan
#   scripts/test.sh --all           every preset, the tests labelled slow as well, and minutes of fuzzing
# dev takes 15 to 20 minutes on two cores, from nothing, aarch64 3. The last line is `N passed, N failed`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

presets=("$@")
selection=(--label-exclude '^slow$')
fuzz_seconds=4  # a crash that few seconds find is news
[ $# -gt 0 ] || presets=(dev aarch64)
if [ "$*" = --all ]; then presets=(dev release asan tsan fuzz cuda aarch64) selection=() fuzz_seconds=120; fi
for preset in "${presets[@]}"; do
  if [[ ! $preset =~ ^(dev|release|asan|tsan|fuzz|cuda|aarch64)$ ]]; then
    echo "usage: scripts/test.sh [dev|release|asan|tsan|fuzz|cuda|aarch64]... | --all" >&2
    exit 2
  fi
done
scripts/install.sh
unset "${!SLURM_@}" "${!PMI@}" "${!OMPI_COMM_@}"  # of a job that this script runs in: tests are jobs of their own

passed=0 failed=0
notes=()  # what the closing summary says

build() {  # build PRESET [TARGET...]
  local preset=$1 options=()
  shift
  # Not under sanitizers, where g++ 12 takes parts of its own <regex> for uninitialised.
  if [[ $preset =~ ^(dev|cuda|aarch64)$ ]] && [ "${CI-}" = true ]; then options=(-DLOCKSTEP_WERROR=ON); fi
  printf '\n== %s: build\n' "$preset"
  cmake --preset "$preset" --log-level=WARNING "${options[@]}" &&
    cmake --build --preset "$preset" "${@/#/--target=}" && return
  failed=$((failed + 1))
  notes+=("$preset: FAILED to build")
  return 1
}

# Prints "passed failed" of a JUnit file, then a line for each test that failed, or of which all or a part was skipped.
results() {
  python3 - "$1" "$2" <<'PYTHON'
import sys, xml.etree.ElementTree as xml
preset, cases, notes = sys.argv[1], xml.parse(sys.argv[2]).getroot().findall("testcase"), []
for case in cases:
    output = (case.findtext("system-out") or "").strip().splitlines()
    if case.get("status") == "run":
        parts = sorted({line.strip() for line in output if line.strip().startswith("SKIPPED")})
        notes += [f"{preset}: {case.get('name')}: {part}" for part in parts]
        continue
    said = [line for line in output if "SKIP" in line.upper()] or output[-1:] or ["(not run)"]
    word = "FAILED" if case.get("status") == "fail" else "skipped"
    notes.append(f"{preset}: {word} {case.get('name')}" + (f": {said[0].strip()}" if word == "skipped" else ""))
print(sum(case.get("status") == "run" for case in cases), sum(case.get("status") == "fail" for case in cases))
print("\n".join(notes), end="")
PYTHON
}

run_tests() {  # run_tests PRESET CTEST_OPTION...: counts what passed and failed
  local preset=$1 junit=$PWD/build/$1/junit.xml code=0 good=0 bad=0
  shift
  printf '\n== %s: test\n' "$preset"
  rm -f "$junit"
  # All of the output: a suite prints last what it skipped.
  ctest --preset "$preset" "$@" --test-output-size-passed 10000000 --output-junit "$junit" || code=$?
  { read -r good bad && mapfile -t -O "${#notes[@]}" notes; } < <(results "$preset" "$junit") || true
  if [ "${bad:-0}" -eq 0 ] && [ "$code" -ne 0 ]; then  # no tests at all, or ctest itself fell over
    bad=1
    notes+=("$preset: FAILED, ctest ended with $code")
  fi
  passed=$((passed + ${good:-0})) failed=$((failed + bad))
  notes+=("$preset: ${good:-0} passed, $bad failed")
}

skip() {  # skip REASON: of a whole preset for want of what install.sh brings, which fails in CI
  notes+=("skipped $1")
  if [ "${CI-}" = true ]; then failed=$((failed + 1)); fi
}

release() {  # what users run: it has no tests of its own
  if build dev lockstep && build release lockstep; then
    if python3 tests/end_to_end/run.py build/release/lockstep builds_test.py Release; then
      passed=$((passed + 1))
      notes+=("release: passed, it trains dev's weights")
    else
      failed=$((failed + 1))
      notes+=("release: FAILED, it does not train dev's weights")
    fi
  fi
}

fuzz() {
  if ! command -v clang++-16 >/dev/null; then
    skip "fuzz: no clang++-16 (scripts/install.sh brings it)"
    return
  fi
  build fuzz || return 0
  printf '\n== fuzz: %s s for each reader\n' "$fuzz_seconds"
  if tests/fuzz/run.sh "$fuzz_seconds"; then
    passed=$((passed + 1))
    notes+=("fuzz: passed, $fuzz_seconds s for each reader")
  else
    failed=$((failed + 1))
    notes+=("fuzz: FAILED")
  fi
}

cuda() {  # without a device its tests are skipped, and say so
  PATH=$PATH:/usr/local/cuda/bin
  if ! command -v nvcc >/dev/null; then
    notes+=("cuda: skipped, no nvcc")  # which no package of Debian brings
  elif build cuda lockstep gpu_tests; then
    run_tests cuda --label-regex '^gpu$'
  fi
}

aarch64() {  # under qemu, beside the runs of dev's build
  if ! command -v aarch64-linux-gnu-g++ >/dev/null || ! command -v qemu-aarch64 >/dev/null; then
    skip "aarch64: no aarch64-linux-gnu-g++ or no qemu-aarch64 (scripts/install.sh brings them)"
  elif ! scripts/aarch64_sysroot.sh build/aarch64-sysroot; then
    notes+=("aarch64: skipped, no libraries for arm64: scripts/aarch64_sysroot.sh downloads them, CI may have no network")
  elif build dev lockstep && build aarch64 lockstep unit_kernels; then
    run_tests aarch64 --parallel "$(nproc)" "${selection[@]}"
  fi
}

for preset in "${presets[@]}"; do
  case $preset in
    release) release ;;
    fuzz) fuzz ;;
    aarch64) aarch64 ;;
    cuda) cuda ;;
    *) if build "$preset"; then run_tests "$preset" --parallel "$(nproc)" "${selection[@]}"; fi ;;
  esac
done
[ ${#selection[@]} -eq 0 ] || notes+=("tests labelled slow: skipped, they run with --all")

printf '\n== summary\n'
printf '%s\n' "${notes[@]}"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
