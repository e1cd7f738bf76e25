#!/usr/bin/env bash
# Fetches MNIST (four files, 11 MB) and checks it before anything is put in place:
#   scripts/get_mnist.sh [FOLDER]     default: mnist
# LOCKSTEP_MNIST_MIRROR=URL asks that mirror alone. The program itself downloads nothing.
set -euo pipefail

folder=${1:-mnist}
mirrors=(https://ossci-datasets.s3.amazonaws.com/mnist https://storage.googleapis.com/cvdf-datasets/mnist)
[ -z "${LOCKSTEP_MNIST_MIRROR-}" ] || mirrors=("${LOCKSTEP_MNIST_MIRROR%/}")

declare -A md5=(  # of the uncompressed files: another compression of the same bytes is as good
  [train-images-idx3-ubyte]=6bbc9ace898e44ae57da46a324031adb
  [train-labels-idx1-ubyte]=a25bea736e30d166cdddb491f175f624
  [t10k-images-idx3-ubyte]=2646ac647ad5339dbf082846283269ea
  [t10k-labels-idx1-ubyte]=27ae3e4e09519cfbb04c329615203637
)

# right FILE NAME: FILE holds the published bytes of NAME, compressed.
right() { [ "$(gzip -dc "$1" 2>/dev/null | md5sum | cut -d' ' -f1)" = "${md5[$2]}" ]; }

fetch() {  # fetch URL FILE
  if command -v curl >/dev/null; then
    curl --fail --silent --show-error --location --connect-timeout 10 --max-time 300 --output "$2" "$1"
  elif command -v wget >/dev/null; then
    wget --quiet --timeout=10 --tries=1 --output-document="$2" "$1"
  else
    echo "get_mnist: neither curl nor wget is here (scripts/install.sh brings curl)" >&2
    return 1
  fi
}

by_hand() {
  echo "get_mnist: could not fetch $1.gz from ${mirrors[*]}" >&2
  echo "Copy these files into $folder/ by hand and run this script again; it only checks what is there:" >&2
  for name in "${!md5[@]}"; do echo "  $name.gz   uncompressed MD5 ${md5[$name]}" >&2; done
  echo "Or train on the built-in data: lockstep train --data synthetic" >&2
  exit 1
}

mkdir -p "$folder"
temporary=$(mktemp -d "$folder/.fetch.XXXXXX")
trap 'rm -rf "$temporary"' EXIT

fetched=0
for name in "${!md5[@]}"; do
  if [ -e "$folder/$name.gz" ]; then
    right "$folder/$name.gz" "$name" && continue
    echo "get_mnist: $folder/$name.gz is not the published file: fetching it anew" >&2
  fi
  for mirror in "${mirrors[@]}"; do
    fetch "$mirror/$name.gz" "$temporary/$name.gz" || continue
    right "$temporary/$name.gz" "$name" && break
    echo "get_mnist: $mirror/$name.gz has the wrong checksum" >&2
  done
  right "$temporary/$name.gz" "$name" || by_hand "$name"
  mv "$temporary/$name.gz" "$folder/"
  fetched=$((fetched + 1))
done
echo "get_mnist: $folder holds MNIST ($fetched files fetched, $((${#md5[@]} - fetched)) there already, all verified)"
