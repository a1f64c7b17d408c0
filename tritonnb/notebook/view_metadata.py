"""The metadata of a batch view: sizes, delays and slots of the configuration, encoding of what is sent, colours."""

from __future__ import annotations

from tritonnb.core.json_types import Json
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.figures import palette
from tritonnb.notebook.view_encoding import ENCODING
from tritonnb.recording.sequences import slot_count
from tritonnb.scheduling.from_config import queue_delay_ns, sequence_batcher_settings


def describe_config(model: str, config: pb.ModelConfig) -> Json:
    """Return the metadata of a view of a model with this configuration; times in ms."""
    sequences = config.HasField("sequence_batching")
    batching = config.sequence_batching.oldest if sequences else config.dynamic_batching
    direct = sequences and not config.sequence_batching.HasField("oldest")
    meta = {
        "model": model,
        "encoding": ENCODING,
        "themes": palette.themes(),
        "max_batch_size": config.max_batch_size,
        "preferred": [] if direct else sorted(set(batching.preferred_batch_size)),
        "delay": queue_delay_ns(config) / 1e6,
        "priorities": 0 if sequences else config.dynamic_batching.priority_levels,
        "batcher": "sequence" if sequences else "dynamic" if config.HasField("dynamic_batching") else "none",
    }
    steps = dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step)
    if steps:
        meta["note"] = f"An ensemble has no batches of its own. Watch the models of its steps: {', '.join(steps)}."
    if sequences:
        settings = sequence_batcher_settings(config, {})
        meta |= {
            "strategy": "direct" if direct else "oldest",
            "iterative": config.sequence_batching.iterative_sequence,
            "slots": slot_count(config),
            "idle": settings.max_sequence_idle_ns / 1e6,
            "states": [f"{state.input_name} {list(state.dims)}" for state in config.sequence_batching.state],
        }
    return meta
