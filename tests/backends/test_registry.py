"""Finding backends by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tritonnb.backends.python.backend import PythonBackend
from tritonnb.backends.registry import BackendRegistry
from tritonnb.core.errors import InvalidArgumentError, UnsupportedError


def test_directory_with_model_py_is_a_backend_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "echo").mkdir()
    (tmp_path / "echo" / "model.py").write_text("class TritonPythonModel: pass")
    registry = BackendRegistry(lambda _: {}, tmp_path)
    assert isinstance(registry.get("echo"), PythonBackend)
    assert registry.get("minimal").name == "minimal"
    with pytest.raises(InvalidArgumentError, match="unable to find backend library for backend 'other'"):
        registry.get("other")


def test_backend_is_created_once_with_its_settings() -> None:
    names: list[str] = []

    def settings_of(name: str) -> dict[str, str]:
        names.append(name)
        return {}

    registry = BackendRegistry(settings_of)
    assert registry.get("minimal") is registry.get("minimal")
    assert names == ["minimal"]
    registry.finalize()


@pytest.mark.parametrize("name", ["nosuch", "Python"])
def test_unknown_backend_is_refused_with_tritons_message(name: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        BackendRegistry(lambda _: {}).get(name)
    assert str(caught.value) == (
        f"unable to find backend library for backend '{name}', try specifying runtime on the model configuration."
    )


@pytest.mark.parametrize(
    ("backend", "module", "extra"),
    [
        ("fil", "treelite", "fil"),
        ("onnxruntime", "onnxruntime", "onnxruntime"),
        ("openvino", "openvino", "openvino"),
        ("pytorch", "torch", "torch"),
        ("tensorflow", "tensorflow", "tensorflow"),
        ("tensorrt", "tensorrt", "tensorrt"),
    ],
)
def test_error_for_missing_library_names_the_pip_command(
    monkeypatch: pytest.MonkeyPatch, backend: str, module: str, extra: str
) -> None:
    for name in [name for name in sys.modules if name.startswith(f"tritonnb.backends.{backend}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnsupportedError, match=f'pip install "tritonnb\\[{extra}\\]"'):
        BackendRegistry(lambda _: {}).get(backend)


def test_error_for_unsupported_triton_backend_names_an_alternative() -> None:
    with pytest.raises(UnsupportedError, match=r"backend 'dali' is not available: .*Python model"):
        BackendRegistry(lambda _: {}).get("dali")
