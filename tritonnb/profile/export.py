"""A model with another configuration, as files that Triton loads."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf import text_format

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.write import write_text

if TYPE_CHECKING:
    from tritonnb.server.model_handle import ModelHandle


def export(model: ModelHandle, config: pb.ModelConfig, repository: str | os.PathLike[str]) -> Path:
    """Write a model into a repository: its files, and *config.pbtxt*.

    What is there already is replaced file by file; other files stay.

    Parameters
    ----------
    model : ModelHandle
    config : ModelConfig
    repository : path
        Made if it is not there.

    Returns
    -------
    pathlib.Path
        The model's directory in it.

    Raises
    ------
    InvalidArgumentError
        If the model has no files, or the repository is the one that it is served from.
    """
    source = model.served.context.directory
    if not (source / str(model.served.version)).is_dir():
        raise InvalidArgumentError(
            f"model '{model.name}' is a Python function of this process and has no files to export: "
            "write it as a model.py of the python backend"
        )
    target = Path(repository).expanduser() / model.name
    if target.resolve() == source.resolve():
        raise InvalidArgumentError(
            f"'{target}' is what is being served: export somewhere else, or edit the configuration there"
        )
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "config.pbtxt"))
    write_text(target / "config.pbtxt", text_format.MessageToString(config))
    return target
