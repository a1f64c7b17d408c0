"""``auto_complete_config`` of models of the Python backend, in this process and in their own processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.conftest import Complete
from tests.backends.models import PYTHON
from tests.backends.python_models import Load
from tritonnb.core.errors import InternalError


def completing(body: str) -> str:
    """A model whose ``auto_complete_config`` has this body."""
    text = "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config):\n"
    return f"{text}        {body}\n        return config\n"


@pytest.mark.parametrize(
    "body",
    [
        "config.set_max_batch_size(4.5)",
        "config.add_input(dict(name='X', data_type='FP32', dims=[1]))",
        "config.add_input(dict(name=5, data_type='TYPE_FP32', dims=[1]))",
        "config.set_model_transaction_policy(dict(decoupled='x'))",
        "config.as_dict()['unknown'] = 1",
        "config.as_dict().pop('sequence_batching')",
    ],
)
def test_invalid_completed_configuration_is_ignored(complete: Complete, tmp_path: Path, body: str) -> None:
    assert complete(tmp_path, completing(body), "sequence_batching { }") is None


def test_completed_configuration_is_read_like_any_other(complete: Complete, tmp_path: Path) -> None:
    body = (
        "config.as_dict().update(max_batch_size='8', dynamic_batching=dict(max_queue_delay_microseconds=7), name='z')"
    )
    config = complete(tmp_path, completing(body), "")
    assert config is not None
    assert (config.name, config.max_batch_size) == ("m", 8)
    assert config.dynamic_batching.max_queue_delay_microseconds == 7


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("config.add_input('x')", "TypeError: string indices must be integers"),
        ("config.add_output(dict(name=5, foo=1))", 'TypeError: can only concatenate str \\(not "int"\\) to str'),
        ("config.set_model_transaction_policy(None)", "AttributeError: 'NoneType' object has no attribute 'keys'"),
        ("raise ValueError()", "ValueError: <EMPTY MESSAGE>"),
        ("config.as_dict()['x'] = object()", "TypeError: Object of type object is not JSON serializable"),
    ],
)
def test_errors_in_auto_complete_config_have_pythons_text(
    complete: Complete, tmp_path: Path, body: str, complaint: str
) -> None:
    with pytest.raises(InternalError, match=complaint):
        complete(tmp_path, completing(body), "")


def test_auto_complete_config_fills_in_tensors_batching_and_policy(load: Load, tmp_path: Path) -> None:
    body = (
        PYTHON
        + """
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN0", "data_type": "TYPE_FP32", "dims": [4]})
        config.add_output({"name": "OUT0", "data_type": "TYPE_FP32", "dims": [4]})
        config.set_max_batch_size(16)
        config.set_dynamic_batching()
        config.set_model_transaction_policy({"decoupled": False})
        return config
"""
    )
    config = load(tmp_path, body, tensors="").config
    assert (config.max_batch_size, list(config.input[0].dims), config.output[0].name) == (16, [4], "OUT0")
    assert config.HasField("dynamic_batching")
