"""Configurations that a server accepts, although nobody wants them; each is worth a line in the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tritonnb.core.protobuf import model_config_pb2 as pb


def find_oddities(config: pb.ModelConfig) -> Iterator[str]:
    """What is odd about the tensors of a complete configuration, and what to do.

    Examples
    --------
    >>> list(find_oddities(pb.ModelConfig(input=[{"name": "X"}, {"name": "X"}], output=[{"name": "Y"}])))
    ["input 'X' is declared 2 times: remove one of them, or rename it"]
    """
    for kind, result in (("input", "it gets no data"), ("output", "its responses are empty")):
        tensors = getattr(config, kind)
        if not tensors:
            yield f"the configuration has no {kind}, so that {result}: add `{kind} {{ name: … data_type: … dims: … }}`"
        for name, count in Counter(tensor.name for tensor in tensors).items():
            if count > 1:
                yield f"{kind} '{name}' is declared {count} times: remove one of them, or rename it"
