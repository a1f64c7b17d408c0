"""Arguments of wrong types: a public function refuses them with an error that names the argument."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tritonnb as tnb
from tritonnb.lab.load.running_load import Load
from tritonnb.lab.load.running_sweep import Sweep

#: Values that most arguments cannot have; the first two fit none but a function.
WRONG: list[Any] = [
    object(), lambda *_: None, "x", b"x", -1, 2.5j, float("nan"), True, [1], [None], {"a": 1}, {1: []}, ("a", 1)
]  # fmt: skip
CONFIG = 'name: "m" max_batch_size: 8 dynamic_batching { }'
#: The values of a plan with one candidate.
ONE: dict[str, Any] = {
    "max_batch_size": [8], "max_queue_delay_microseconds": [0], "preferred_batch_size": [[]]
}  # fmt: skip
Call = Callable[..., Any]


@pytest.fixture(scope="module")
def server() -> Iterator[tnb.Server]:
    with tnb.Server(port=0) as started:

        @started.model(max_batch_size=8)
        def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
            return X * 2

        yield started


@pytest.fixture(scope="module")
def twin() -> Any:
    return tnb.simulate(CONFIG, tnb.poisson(300, 0.4, seed=1), tnb.jittered(tnb.linear(1, 5), sigma=0.1)).twin()


def calls(server: tnb.Server, twin: Any, folder: Path) -> dict[str, tuple[Call, dict[str, Any]]]:
    """Return functions and short valid calls, by name."""
    model, remote, rec = server["double"], tnb.connect(server.url), twin.recording
    return {
        "load": (tnb.load, {"model": model, "rate": 500, "requests": 1}),
        "load of clients": (tnb.load, {"model": server.url, "name": "double", "clients": 1, "requests": 1}),
        "sweep": (tnb.sweep, {"model": model, "rate": 500, "requests": 5, "service": tnb.fixed(1), "count": [1, 2]}),
        "service_times": (tnb.service_times, {"model": model, "sizes": [1]}),
        "simulate": (tnb.simulate, {"config": CONFIG, "arrivals": [(0, 1)], "service": tnb.fixed(1)}),
        "prompts": (tnb.prompts, {"count": 1}),
        "poisson": (tnb.poisson, {"rate": 5, "duration": 1, "seed": 1}),
        "constant": (tnb.constant, {"rate": 5, "duration": 1}),
        "bursts": (tnb.bursts, {"requests": 5, "every_ms": 9, "duration": 1}),
        "sequences": (tnb.sequences, {"lengths": [1], "every_ms": 9}),
        "fixed": (tnb.fixed, {"ms": 5}),
        "linear": (tnb.linear, {"per_row_ms": 5, "base_ms": 1}),
        "jittered": (tnb.jittered, {"service": tnb.fixed(1), "sigma": 0.1}),
        "table": (tnb.table, {"ms_of_rows": {1: 1}}),
        "measured": (tnb.measured, {"stats": model.stats()}),
        "worksheet": (tnb.worksheet, {}),
        "connect": (tnb.connect, {"url": server.url}),
        "record": (lambda **options: remote.record(**options), {}),
        "plan": (twin.plan, {"constraint": "p99 < 1 s", "rate": 100, "count": [1], **ONE}),
        "predict": (twin.predict, {}),
        "verify": (twin.verify, {"model": model, "arrivals": [(0, 1)], "rate": None}),
        "what_if": (rec.what_if, {"count": 2}),
        "blame": (rec.blame, {}),
        "to_perfetto": (rec.to_perfetto, {"path": folder / "trace.json"}),
        "to_html": (rec.to_html, {"path": folder / "page.html", "remedies": 0}),
        "save": (rec.save, {"path": folder / "rec.jsonl"}),
        "otlp_receiver": (tnb.otlp_receiver, {"port": 0}),
        "infer": (model.infer, {"X": [[1.0]]}),
        "remote infer": (remote["double"].infer, {"X": [[1.0]]}),
        "model": (server.model, {}),
        "compare": (tnb.compare, {"first": rec, "second": rec}),
        "theory": (tnb.theory, {"rec": rec}),
        "explain": (tnb.explain, {}),
    }


def finish(result: object) -> None:
    """End what a call with accepted arguments has begun."""
    if isinstance(result, (Load, Sweep)):
        result.stop()
        result.wait(timeout=60)
    elif isinstance(result, (tnb.OtlpReceiver, tnb.Remote)):
        result.close()


@pytest.mark.slow
def test_argument_of_a_wrong_type_is_refused_by_name(
    server: tnb.Server, twin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # "x" is the name of a file
    bare, unnamed = [], []
    for called, (call, valid) in calls(server, twin, tmp_path).items():
        own = inspect.signature(tnb.Remote.record if called == "record" else call).parameters.values()
        kept = [one.name for one in own if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
        for name, value in itertools.product(kept, WRONG):
            if name in ("self", "remote"):
                continue
            try:
                finish(call(**{**valid, name: value}))
            except tnb.TritonError as error:
                if value in WRONG[:2] and not (name in str(error) or called in str(error)):
                    unnamed.append((called, name, value, str(error)))
            except Exception as error:
                bare.append((called, name, value, repr(error)))
    assert bare == []
    assert unnamed == []


@pytest.mark.parametrize("kind", [list, tuple, np.array, pd.Series])
def test_numbers_of_any_ordered_collection_are_accepted(kind: Any) -> None:
    assert len(tnb.sequences(kind([2, 3]), every_ms=5)) == 5
