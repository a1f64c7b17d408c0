#!/bin/sh
# Run the tests of C++ backends with AddressSanitizer and UndefinedBehaviorSanitizer: tools/sanitize_native.sh [PYTEST OPTIONS]
#
# A copy of the package, without its compiled parts, compiles the shim and the backends of the tests with the sanitizers. Leaks are
# not reported, since the interpreter has some. PYTHON names the interpreter of an environment with the package's dependencies.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for part in tritonnb tests tools pyproject.toml model_repository; do cp -r "$root/$part" "$scratch"; done
find "$scratch/tritonnb" -name '*.so' -delete

export CXXFLAGS="-g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"
export XDG_CACHE_HOME="$scratch/cache"
# Triton's repeat backend frees arrays with `delete` (its unique_ptr<int32_t> holds new int32_t[]).
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:alloc_dealloc_mismatch=0
export UBSAN_OPTIONS=print_stacktrace=1
export PYTHONPATH="$scratch" PYTHONMALLOC=malloc
compiler=${CXX:-g++}
cd "$scratch"
LD_PRELOAD="$($compiler -print-file-name=libasan.so) $($compiler -print-file-name=libubsan.so) $($compiler -print-file-name=libstdc++.so)" \
    nice -n 10 "${PYTHON:-$root/.venv/bin/python}" -m pytest tests/backends/native --timeout 900 "$@"
