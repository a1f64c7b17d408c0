"""Exporting PyTorch 2 archives without the compilation: what is refused, and what a failure leaves."""

from __future__ import annotations

import collections
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import tritonnb as tnb
from tritonnb.backends.pt2 import argument_names
from tritonnb.core.errors import InvalidArgumentError

X = torch.zeros(2, 4)


class Applied(torch.nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


class Outputs(collections.OrderedDict[str, torch.Tensor]):
    """As the outputs of transformers: a class that PyTorch does not know as a container."""


class Pair(NamedTuple):
    """A named tuple that is not registered for archives."""

    a: torch.Tensor
    b: torch.Tensor


class Opaque:
    def __repr__(self) -> str:
        return "<opaque>"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The compilation writes an empty file; the paths of the packages."""
    paths: list[str] = []

    def compile_package(program: Any, *, package_path: str, inductor_configs: Any) -> str:
        paths.append(package_path)
        Path(package_path).write_bytes(b"archive")
        return package_path

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", compile_package)
    return paths


@pytest.mark.parametrize(
    ("function", "outputs"),
    [
        (lambda x: x + 1, ["OUTPUT__0"]),
        (lambda x: torch.topk(x, 2, dim=1), ["OUTPUT__0", "OUTPUT__1"]),
        (lambda x: torch.max(x, dim=1), ["OUTPUT__0", "OUTPUT__1"]),
        (lambda x: Pair(x, x + 1), ["OUTPUT__0", "OUTPUT__1"]),
        (lambda x: Outputs(logits=x * 3), ["OUTPUT__0"]),
        (lambda x: (None, x + 1, x.shape[0], 7, x * 2), ["OUTPUT__1", "OUTPUT__4"]),
        (lambda x: {"a": [x + 1, {"b": x * 2}]}, ["OUTPUT__0", "OUTPUT__1"]),
    ],
)
def test_every_container_of_tensors_is_exported(
    compiled: list[str], tmp_path: Path, function: Callable[..., Any], outputs: list[str]
) -> None:
    text = tnb.export_pt2(Applied(function), (X,), tmp_path / "m", max_batch_size=8)
    assert [line.split('"')[1] for line in text.splitlines() if line.startswith("output")] == outputs
    assert sorted(path.name for path in (tmp_path / "m").rglob("*")) == ["1", "config.pbtxt", "model.pt2"]
    assert len(compiled) == 1


class Named(torch.nn.Module):
    def forward(self, first: Any, second: Any) -> Any:
        return first + second["key"]


class Positional(torch.nn.Module):
    def forward(self, *tensors: Any) -> Any:
        return tensors[0] + tensors[1]


class Keywords(torch.nn.Module):
    def forward(self, **tensors: Any) -> Any:
        return tensors["a"] + tensors["b"]


@pytest.mark.parametrize(
    ("module", "args", "kwargs"),
    [
        (Named(), (), {"second": {"key": X}, "first": X}),
        (Named(), (X,), {"second": {"key": X}}),
        (Positional(), (X, X), {}),
    ],
)
def test_arguments_are_given_in_every_way_that_python_has(
    compiled: list[str], tmp_path: Path, module: Any, args: Any, kwargs: Any
) -> None:
    text = tnb.export_pt2(module, args, tmp_path / "m", kwargs=kwargs, max_batch_size=4)
    assert text.count("input [") == 2


@pytest.mark.parametrize(
    ("module", "args", "kwargs", "message"),
    [
        (lambda x: x, (X,), {}, "module expected a torch.nn.Module, got <function"),
        (Named(), X, {}, r"args expected a tuple of examples, got Tensor: write \(example,\)"),
        (
            Named(),
            (X,),
            {},
            r"kwargs expected the arguments of forward\(first.*, got missing a required argument",
        ),
        (Keywords(), (), {"a": X, "b": X}, r"PyTorch exports no batch dimension for \*\*tensors of forward"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    tmp_path: Path, module: Any, args: Any, kwargs: Any, message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        tnb.export_pt2(module, args, tmp_path / "m", kwargs=kwargs, max_batch_size=4)


@pytest.mark.parametrize(
    ("function", "example", "message"),
    [
        (lambda x: x, 3, "input 0: expected a tensor with a batch dimension, got 3"),
        (lambda x: x, None, "input 0: expected a tensor with a batch dimension, got None"),
        (lambda x: x, torch.zeros(2, dtype=torch.complex64), r"input 0: expected one of .*, got torch\.complex64"),
        (
            lambda x: x[0],
            Pair(X, X),
            "the arguments: expected tensors, or tuples",
        ),
        (lambda x: (x, 2.5), X, r"'RESULT\[1\]' of the module: expected a tensor, .* got 2\.5; return it as a tensor"),
        (lambda x: {"a": (x, True)}, X, r"'RESULT\[a\]\[1\]' of the module: expected a tensor"),
        (lambda x: {"a": Opaque()}, X, r"'RESULT\[a\]' of the module: expected a tensor, .* got <opaque>"),
        (lambda x: (x, "text"), X, r"'RESULT\[1\]' of the module: expected a tensor, .* got 'text'"),
        (lambda x: [], X, "the result of the module: expected at least one tensor, got none"),
        (lambda x: None, X, "the result of the module: expected at least one tensor, got none"),
        (lambda x: x.to(torch.complex64), X, r"output 0: expected one of .*, got torch\.complex64"),
        (lambda x: x.sum(), X, "output 0: expected a batch dimension of 2 rows, as the inputs have, got the shape"),
    ],
)
def test_what_cannot_be_served_is_refused_before_the_compilation(
    compiled: list[str], tmp_path: Path, function: Callable[..., Any], example: Any, message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        tnb.export_pt2(Applied(function), (example,), tmp_path / "m", max_batch_size=4)
    assert compiled == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("function", "example", "message"),
    [
        (lambda x: x.sum(), X, r"output 0: expected at least one dimension, .* got the shape \[\]; give a scalar"),
        (lambda x: x + 1, torch.tensor(1.0), r"input 0: expected at least one dimension, .* got the shape \[\]"),
        (lambda x: (x, x[:, :0]), X, r"output 1: expected at least one dimension, of at least one element each"),
    ],
)
@pytest.mark.parametrize("max_batch_size", [0, 1])
def test_shapes_that_no_configuration_has_are_refused(
    compiled: list[str], tmp_path: Path, function: Callable[..., Any], example: Any, message: str, max_batch_size: int
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        tnb.export_pt2(Applied(function), (example,), tmp_path / "m", max_batch_size=max_batch_size)
    assert compiled == []


@pytest.mark.parametrize(
    ("function", "max_batch_size", "dims"),
    [(lambda x: x @ x.T, 8, "[-1]"), (lambda x: x[x > 0], 0, "[-1]"), (lambda x: (x.shape[0], x * 2), 8, "[4]")],
)
def test_results_of_variable_size_have_variable_dims(
    compiled: list[str], tmp_path: Path, function: Callable[..., Any], max_batch_size: int, dims: str
) -> None:
    text = tnb.export_pt2(Applied(function), (X + 1,), tmp_path / "m", max_batch_size=max_batch_size)
    (output,) = [line for line in text.splitlines() if line.startswith("output")]
    assert f"dims: {dims} " in output


@pytest.mark.parametrize("error", [RuntimeError("compiler"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["compile", "config", "rename"])
def test_failed_export_leaves_the_directory_as_it_was(
    compiled: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, step: str
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    def contents() -> dict[str, bytes]:
        return {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    tnb.export_pt2(Applied(lambda x: x + 1), (X,), tmp_path / "old", max_batch_size=4)
    before = contents()
    if step == "compile":
        monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", fail)
    elif step == "config":
        monkeypatch.setattr("tritonnb.backends.pt2_export.write_text", fail)
    else:
        rename = Path.replace
        monkeypatch.setattr(
            Path, "replace", lambda path, target: fail() if path.suffix == ".partial" else rename(path, target)
        )
    for name in ("old", "new"):
        with pytest.raises(type(error)):
            tnb.export_pt2(Applied(lambda x: x + 2), (X,), tmp_path / name, max_batch_size=8)
    after = contents()
    assert {name: after[name] for name in before} == before
    assert [name for name in after.keys() - before.keys() if not name.endswith(".bak")] == []
    assert not (tmp_path / "new").exists()
    assert not Path(compiled[-1]).parent.exists()


def node(kind: str | None, context: Any = None, *children: Any) -> dict[str, Any]:
    return {"type": kind, "context": context, "children_spec": list(children)}


LEAF = node(None)


@pytest.mark.parametrize(
    ("result", "names"),
    [
        (LEAF, ["RESULT"]),
        (node("builtins.tuple", "null", LEAF, LEAF), ["RESULT[0]", "RESULT[1]"]),
        (node("collections.OrderedDict", '["b", "a"]', LEAF, LEAF), ["RESULT[b]", "RESULT[a]"]),
        (node("collections.defaultdict", {"dict_context": ["k"]}, LEAF), ["RESULT[k]"]),
        (node("collections.namedtuple", "module.Pair", LEAF, LEAF), ["RESULT[0]", "RESULT[1]"]),
        (node("module.Scores", '[["best"], ["rest"]]', LEAF), ["RESULT[best]"]),
        (node("module.Scores", '[["a", "b"], []]', LEAF, LEAF), ["RESULT[a]", "RESULT[b]"]),
        (node("collections.deque", "null", LEAF), ["RESULT[0]"]),
        (node("module.Other", '{"any": "thing"}', LEAF, LEAF), ["RESULT[0]", "RESULT[1]"]),
        (node("builtins.list", "null"), []),
        (node("builtins.dict", '["a"]', node("builtins.list", "null", LEAF, LEAF)), ["RESULT[a][0]", "RESULT[a][1]"]),
    ],
)
def test_tensors_are_named_by_their_place_in_any_container(result: Any, names: list[str]) -> None:
    arguments = node("builtins.tuple", "null", node("builtins.tuple", "null"), node("builtins.dict", "[]"))
    assert argument_names([json.dumps([1, arguments]), json.dumps([1, result])]) == ([], names)
