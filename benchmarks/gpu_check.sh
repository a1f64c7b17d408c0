#!/usr/bin/env bash
# Runs the CUDA paths on a machine that has PyTorch with CUDA, and perhaps no package index:
#   benchmarks/gpu_check.sh --download DIRECTORY   (elsewhere) fetch the wheels that such a machine lacks
#   benchmarks/gpu_check.sh [DIRECTORY]            (there) install them beside its packages, and run the checks
# PYTHON names its interpreter. Without a GPU it says so and fails. Each check prints what it measured.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
# What tritonnb needs and PyTorch does not bring: without dependencies, so that torch and CUDA stay as they are.
wheels=(
  tornado httptools uvloop protobuf tritonclient grpcio hpack hyperframe h2 prometheus-client psutil python-rapidjson
  onnxruntime-gpu flatbuffers coloredlogs humanfriendly nvidia-ml-py cuda-bindings cuda-pathfinder
  ipywidgets jupyterlab-widgets widgetsnbextension comm traitlets anywidget psygnal typing-extensions
  matplotlib contourpy cycler fonttools kiwisolver packaging pillow pyparsing python-dateutil six
  pytest pytest-timeout iniconfig pluggy hypothesis sortedcontainers attrs onnx ml-dtypes
)

if [ "${1:-}" = --download ]; then
  directory=${2:?expected a directory for the wheels}
  "$python" -m pip download --no-deps --only-binary=:all: --python-version "${PYTHON_VERSION:-3.12}" \
    --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --dest "$directory" "${wheels[@]}"
  exit
fi

if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "gpu_check: expected a machine with PyTorch and a CUDA device, got one without: nothing was checked" >&2
  exit 1
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [ -n "${1:-}" ]; then
  "$python" -m pip install --quiet --no-index --no-deps --target "$scratch/packages" "$1"/*.whl
fi
export PYTHONPATH="$root:$scratch/packages${PYTHONPATH:+:$PYTHONPATH}"
cd "$root"

failed=0
check() {
  echo "== $1"
  shift
  "$@" || failed=1
}

check "device" "$python" -c 'import torch; print(torch.cuda.get_device_name(0), torch.version.cuda, torch.__version__)'
check "pytorch, states on the device, memory_usage, CUDA shared memory, onnxruntime" \
  "$python" -m benchmarks.gpu_paths
check "CUDA shared memory: tests" "$python" -m pytest -q tests/engine/test_cuda_memory.py
check "TorchScript at batch 1 to 64 against the bare loop" "$python" -m benchmarks gpu
exit "$failed"
