"""Paths that a user gives: they stay the same when the working directory changes."""

from __future__ import annotations

import os
from pathlib import Path

from tritonnb.core.errors import InvalidArgumentError


def fixed_path(path: str | os.PathLike[str]) -> Path:
    """Return an absolute path, with ``~`` expanded. Symbolic links stay, since they may be changed on purpose.

    Raises
    ------
    InvalidArgumentError
        If the path is relative, and the working directory does not exist any more.

    Examples
    --------
    >>> fixed_path("/models/../models")
    PosixPath('/models/../models')
    """
    expanded = Path(path).expanduser()
    try:
        return expanded.absolute()
    except FileNotFoundError:
        raise InvalidArgumentError(
            f"path '{path}': expected an absolute path, since the working directory does not exist any more"
        ) from None


def working_directory() -> Path:
    """Return the working directory, as an absolute path unless it does not exist any more."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path()
