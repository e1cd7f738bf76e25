#!/usr/bin/env bash
# Installs what is missing, builds and tests the presets dev and asan, and fuzzes the readers of data. Where there is a
# toolkit, builds cuda, whose tests are skipped without a device.
#   scripts/test.sh             20 to 40 minutes on two cores, by their speed and what ccache holds
#   scripts/test.sh --all       tsan as well, the tests labelled slow, and minutes of fuzzing
# With CI=true a warning in dev and cuda is an error. The last line is `N passed, N failed`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

presets=(dev asan)
selection=(--label-exclude '^slow$')
case "${1-}" in
  '') ;;
  --all) presets+=(tsan) selection=() ;;
  *) echo "usage: scripts/test.sh [--all]" >&2; exit 2 ;;
esac
scripts/install.sh

passed=0 failed=0
notes=()  # what the closing summary says

build() {  # build PRESET [TARGET...]
  local preset=$1 options=()
  shift
  # Not under sanitizers, where g++ 12 takes parts of its own <regex> for uninitialised.
  if [[ $preset =~ ^(dev|cuda)$ ]] && [ "${CI-}" = true ]; then options=(-DLOCKSTEP_WERROR=ON); fi
  printf '\n== %s: build\n' "$preset"
  cmake --preset "$preset" --log-level=WARNING "${options[@]}" &&
    cmake --build --preset "$preset" "${@/#/--target=}" && return
  failed=$((failed + 1))
  notes+=("$preset: FAILED to build")
  return 1
}

# Prints "passed failed" of a JUnit file, then a line for each test that failed or was skipped, with its last words.
results() {
  python3 - "$1" "$2" <<'PYTHON'
import sys, xml.etree.ElementTree as xml
preset, cases, notes = sys.argv[1], xml.parse(sys.argv[2]).getroot().findall("testcase"), []
for case in cases:
    if case.get("status") == "run":
        continue
    output = (case.findtext("system-out") or "").strip().splitlines()
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
  ctest --preset "$preset" "$@" --output-junit "$junit" || code=$?
  { read -r good bad && mapfile -t -O "${#notes[@]}" notes; } < <(results "$preset" "$junit") || true
  if [ "${bad:-0}" -eq 0 ] && [ "$code" -ne 0 ]; then  # no tests at all, or ctest itself fell over
    bad=1
    notes+=("$preset: FAILED, ctest ended with $code")
  fi
  passed=$((passed + ${good:-0})) failed=$((failed + bad))
  notes+=("$preset: ${good:-0} passed, $bad failed")
}

for preset in "${presets[@]}"; do
  build "$preset" || continue
  run_tests "$preset" --parallel "$(nproc)" "${selection[@]}"
done
[ ${#selection[@]} -eq 0 ] || notes+=("slow and tsan: skipped, they run with --all")

# A crash that few seconds find is news; minutes of every reader come with --all.
fuzz_seconds=4
[ ${#selection[@]} -gt 0 ] || fuzz_seconds=120
if ! command -v clang++-16 >/dev/null; then
  notes+=("fuzz: skipped, no clang++-16 (scripts/install.sh brings it)")
elif build fuzz; then
  printf '\n== fuzz: %s s for each reader\n' "$fuzz_seconds"
  if tests/fuzz/run.sh "$fuzz_seconds"; then
    passed=$((passed + 1))
    notes+=("fuzz: passed, $fuzz_seconds s for each reader")
  else
    failed=$((failed + 1))
    notes+=("fuzz: FAILED")
  fi
fi

PATH=$PATH:/usr/local/cuda/bin
if command -v nvcc >/dev/null; then
  build cuda lockstep gpu_tests && run_tests cuda --label-regex '^gpu$'
else
  notes+=("cuda: skipped, no nvcc")
fi

printf '\n== summary\n'
printf '%s\n' "${notes[@]}"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
