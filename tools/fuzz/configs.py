"""Model configurations, as text and as JSON."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.fuzz.targets import Try
from tools.fuzz.unexpected import require
from tritonnb.core.errors import TritonError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.diagnose import diagnose
from tritonnb.model_config.load import finalize_config, load_config
from tritonnb.model_config.normalize import with_instance_groups
from tritonnb.model_config.parse import ConfigSyntaxError, parse_text
from tritonnb.model_config.schema import ModelSpec


@contextmanager
def configurations() -> Iterator[Try]:
    """Read the text of a *config.pbtxt*, or JSON if it begins with a brace."""
    with tempfile.TemporaryDirectory(prefix="tritonnb-fuzz-") as scratch:
        directory = Path(scratch, "m")
        (directory / "1").mkdir(parents=True)
        (directory / "1" / "model.onnx").touch()
        file = directory / "config.pbtxt"

        def check(config: pb.ModelConfig) -> None:
            finalize_config(with_instance_groups(config, gpus=(), default_instance_count=lambda kind: 1), directory)

        def run(data: bytes) -> None:
            text = data.decode("utf-8", "surrogateescape")
            is_json = text.startswith("{")
            if not is_json:
                file.write_bytes(data)
                _parse(data, text)
                diagnose(text, check, "m")
            try:
                loaded = load_config(directory, "m", override=text if is_json else None)
                check(loaded.config)
                ModelSpec.from_config(loaded.config)
            except TritonError:
                return

        yield run


def _parse(data: bytes, text: str) -> None:
    """Parse a configuration; the position of every problem must be inside of it."""
    try:
        parsed = parse_text(data)
    except ConfigSyntaxError:
        return
    lines = text.count("\n") + 1
    require(all(1 <= line <= lines for line, _ in parsed.positions.values()), "a position is outside of the text")
