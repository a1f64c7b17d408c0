"""`export_pt2`: compile a PyTorch module ahead of time into a model directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.model_config.write import write_text


@with_short_traceback
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

    A *config.pbtxt* with another text remains as *config.pbtxt.bak*.

    Takes from ten seconds to some minutes, and needs a C++ compiler. The archive runs on machines with the same kind
    of processor and the same version of PyTorch.

    Parameters
    ----------
    module : torch.nn.Module
        Set to evaluation mode.
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
        If an example is not a tensor, has a datatype that a configuration cannot have, or no batch dimension.
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

    batching = max_batch_size > 1
    examples: Any = (tuple(args), dict(kwargs or {}))
    for index, example in enumerate(pytree.tree_leaves(examples)):
        if not isinstance(example, torch.Tensor) or (batching and not example.ndim):
            raise InvalidArgumentError(
                f"input {index}: expected a tensor{' with a batch dimension' if batching else ''}, got {example!r}"
            )
    dynamic_shapes = None
    if batching:
        # PyTorch treats a dimension of size 1 as a constant.
        examples = pytree.tree_map(lambda example: torch.cat([example, example])[:2], examples)
        batch = torch.export.Dim("batch", min=1, max=max_batch_size)
        arguments, keywords = pytree.tree_map(lambda _: {0: batch}, examples)
        dynamic_shapes = (*arguments, *keywords.values())
    program = torch.export.export(module.eval(), *examples, dynamic_shapes=dynamic_shapes)
    with torch.no_grad():
        results = pytree.tree_leaves(module(*examples[0], **examples[1]))
    path = Path(directory)
    text = _config_text(path.name, max_batch_size, pytree.tree_leaves(examples), results)
    (path / "1").mkdir(parents=True, exist_ok=True)
    torch._inductor.aoti_compile_and_package(
        program, package_path=str(path / "1" / "model.pt2"), inductor_configs=dict(inductor_configs or {})
    )
    write_text(path / "config.pbtxt", text)
    return text


def _config_text(name: str, max_batch_size: int, inputs: list[Any], outputs: list[Any]) -> str:
    from tritonnb.backends.device_states import DTYPES

    data_types = {dtype: data_type for data_type, dtype in DTYPES.items()}
    lines = [
        f'name: "{name}"',
        'backend: "pytorch"',
        'platform: "torch_aoti"',
        f"max_batch_size: {max_batch_size}",
    ]
    for kind, tensors in (("input", inputs), ("output", outputs)):
        for index, tensor in enumerate(tensors):
            data_type = data_types.get(tensor.dtype)
            if data_type is None:
                expected = ", ".join(map(str, data_types))
                raise InvalidArgumentError(f"{kind} {index}: expected one of {expected}, got {tensor.dtype}")
            dims = list(tensor.shape[max_batch_size > 0 :])
            reshape = "" if dims else " reshape { }"
            lines.append(
                f'{kind} [ {{ name: "{kind.upper()}__{index}" data_type: {data_type} dims: {dims or [1]}{reshape} }} ]'
            )
    if max_batch_size > 1:
        lines.append("dynamic_batching { }")
    return "\n".join(lines) + "\n"
