"""The chat template of a model: the Jinja2 file in its directory that makes a prompt of the messages of a chat."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonnb.core.errors import InternalError, InvalidArgumentError, TritonError, UnsupportedError
from tritonnb.core.json_types import Json
from tritonnb.core.texts import printable

#: The name that Hugging Face uses.
FILE_NAME = "chat_template.jinja"


@dataclass(frozen=True)
class ChatTemplate:
    """The template in a file, which is read again when it changes; it cannot run its own code.

    Attributes
    ----------
    path : pathlib.Path
    """

    path: Path

    @classmethod
    def find(cls, model_directory: Path, version: int) -> ChatTemplate | None:
        """Return the template of a version of a model: in the version directory, or else in that of the model."""
        paths = (directory / FILE_NAME for directory in (model_directory / str(version), model_directory))
        return next((cls(path) for path in paths if path.is_file()), None)

    def compile(self) -> Any:
        """Return the compiled template.

        Raises
        ------
        UnsupportedError
            If jinja2 is not installed.
        InternalError
            If it is not valid, with file and line.
        """
        try:
            from jinja2 import TemplateSyntaxError
        except ImportError as error:
            raise UnsupportedError(
                f"{self._place()}: expected the package jinja2, got '{error}': pip install 'tritonnb[openai]'"
            ) from None
        try:
            return _compile(self.path, self.path.stat().st_mtime_ns)
        except TemplateSyntaxError as error:
            raise InternalError(f"{self._place(error.lineno)}: {error.message}") from None
        except (OSError, UnicodeError) as error:
            raise InternalError(f"{self._place()}: {printable(error)}") from None

    def render(self, messages: Sequence[Json]) -> str:
        """Return the prompt that a model completes with the next message of the assistant.

        Parameters
        ----------
        messages : sequence of dict
            With the keys ``role`` and ``content``, which is a string.

        Raises
        ------
        UnsupportedError, InternalError
            As for `compile`.
        InvalidArgumentError
            If the template fails, which it does on purpose for messages that the model was not trained for.
        """
        template = self.compile()
        from jinja2 import TemplateError

        try:
            return str(template.render(messages=messages, add_generation_prompt=True))
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            frames = traceback.extract_tb(error.__traceback__)  # Jinja2 inserts those of the template
            lines = [frame.lineno for frame in frames if frame.filename == str(self.path)]
            raise InvalidArgumentError(f"{self._place(lines[-1] if lines else None)}: {printable(error)}") from None

    def _place(self, line: int | None = None) -> str:
        """Return the file, without the directories above that of the model, and the line."""
        directory = self.path.parent
        model = directory.parent.name + "/" if directory.name.isdigit() else ""
        return f"{model}{directory.name}/{FILE_NAME}" + (f", line {line}" if line else "")


@functools.lru_cache(maxsize=64)
def _compile(path: Path, changed_ns: int) -> Any:
    from jinja2 import FunctionLoader, TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    source = path.read_text(encoding="utf-8")
    loader = FunctionLoader(lambda name: (source, str(path), None) if name == FILE_NAME else None)  # no other files
    environment = ImmutableSandboxedEnvironment(loader=loader, trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = raise_exception
    return environment.get_template(FILE_NAME)


def find_template_problem(model_directory: Path, version: int) -> str:
    """Return the error in the chat template of a model; empty if there is no error, or no template."""
    template = ChatTemplate.find(model_directory, version)
    try:
        if template is not None:
            template.compile()
    except TritonError as error:
        return error.message
    return ""
