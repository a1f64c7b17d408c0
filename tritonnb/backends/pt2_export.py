"""`export_pt2`: compile a PyTorch module ahead of time into a model directory."""

from __future__ import annotations

import dataclasses
import inspect
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.option_types import with_checked_types
from tritonnb.model_config.write import write_text


@with_short_traceback
@with_checked_types
def export_pt2(
    module: Any,
    args: tuple[Any, ...],
    directory: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    max_batch_size: int = 0,
    inductor_configs: Mapping[str, Any] | None = None,
) -> str:
    """Compile a PyTorch module with AOTInductor, and write *1/model.pt2* and *config.pbtxt* into a model directory.

    A *config.pbtxt* with another text remains as *config.pbtxt.bak*. If it fails or is interrupted, the directory is as
    before.

    Takes from ten seconds to some minutes, and needs a C++ compiler. The archive runs on machines with the same kind
    of processor and the same version of PyTorch.

    Parameters
    ----------
    module : torch.nn.Module
        Set to evaluation mode. It may return tensors, and tuples, lists, dicts, named tuples and dataclasses of
        tensors; results that are None or an integer are not among the outputs.
    args : tuple
        Example arguments of ``forward``: tensors, or tuples, lists and dicts of tensors, all on one device.
    directory : path
        The model's directory; its last part is the name of the model.
    kwargs : mapping, optional
        Example keyword arguments.
    max_batch_size : int, optional
        If 2 or more, the first dimension of every input is the batch dimension, and can have up to this size. Otherwise
        the program accepts the shapes of the examples only.
    inductor_configs : mapping, optional
        Options of ``torch._inductor.aoti_compile_and_package``.

    Returns
    -------
    str
        The contents of *config.pbtxt*. The tensors are named by position: ``INPUT__0``, ``OUTPUT__0``.

    Raises
    ------
    InvalidArgumentError
        If an example or result is not a tensor, has a datatype that a configuration cannot have, or no batch dimension;
        nothing is compiled then.
    ImportError
        If ``torch`` is not installed.

    Examples
    --------
    >>> print(export_pt2(network, (torch.zeros(1, 4),), "models/network", max_batch_size=8))  # doctest: +SKIP
    name: "network"
    backend: "pytorch"
    platform: "torch_aoti"
    max_batch_size: 8
    input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [4] } ]
    output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [3] } ]
    dynamic_batching { }
    """
    import torch
    from torch.utils import _pytree as pytree

    if not isinstance(module, torch.nn.Module):
        raise InvalidArgumentError(f"module expected a torch.nn.Module, got {module!r}")
    if not isinstance(args, tuple | list):
        raise InvalidArgumentError(f"args expected a tuple of examples, got {type(args).__name__}: write (example,)")
    signature = inspect.signature(module.forward)
    try:
        signature.bind(*args, **(kwargs or {}))
    except TypeError as error:
        raise InvalidArgumentError(f"args, kwargs expected the arguments of forward{signature}, got {error}") from None
    batching = max_batch_size > 1
    collecting = [one.name for one in signature.parameters.values() if one.kind is one.VAR_KEYWORD]
    if batching and collecting:  # torch.export fails with an assertion about its trees
        raise InvalidArgumentError(
            f"kwargs: PyTorch exports no batch dimension for **{collecting[0]} of forward: name the parameters, or set "
            "max_batch_size=0"
        )
    examples: Any = (tuple(args), dict(kwargs or {}))
    for index, example in enumerate(pytree.tree_leaves(examples)):
        if not isinstance(example, torch.Tensor) or (batching and not example.ndim):
            raise InvalidArgumentError(
                f"input {index}: expected a tensor{' with a batch dimension' if batching else ''}, got {example!r}"
            )
    try:
        # Tried before the compilation, which takes minutes and would fail at its end.
        pytree.treespec_dumps(pytree.tree_structure(examples))
    except NotImplementedError as error:  # would be raised after the compilation
        raise InvalidArgumentError(
            f"the arguments: expected tensors, or tuples, lists and dicts of tensors, got another container: {error}"
        ) from error
    dynamic_shapes = None
    if batching:
        # PyTorch treats a dimension of size 1 as a constant.
        examples = pytree.tree_map(lambda example: torch.cat([example, example])[:_ROWS], examples)
        # One symbol for all inputs: their rows belong together.
        batch = torch.export.Dim("batch", min=1, max=max_batch_size)
        arguments, keywords = pytree.tree_map(lambda _: {0: batch}, examples)
        # By the names of the parameters: keywords may come in any order, and `*args` are one parameter.
        dynamic_shapes = dict(signature.bind(*arguments, **keywords).arguments)
    plain = _with_plain_results(module.eval())
    program = torch.export.export(plain, *examples, dynamic_shapes=dynamic_shapes)
    with torch.no_grad():
        # The module runs once for the shapes of its results; the exported program knows their rows as a symbol only.
        results = pytree.tree_leaves(plain(*examples[0], **examples[1]))
    path = Path(directory)
    inputs = pytree.tree_leaves(examples)
    text = _config_text(path.name, max_batch_size, inputs, results, _variable_dims(program))
    # Not in the model's directory: a server may watch it, and a compilation can fail or be interrupted.
    with tempfile.TemporaryDirectory() as temporary:
        archive = Path(temporary) / "model.pt2"
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(archive), inductor_configs=dict(inductor_configs or {})
        )
        _install(archive, path, text)
    return text


