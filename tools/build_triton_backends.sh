#!/bin/sh
# Build the backends minimal, recommended, identity, square and repeat, and two batching libraries, from unmodified
# checkouts of their repositories with g++ alone:
#
#     tools/build_triton_backends.sh CHECKOUTS OUT
#
# CHECKOUTS has the folders core, common, backend, identity_backend, square_backend and repeat_backend of
# github.com/triton-inference-server. OUT becomes a backend directory: OUT/<name>/libtriton_<name>.so. The RapidJSON headers must
# be installed (Debian: rapidjson-dev).
set -eu

if [ $# -ne 2 ]; then
    sed -n 's/^# \{0,1\}//; 2,8p' "$0" >&2
    exit 2
fi
checkouts=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
objects=$out/.objects
mkdir -p "$objects"
compiler=${CXX:-g++}
flags="-std=c++17 -O1 -fPIC -w -I$checkouts/backend/include -I$checkouts/core/include -I$checkouts/common/include"

# The libraries that all backends share, once.
for source in "$checkouts"/backend/src/backend_*.cc "$checkouts/common/src/async_work_queue.cc" \
    "$checkouts/common/src/error.cc" "$checkouts/common/src/thread_pool.cc"; do
    object=$objects/$(basename "$source" .cc).o
    if [ ! "$object" -nt "$source" ]; then
        # shellcheck disable=SC2086
        $compiler $flags -DTRITON_ENABLE_STATS -c "$source" -o "$object"
    fi
done

# As for a build with Triton's CMake files, the backends need a library with the name libtritonserver.so.
echo '' | $compiler -shared -fPIC -x c++ - -Wl,-soname,libtritonserver.so -o "$objects/libtritonserver.so"

build() { # name, source
    mkdir -p "$out/$1"
    # shellcheck disable=SC2086
    $compiler $flags -DTRITON_ENABLE_STATS -shared "$2" "$objects"/*.o -o "$out/$1/libtriton_$1.so" \
        -L"$objects" -Wl,--no-as-needed -ltritonserver -Wl,--as-needed -ldl -pthread
}

build minimal "$checkouts/backend/examples/backends/minimal/src/minimal.cc"
build recommended "$checkouts/backend/examples/backends/recommended/src/recommended.cc"
build identity "$checkouts/identity_backend/src/identity.cc"
build square "$checkouts/square_backend/src/square.cc"
build repeat "$checkouts/repeat_backend/src/repeat.cc"

for strategy in single volume; do
    mkdir -p "$out/batching"
    # shellcheck disable=SC2086
    $compiler $flags -shared "$checkouts/backend/examples/batching_strategies/${strategy}_batching/src/${strategy}_batching.cc" \
        -o "$out/batching/${strategy}_batching.so"
done
