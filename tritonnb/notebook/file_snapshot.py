"""The content of a file, to detect changes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FileSnapshot:
    """The content of a file when it was last read; None if it could not be read."""

    text: str | None
    stamp: tuple[int, int] | None

    @classmethod
    def read(cls, path: Path | None) -> FileSnapshot:
        """Read a file."""
        try:
            assert path is not None
            status = path.stat()
            text = path.read_text("utf-8", "replace")  # universal newlines, as in a browser
            return cls(text, (status.st_mtime_ns, status.st_size))
        except (OSError, AssertionError):
            return cls(None, None)
