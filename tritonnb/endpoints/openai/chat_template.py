"""The prompt of a chat: by the Jinja2 template in the model's directory, or one line for each message."""

from __future__ import annotations

import functools
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tritonnb.core.json_types import Json
from tritonnb.endpoints.openai.errors import OpenAiError

#: The name that Hugging Face uses; it is searched for in the version directory, then in that of the model.
FILE_NAME = "chat_template.jinja"
_ROLES = {"developer": "System", "system": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}


def chat_prompt(directories: tuple[Path, ...], messages: list[Json]) -> str:
    """The prompt that a model completes with the next message of the assistant.

    Parameters
    ----------
    directories : tuple of pathlib.Path
        Where the template may be, in the order of the search.
    messages : list of dict
        With the keys ``role`` and ``content``, which is a string.

    Raises
    ------
    OpenAiError
        If the template fails, which it does on purpose for messages that the model was not trained for.

    Examples
    --------
    >>> print(chat_prompt((), [{"role": "user", "content": "Hello"}]))
    User: Hello
    Assistant:
    """
    path = next((directory / FILE_NAME for directory in directories if (directory / FILE_NAME).is_file()), None)
    if path is None:
        return "".join(f"{_ROLES[message['role']]}: {message['content']}\n" for message in messages) + "Assistant:"
    return _rendered(path, messages)


def _rendered(path: Path, messages: list[Json]) -> str:
    try:
        from jinja2 import TemplateError
    except ImportError:
        raise OpenAiError(
            f"{path} expected the package jinja2, which is not installed: pip install 'tritonnb[openai]'",
            status=HTTPStatus.NOT_IMPLEMENTED,
        ) from None
    try:
        template = _compiled(path, path.stat().st_mtime_ns)
        return str(template.render(messages=messages, add_generation_prompt=True))
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise OpenAiError(f"the chat template of the model failed: {error}", "messages") from None


@functools.lru_cache(maxsize=64)
def _compiled(path: Path, changed_ns: int) -> Any:
    """The template in a file, which is read again when it changes; it cannot run code of its own."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(path.read_text(encoding="utf-8"))
