"""Writing a model's files atomically."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

#: Added to the name of a replaced file.
BACKUP = ".bak"


def write_text(path: Path, text: str) -> Path | None:
    """Replace the text of a file atomically; its permissions and line endings are kept.

    Returns
    -------
    pathlib.Path or None
        The copy of the replaced file, *NAME.bak* in the same directory, if there was a file with another text.

    Raises
    ------
    OSError
        If it cannot be written; the old file is unchanged.
    """
    old = path.read_bytes() if path.exists() else None
    if old is not None and b"\r\n" in old:
        text = text.replace("\r\n", "\n").replace("\n", "\r\n")
    new = text.encode()
    if new == old:
        return None
    mode = path.stat().st_mode & 0o7777 if old is not None else 0o644
    backup = None
    if old is not None:
        backup = path.with_name(path.name + BACKUP)
        _replace(backup, old, mode)
    _replace(path, new, mode)
    return backup


def _replace(path: Path, content: bytes, mode: int) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
