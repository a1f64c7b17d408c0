"""Export a model with another configuration to a model repository."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf import text_format

from tritonnb.client.address import ModelAddress
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.write import BACKUP, write_text

if TYPE_CHECKING:
    from tritonnb.server.model_handle import ModelHandle


def export(model: ModelHandle | ModelAddress, config: pb.ModelConfig, repository: str | os.PathLike[str]) -> Path:
    """Write the files of a model and its *config.pbtxt* to a model repository.

    Existing files of the same names are replaced; other files stay. The text of a replaced *config.pbtxt* remains in
    *config.pbtxt.bak*. The files of a model on another server cannot be read: only its *config.pbtxt* is written.

    Parameters
    ----------
    model : ModelHandle or ModelAddress
    config : ModelConfig
    repository : path
        Created if it does not exist.

    Returns
    -------
    pathlib.Path
        Directory of the model in the repository.

    Raises
    ------
    InvalidArgumentError
        If the model has no files, or is served from this repository.
    """
    target = Path(repository).expanduser() / model.name
    if isinstance(model, ModelAddress):
        target.mkdir(parents=True, exist_ok=True)
    else:
        _copy_files(model, target)
    write_text(target / "config.pbtxt", text_format.MessageToString(config))
    return target


def _copy_files(model: ModelHandle, target: Path) -> None:
    source = model.served.context.directory
    if not (source / str(model.served.version)).is_dir():
        raise InvalidArgumentError(
            f"model '{model.name}': export expected a model with files, got a Python function: "
            "write it as a model.py of the python backend"
        )
    if target.resolve() == source.resolve():
        raise InvalidArgumentError(
            f"model '{model.name}': export expected another repository than the served one, got '{target}': "
            "export somewhere else, or edit the configuration there"
        )
    without = shutil.ignore_patterns("__pycache__", "config.pbtxt", f"config.pbtxt{BACKUP}")
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=without)
