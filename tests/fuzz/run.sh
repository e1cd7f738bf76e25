#!/usr/bin/env bash
# Fuzzes every reader, from fresh seeds: tests/fuzz/run.sh SECONDS [BUILD_FOLDER]
# A reader that crashes, hangs, leaks or takes more memory than its input justifies is a failure; the input stays in
# BUILD_FOLDER/fuzz/READER. With 256 MB for the process, one allocation may have 64 MB: inputs have at most 4 kB.
set -euo pipefail
seconds=${1:?usage: tests/fuzz/run.sh SECONDS [BUILD_FOLDER]}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=$PWD/${2:-build/fuzz}
failed=0
for reader in idx csv npy tfrecord cifar picture gzip; do
  work=$build/fuzz/$reader
  rm -rf "$work/corpus"
  mkdir -p "$work/corpus"
  python3 tests/fuzz/seeds.py "$reader" "$work/corpus"
  if (cd "$work" && ASAN_OPTIONS=quarantine_size_mb=16 "$build/tests/fuzz/fuzz_$reader" -max_total_time="$seconds" -max_len=4096 -timeout=10 \
      -rss_limit_mb=256 -malloc_limit_mb=64 -print_final_stats=1 corpus >log 2>&1); then
    echo "fuzz_$reader: $(grep -oP 'number_of_executed_units: \K.*' "$work/log") inputs, peak $(grep -oP 'peak_rss_mb: *\K.*' "$work/log") MB"
  else
    echo "fuzz_$reader: FAILED, see $work/log"
    tail -n 30 "$work/log"
    failed=1
  fi
done
exit "$failed"
