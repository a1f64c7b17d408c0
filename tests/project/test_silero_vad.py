"""`silero_vad` with its two implicit states hears what the package's own loop hears."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tritonnb.model_zoo import materialize, silero_vad
from tritonnb.model_zoo.sources import package_directory
from tritonnb.server.model_handle import ModelHandle
from tritonnb.server.server import Server

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "model_repository"
#: Eight spoken words and one noise, from Debian's package alsa-utils.
RECORDINGS = sorted(Path("/usr/share/sounds/alsa").glob("*.wav"))
needs_recordings = pytest.mark.skipif(len(RECORDINGS) != 9, reason="the recordings of alsa-utils are not installed")

pytest.importorskip("silero_vad")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    materialize(EXAMPLES)
    with Server(EXAMPLES, port=0, model_control_mode="explicit", load_models=["silero_vad"]) as server:
        yield server


def official(frames: np.ndarray) -> list[float]:
    """The results of the package's wrapper, one stream at a time."""
    import torch
    from silero_vad.utils_vad import OnnxWrapper

    model = OnnxWrapper(str(package_directory("silero_vad") / "data/silero_vad.onnx"))
    return [model(torch.from_numpy(frame.copy()), silero_vad.SAMPLE_RATE).item() for frame in frames]


async def stream(model: ModelHandle, sequence_id: int, frames: np.ndarray) -> list[float]:
    """The results of the server, frame by frame."""
    heard = []
    for number, frame in enumerate(frames):
        flags: dict[str, Any] = {"sequence_start": number == 0, "sequence_end": number == len(frames) - 1}
        answer = await model.infer_async(AUDIO=frame[np.newaxis], sequence_id=sequence_id, **flags)
        heard.append(answer["output"].item())
    return heard


def hear(server: Server, recordings: list[np.ndarray]) -> list[list[float]]:
    """Several streams at once."""

    async def together() -> list[list[float]]:
        model = server["silero_vad"]
        return await asyncio.gather(
            *(stream(model, number + 1, recording) for number, recording in enumerate(recordings))
        )

    return asyncio.run(together())


def test_five_streams_in_batches_are_exactly_five_streams_alone(server: Server) -> None:
    random = np.random.default_rng(0)
    streams = [random.normal(0, 0.1, (20 + number, silero_vad.FRAME)).astype(np.float32) for number in range(5)]
    with server.record() as rec:
        heard = hear(server, streams)
    assert heard == [official(stream) for stream in streams]
    assert max(batch.size for batch in rec.batches) >= 4


@needs_recordings
def test_nine_recordings_on_eight_slots_speech_is_detected_and_noise_is_not(server: Server) -> None:
    recordings = {path.stem: silero_vad.frames(path) for path in RECORDINGS}
    heard = dict(zip(recordings, hear(server, list(recordings.values())), strict=True))
    assert heard == {name: official(frames) for name, frames in recordings.items()}
    speaking = {name: sum(probability > 0.5 for probability in probabilities) for name, probabilities in heard.items()}
    assert speaking.pop("Noise") == 0
    assert min(speaking.values()) > 20


def test_ninth_stream_waits_until_one_of_eight_ends(server: Server) -> None:
    silence = np.zeros((1, silero_vad.FRAME), np.float32)

    async def nine() -> None:
        model = server["silero_vad"]
        started = [
            model.infer_async(AUDIO=silence, sequence_id=number, sequence_start=True) for number in range(11, 19)
        ]
        await asyncio.gather(*started)
        waiting = asyncio.create_task(
            model.infer_async(AUDIO=silence, sequence_id=19, sequence_start=True, sequence_end=True)
        )
        await model.infer_async(AUDIO=silence, sequence_id=12)
        assert not waiting.done()
        ended = [model.infer_async(AUDIO=silence, sequence_id=number, sequence_end=True) for number in range(11, 19)]
        await asyncio.gather(waiting, *ended)

    asyncio.run(nine())


def test_recording_of_another_kind_is_refused(tmp_path: Path) -> None:
    import wave

    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(bytes(4 * silero_vad.FRAME))
    with pytest.raises(ValueError, match="one channel"):
        silero_vad.frames(tmp_path / "a.wav")
