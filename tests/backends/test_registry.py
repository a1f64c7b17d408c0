"""Finding backends by name."""

from __future__ import annotations

import sys

import pytest

from tritonnb.backends.registry import BackendRegistry
from tritonnb.core.errors import InvalidArgumentError, UnsupportedError


def test_a_backend_is_made_once_and_told_its_settings():
    asked: list[str] = []
    registry = BackendRegistry(lambda name: asked.append(name) or {})
    assert registry.get("minimal") is registry.get("minimal")
    assert asked == ["minimal"]
    registry.finalize()


@pytest.mark.parametrize("name", ["nosuch", "Python"])
def test_an_unknown_backend_is_refused_in_tritons_words(name: str):
    with pytest.raises(InvalidArgumentError) as caught:
        BackendRegistry(lambda _: {}).get(name)
    assert str(caught.value) == (
        f"unable to find backend library for backend '{name}', try specifying runtime on the model configuration."
    )


@pytest.mark.parametrize(
    ("backend", "module", "extra"), [("onnxruntime", "onnxruntime", "onnxruntime"), ("pytorch", "torch", "torch")]
)
def test_a_missing_library_names_the_pip_command(
    monkeypatch: pytest.MonkeyPatch, backend: str, module: str, extra: str
):
    for name in ("tritonnb.backends.onnx", "tritonnb.backends.torchscript"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnsupportedError, match=f'pip install "tritonnb\\[{extra}\\]"'):
        BackendRegistry(lambda _: {}).get(backend)
