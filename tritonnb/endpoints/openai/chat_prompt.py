"""The prompt of a chat: by the chat template of the model, or one line for each message."""

from __future__ import annotations

from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.core.json_types import Json
from tritonnb.endpoints.openai.errors import OpenAiError, from_triton
from tritonnb.model_config.chat_template import ChatTemplate

_ROLES = {"developer": "System", "system": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}


def chat_prompt(template: ChatTemplate | None, messages: list[Json]) -> str:
    """The prompt that a model completes with the next message of the assistant.

    Parameters
    ----------
    template : ChatTemplate or None
    messages : list of dict
        With the keys ``role`` and ``content``, which is a string.

    Raises
    ------
    OpenAiError
        If the template is not valid, or fails.

    Examples
    --------
    >>> print(chat_prompt(None, [{"role": "user", "content": "Hello"}]))
    User: Hello
    Assistant:
    """
    if template is None:
        return "".join(f"{_ROLES[message['role']]}: {message['content']}\n" for message in messages) + "Assistant:"
    try:
        return template.render(messages)
    except InvalidArgumentError as error:
        raise OpenAiError(f"the chat template failed: {error.message}", "messages") from None
    except TritonError as error:
        raise from_triton(error) from None
