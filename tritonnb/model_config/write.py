"""Writing a model's files so that a reader, or a crash, finds the old text or the new one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Replace a file's text, whole or not at all; its permissions, and the way its lines end, stay.

    Raises
    ------
    OSError
        If it cannot be written; the old file is untouched.
    """
    if _ends_lines_as_windows_does(path):
        text = text.replace("\r\n", "\n").replace("\n", "\r\n")
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(path.stat().st_mode & 0o7777 if path.exists() else 0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _ends_lines_as_windows_does(path: Path) -> bool:
    try:
        return b"\r\n" in path.read_bytes()
    except OSError:
        return False
