# Sourced by tests that compare run folders.

hash_of() { grep -oP '^  "weights_hash": "\K[0-9a-f]{16}' "$1/summary.json" || echo "no hash in $1"; }
records_of() { sed 's/"seconds":[^,}]*//' "$1/metrics.jsonl"; }  # of all steps, without times