#: The rows of the examples of a program that batches.
_ROWS = 2


def _with_plain_results(module: Any) -> Any:
    """Return a module with the same results in tuples, lists and dicts, the containers that an archive can name."""
    import torch

    class PlainResults(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

            def forward(*args: Any, **kwargs: Any) -> Any:
                return _plain(module(*args, **kwargs), "RESULT")

            # torch.export assigns the dynamic shapes to the parameters of this signature.
            forward.__signature__ = inspect.signature(module.forward)  # type: ignore[attr-defined]
            self.forward = forward

    return PlainResults().eval()


def _plain(value: Any, name: str) -> Any:
    import torch

    # `SymInt`, since the module runs with symbolic sizes while it is exported.
    is_dense = isinstance(value, torch.Tensor) and value.layout is torch.strided
    if is_dense or isinstance(value, torch.SymInt | None) or type(value) is int:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):  # such as the outputs of transformers
        return {key: _plain(child, f"{name}[{key}]") for key, child in value.items()}
    if isinstance(value, tuple | list):  # such as named tuples, and the results of torch.topk and torch.max
        children = [_plain(child, f"{name}[{index}]") for index, child in enumerate(value)]
        return tuple(children) if isinstance(value, tuple) else children
    raise InvalidArgumentError(
        f"'{name}' of the module: expected a tensor, or tuples, lists, dicts and dataclasses of tensors, got "
        f"{value!r}; return it as a tensor, or not at all"
    )


def _install(archive: Path, directory: Path, text: str) -> None:
    """Put an archive and its configuration into a model directory; if that fails, the directory is as before."""
    version = directory / "1"
    created = [path for path in (version, directory) if not path.exists()]
    config, partial = directory / "config.pbtxt", version / ".model.pt2.partial"
    before = config.read_bytes() if config.exists() else None
    try:
        version.mkdir(parents=True, exist_ok=True)
        # Copied under another name first: a polling server must never see half an archive.
        shutil.copyfile(archive, partial)
        write_text(config, text)
        # Last: the new archive with the old configuration would be checked against the wrong tensors.
        partial.replace(version / "model.pt2")
    except BaseException:  # also KeyboardInterrupt
        partial.unlink(missing_ok=True)
        if before is not None:
            config.write_bytes(before)
        for path in created:
            shutil.rmtree(path, ignore_errors=True)
        raise


def _variable_dims(program: Any) -> list[list[bool]]:
    """Return which dims of each result of an exported program have different sizes; none for other results."""
    import torch

    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    results = [values.get(name) if isinstance(name, str) else None for name in program.graph_signature.user_outputs]
    return [[isinstance(size, torch.SymInt) for size in getattr(result, "shape", ())] for result in results]


def _config_text(
    name: str, max_batch_size: int, inputs: list[Any], outputs: list[Any], variable: list[list[bool]]
) -> str:
    from tritonnb.backends.pt2 import PT2_DTYPES

    data_types = {dtype: data_type for data_type, dtype in PT2_DTYPES.items()}
    lines = [
        f'name: "{name}"',
        'backend: "pytorch"',
        'platform: "torch_aoti"',
        f"max_batch_size: {max_batch_size}",
    ]
    tensors = [("input", index, tensor) for index, tensor in enumerate(inputs)]
    # None and integers have a position in the archive, but are no outputs.
    tensors += [("output", index, tensor) for index, tensor in enumerate(outputs) if hasattr(tensor, "dtype")]
    if len(tensors) == len(inputs):
        raise InvalidArgumentError("the result of the module: expected at least one tensor, got none")
    for kind, index, tensor in tensors:
        if kind == "output" and max_batch_size > 1 and tensor.shape[:1] != (_ROWS,):
            raise InvalidArgumentError(
                f"output {index}: expected a batch dimension of {_ROWS} rows, as the inputs have, got the shape "
                f"{list(tensor.shape)}; set max_batch_size=0"
            )
        data_type = data_types.get(tensor.dtype)
        if data_type is None:
            expected = ", ".join(map(str, data_types))
            raise InvalidArgumentError(f"{kind} {index}: expected one of {expected}, got {tensor.dtype}")
        sizes = list(tensor.shape)
        if not sizes or 0 in sizes:  # a configuration has neither, except a scalar for each row of a batch
            raise InvalidArgumentError(
                f"{kind} {index}: expected at least one dimension, of at least one element each, got the shape "
                f"{sizes}; give a scalar a dimension with tensor.reshape(1)"
            )
        if kind == "output":
            sizes = [-1 if is_variable else size for size, is_variable in zip(sizes, variable[index], strict=True)]
        dims = sizes[max_batch_size > 0 :]
        reshape = "" if dims else " reshape { }"
        lines.append(
            f'{kind} [ {{ name: "{kind.upper()}__{index}" data_type: {data_type} dims: {dims or [1]}{reshape} }} ]'
        )
    if max_batch_size > 1:
        lines.append("dynamic_batching { }")
    return "\n".join(lines) + "\n"
