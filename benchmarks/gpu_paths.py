"""The CUDA paths, once each: ``python -m benchmarks.gpu_paths``; with ``--kind KIND_CPU`` what runs without a GPU.

Sequences whose states stay on the device (TorchScript and ONNX), the GPU memory of their instances in the statistics,
and tensors in CUDA shared memory.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.servers import ROOT, tritonnb
from tritonnb.server.server import Server

MODELS = {"accumulator_torchscript": ("INPUT__0", "OUTPUT__0"), "accumulator_onnx": ("INPUT", "OUTPUT")}


def check_states(server: Server, model: str) -> None:
    """Two sequences at the same time: each response is the sum of its sequence so far."""
    source, result = MODELS[model]
    total = np.zeros(2, np.int64)
    for step in range(1, 21):
        for sequence in (1, 2):
            value = step * 10**sequence
            total[sequence - 1] += value
            outputs = server[model].infer(
                {source: np.array([[value]], np.int32)},
                sequence_id=sequence,
                sequence_start=step == 1,
                sequence_end=step == 20,
            )
            got = int(outputs[result].item())
            if got != total[sequence - 1]:
                raise SystemExit(f"{model}: step {step} expected {total[sequence - 1]}, got {got}")
    print(f"{model}: 40 responses of two sequences are right")


def check_memory_usage(server: Server, model: str) -> None:
    """The statistics of an instance on a GPU contain its memory."""
    usage = server.stats(model)["model_stats"][0]["memory_usage"]
    if not any(entry["type"] == "GPU" for entry in usage):
        raise SystemExit(f"{model}: expected memory_usage of a GPU, got {usage}")
    print(f"{model}: memory_usage {usage}")


def check_shared_memory(address: str) -> None:
    """A tensor in CUDA shared memory is the one that the client wrote, and its result the one that it reads."""
    import tritonclient.http as http
    import tritonclient.utils.cuda_shared_memory as cuda

    array = np.arange(1024, dtype=np.float32).reshape(1, 1024)
    regions = [cuda.create_shared_memory_region(name, array.nbytes, 0) for name in ("input", "output")]
    cuda.set_shared_memory_region(regions[0], [array])
    with http.InferenceServerClient(address) as client:
        for name, region in zip(("input", "output"), regions, strict=True):
            client.register_cuda_shared_memory(name, cuda.get_raw_handle(region), 0, array.nbytes)
        tensor, requested = http.InferInput("INPUT0", array.shape, "FP32"), http.InferRequestedOutput("OUTPUT0")
        tensor.set_shared_memory("input", array.nbytes)
        requested.set_shared_memory("output", array.nbytes)
        client.infer("identity_fp32", [tensor], outputs=[requested])
        got = cuda.get_contents_as_numpy(regions[1], np.float32, array.shape)
        client.unregister_cuda_shared_memory()
    for region in regions:
        cuda.destroy_shared_memory_region(region)
    if not np.array_equal(got, array):
        raise SystemExit("CUDA shared memory: expected the tensor that was written, got another one")
    print("CUDA shared memory: input and output are right")


def main() -> None:
    """Run all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("KIND_GPU", "KIND_CPU"), default="KIND_GPU")
    kind = parser.parse_args().kind
    with tempfile.TemporaryDirectory() as scratch:
        for name in (*MODELS, "identity_fp32"):
            shutil.copytree(ROOT / "model_repository" / name, Path(scratch) / name)
        for name in MODELS:
            config = Path(scratch) / name / "config.pbtxt"
            config.write_text(config.read_text().replace("KIND_CPU", kind))
        with Server(Path(scratch), port=0) as server:
            for name in MODELS:
                check_states(server, name)
                if kind == "KIND_GPU":
                    check_memory_usage(server, name)
        if kind == "KIND_GPU":
            # CUDA opens a handle only in another process than the client's.
            with tritonnb(Path(scratch), "identity_fp32", options=["--allow-client-shm=true"]) as url:
                check_shared_memory(url.removeprefix("http://"))


if __name__ == "__main__":
    main()
