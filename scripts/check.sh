#!/usr/bin/env bash
# The one definition of clean, for the hook and for CI: format, clang-tidy, direction of includes, house rules.
#   scripts/check.sh            every file that git tracks or would track
#   scripts/check.sh --staged   only what is staged: what the pre-commit hook runs
# clang-tidy needs a configured build/dev (cmake --preset dev). Changes nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

git() { command git -c core.quotePath=false "$@"; }
list=(git ls-files --cached --others --exclude-standard)
case "${1-}" in
  '') ;;
  --staged) list=(git diff --cached --name-only --diff-filter=ACMR) ;;
  *) echo "usage: scripts/check.sh [--staged]" >&2; exit 2 ;;
esac
listed=$("${list[@]}") || { echo "check: git cannot list the files" >&2; exit 1; }
mapfile -t files < <(while read -r file; do if [ -f "$file" ]; then echo "$file"; fi; done <<<"$listed")
if [ ${#files[@]} -eq 0 ] && [ "${1-}" != --staged ]; then echo "check: no files" >&2; exit 1; fi

failures=0
skipped=0
fail() { echo "check: $*" >&2; failures=$((failures + 1)); }
skip() {  # skip REASON: leaves out a whole check, because a tool is missing; a failure if CI=true
  echo "check: SKIPPED $1" >&2
  skipped=$((skipped + 1))
  if [ "${CI-}" = true ]; then failures=$((failures + 1)); fi
}

if [ "${1-}" = --staged ]; then  # what is checked is what would be committed
  mapfile -t partly < <(comm -12 <(printf '%s\n' "${files[@]}" | sort) <(git diff --name-only | sort))
  [ ${#partly[@]} -eq 0 ] || fail "staged in part, but read whole: stage or stash the rest of ${partly[*]}"
fi

# matching REGEX: the files whose path matches.
matching() { printf '%s\n' "${files[@]}" | grep -E "$1" || true; }

# forbid REASON LINES PATHS [EXCEPT]: no line that matches LINES in files whose path matches PATHS, but not EXCEPT.
forbid() {
  local found
  found=$(matching "$3" | grep -vE "${4:-^$}" | tr '\n' '\0' | xargs -0r grep -nHIE -- "$2" || true)
  [ -z "$found" ] || fail "$1"$'\n'"$found"
}

mapfile -t sources < <(matching '\.(cpp|hpp|cu|cuh)$')
if [ ${#sources[@]} -eq 0 ]; then
  :
elif command -v clang-format >/dev/null; then
  clang-format --dry-run -Werror "${sources[@]}" || fail "format: run clang-format -i on the files above"
else
  skip "format: no clang-format (scripts/install.sh brings it)"
fi

tidy=$(command -v clang-tidy-16 || command -v clang-tidy || true)
database=build/dev/compile_commands.json
mapfile -t all_units < <(matching '\.cpp$')
mapfile -t units < <(for file in "${all_units[@]}"; do
  if grep -qsF "\"$PWD/$file\"" "$database"; then echo "$file"; fi
done)
if [ -z "$tidy" ]; then
  skip "tidy: no clang-tidy (scripts/install.sh brings it)"
elif [ ! -e "$database" ]; then
  skip "tidy: no $database (cmake --preset dev writes it)"
elif [ ${#units[@]} -eq 0 ] && [ ${#all_units[@]} -gt 0 ] && [ "${1-}" != --staged ]; then
  fail "tidy: $database lists none of the files *.cpp (cmake --preset dev writes it)"
else
  echo "check: clang-tidy reads ${#units[@]} of ${#all_units[@]} files *.cpp: those that the preset dev compiles"
fi
if [ -n "$tidy" ] && [ ${#units[@]} -gt 0 ]; then
  # One file a process; "exit 1" because xargs would stop at a crash.
  printf '%s\0' "${units[@]}" | xargs -0 -n 1 -P "$(nproc)" sh -c '"$@" || exit 1' tidy "$tidy" --quiet -p build/dev \
    2> >(grep -vE 'warnings?( and [0-9]+ errors?)? generated|treated as errors' >&2) || fail "tidy: see above"
fi

# apps -> lib -> {collectives, data} -> lib/base
up() { echo "^ *# *include *[<\"](lockstep/)?($1)/"; }
code='\.(cpp|hpp|cu|cuh|h)$'
above='apps|tests|numerics|nn|optim|distribute|train|launch'
forbid "includes: lib/base sees nothing above it" "$(up "$above|collectives|data")" "^lib/base/.*$code"
forbid "includes: collectives see lib/base alone" "$(up "$above|data")" "^collectives/.*$code"
forbid "includes: data sees lib/base alone" "$(up "$above|collectives")" "^data/.*$code"
forbid "includes: lib sees neither apps nor tests" "$(up 'apps|tests')" "^lib/.*$code"
forbid "includes: only tests see tests" "$(up tests)" "^apps/.*$code"
forbid "includes: write the path from the root" '^ *# *include *"(\.\./|lib/|collectives/|data/)' "$code"
forbid "includes: mpi.h belongs in collectives/mpi.cpp" '^ *# *include *[<"]mpi\.h' "$code" '^(collectives/mpi\.cpp|tests/)'
forbid "includes: CUDA and NCCL belong below cuda/" \
  '^ *# *include *[<"](cuda|cublas|curand|nccl|nvml|nvtx)[A-Za-z0-9_]*[./]' "$code" '(^|/)(cuda|gpu)/'
forbid "includes: spdlog belongs in apps/" '^ *# *include *[<"]spdlog/' "$code" '^apps/'

forbid "write using instead of typedef, nullptr instead of NULL" '\btypedef\b|(^|[^"])\bNULL\b' "$code"

forbid "a path of one machine" '(^|[^A-Za-z0-9_.-])/(work|farm)/' '.'

while read -r file; do
  [ "$(wc -l <"$file")" -le 600 ] || fail "$file is longer than 600 lines: does it hold one concept?"
done < <(matching '\.(cpp|hpp|cu|cuh|h|sh|py|cmake)$|CMakeLists\.txt$' | grep -v '^tests/' || true)

for folder in apps collectives data configs scripts tests lib lib/*/; do
  [ -e "${folder%/}/README.md" ] || fail "${folder%/} has no README.md"
done

echo "check: ${#files[@]} files, $failures failed, $skipped skipped"
[ "$failures" -eq 0 ]
