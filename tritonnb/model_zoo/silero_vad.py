"""``silero_vad``: voice activity detection with Silero's recurrent network, from the package ``silero-vad`` (MIT).

The package's wrapper stores two things between the frames of a stream: the network's state, and the last samples of the
previous frame. `write` rebuilds the ONNX file around the same network so that both are inputs and outputs with the
batch dimension first, and can be implicit state. The sample rate, an input in the package, is a constant.
"""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonnb.model_zoo.sources import package_directory

SAMPLE_RATE = 16_000
#: Number of samples in a frame of 32 ms, and of samples of the previous frame that the network also gets.
FRAME = 512
CONTEXT = 64

#: Checksum of the graph, from silero-vad 6.2.
SHA256 = "e3696830b49d76baa4997bc6a027fb1b3b0ab975da7d2f25709f52daf1d7cdd6"

_FLOATS = 1  # TensorProto.FLOAT


def frames(path: Path) -> npt.NDArray[np.float32]:
    """Read the frames of an audio file.

    Parameters
    ----------
    path : pathlib.Path
        A WAV file: 16 bit, one channel, at 16 kHz or a multiple.

    Returns
    -------
    numpy.ndarray
        FP32 of shape [n, 512]; an incomplete frame at the end is dropped.

    Raises
    ------
    ValueError
        If the file has another format.
    """
    with wave.open(str(path)) as file:
        times, remainder = divmod(file.getframerate(), SAMPLE_RATE)
        if remainder or file.getnchannels() != 1 or file.getsampwidth() != 2:
            raise ValueError(f"{path}: expected 16 bit, one channel, and a multiple of {SAMPLE_RATE} Hz")
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 2**15
    resampled: npt.NDArray[np.float32] = samples[: len(samples) // times * times].reshape(-1, times).mean(axis=1)
    return resampled[: len(resampled) // FRAME * FRAME].reshape(-1, FRAME)


def write(path: Path) -> None:
    """Write the ONNX file: AUDIO, CONTEXT and STATE to output, CONTEXT_OUT and STATE_OUT.

    Raises
    ------
    ImportError
        If ``onnx`` or ``silero-vad`` is not installed.
    """
    from onnx import helper, load_model, numpy_helper, save_model

    model = load_model(package_directory("silero_vad") / "data" / "silero_vad_16k_op15.onnx")
    graph = model.graph
    constants = {
        "sr": np.array(SAMPLE_RATE, np.int64),
        "context_begin": np.array([-CONTEXT], np.int64),
        "context_end": np.array([2**31 - 1], np.int64),
        "context_axis": np.array([1], np.int64),
    }
    before = [
        helper.make_node("Concat", ["CONTEXT", "AUDIO"], ["input"], axis=1),
        helper.make_node("Transpose", ["STATE"], ["state"], perm=[1, 0, 2]),
    ]
    after = [
        helper.make_node("Slice", ["AUDIO", "context_begin", "context_end", "context_axis"], ["CONTEXT_OUT"]),
        helper.make_node("Transpose", ["stateN"], ["STATE_OUT"], perm=[1, 0, 2]),
    ]
    nodes = [*before, *graph.node, *after]
    inputs = [_tensor(helper, "AUDIO", FRAME), _tensor(helper, "CONTEXT", CONTEXT), _tensor(helper, "STATE", 2, 128)]
    outputs = [
        _tensor(helper, "output", 1), _tensor(helper, "CONTEXT_OUT", CONTEXT), _tensor(helper, "STATE_OUT", 2, 128),
    ]  # fmt: skip
    initializers = [*graph.initializer, *(numpy_helper.from_array(array, name) for name, array in constants.items())]
    graph.CopyFrom(helper.make_graph(nodes, "silero_vad", inputs, outputs, initializers))
    save_model(model, path)


def _tensor(helper: Any, name: str, *dims: int) -> Any:
    return helper.make_tensor_value_info(name, _FLOATS, ["batch", *dims])
