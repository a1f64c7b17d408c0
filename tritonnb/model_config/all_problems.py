"""All problems of a configuration at once, where Triton reports the first one.

A configuration is rejected with the first problem; an editor shows the others, too. Of several, each is a problem by
itself: it does not disappear when another one is fixed. A configuration with syntax errors is not checked further.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from tritonnb.core.errors import TritonError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.parse import parse_text
from tritonnb.model_config.tensors import check_tensors
from tritonnb.model_config.tokens import ConfigSyntaxError, Kind, Tokenizer
from tritonnb.model_config.validate import check_scheduling

#: More problems than this are not listed.
MOST = 20
_OPENING, _CLOSING = ("{", "<", "["), ("}", ">", "]")
#: Errors after which the nesting of the text is unknown, so that further errors would only be consequences.
_ABOUT_NESTING = re.compile(r'Expected "[\]}>{<]"|(?:found|got:?) "?(?:[\]}>{<\[]|"?$)')
#: A backend may complete what is missing.
_MAY_BE_COMPLETED = "must specify"
_LARGEST = 2**31 - 1


def syntax_errors(text: str) -> list[ConfigSyntaxError]:
    r"""Return the syntax errors of a configuration, in order: after each, the rest of its statement is skipped.

    Examples
    --------
    >>> for error in syntax_errors('max_batchsize: 8\nbackend: python\nname: "m"'):
    ...     print(error)
    1:14: Message type "inference.ModelConfig" has no field named "max_batchsize".
    2:10: Expected string, got: python
    """
    raw = text.encode("utf-8", "surrogateescape")
    errors: list[ConfigSyntaxError] = []
    while len(errors) < MOST:
        try:
            parse_text(raw)
        except ConfigSyntaxError as error:
            errors.append(error)
            skipped = _without_statement(raw, error)
            if skipped == raw or _ABOUT_NESTING.search(error.detail):
                break
            raw = skipped
        else:
            break
    return errors


def _without_statement(raw: bytes, error: ConfigSyntaxError) -> bytes:
    """Replace a statement by blanks, up to the end of the error's line, or of the message that contains it."""
    start = error.statement
    tokenizer = Tokenizer(raw[start:])
    first_line = 1 + raw[:start].count(b"\n")
    end, depth = start, 0
    try:
        while (token := tokenizer.next()).kind is not Kind.END:
            depth += token.text in _OPENING
            depth -= token.text in _CLOSING
            if depth < 0 or (depth == 0 and first_line - 1 + token.line > error.line and token.text not in _CLOSING):
                break
            end = start + token.end
    except ConfigSyntaxError:
        newline = raw.find(b"\n", end)
        end = len(raw) if newline < 0 else newline
    return raw[:start] + re.sub(rb"[^\n]", b" ", raw[start:end]) + raw[end:]


def violated_rules(config: pb.ModelConfig, paths: Callable[[str, Any], list[str]]) -> list[str]:
    """Return the messages of all rules that a configuration violates by itself, without its backend and files.

    Each part of the configuration is checked without the others. In the message of a batcher the field that a message
    is about is then removed, to find the next one.

    Parameters
    ----------
    config : inference.ModelConfig
        With its name.
    paths : callable
        ``paths(message, config)`` returns the fields that a message is about.
    """
    messages: list[str] = []
    for part, check in _parts(config):
        while len(messages) < MOST:
            try:
                check(part)
                break
            except TritonError as error:
                if error.message not in messages and _MAY_BE_COMPLETED not in error.message:
                    messages.append(error.message)
                if not _remove_first(part, paths(error.message, part)):
                    break
    return messages


def _parts(config: pb.ModelConfig) -> Iterator[tuple[pb.ModelConfig, Callable[[Any], None]]]:
    """Parts that have their own rules, each in a configuration of its own, with the function that checks them."""
    limited = pb.ModelConfig(name=config.name, max_batch_size=config.max_batch_size)
    yield limited, check_scheduling
    # Rules that compare with an invalid limit would only repeat that it is invalid.
    size = config.max_batch_size if config.max_batch_size >= 0 else _LARGEST
    for name in ("dynamic_batching", "sequence_batching"):
        if config.HasField(name):
            part = pb.ModelConfig(name=config.name, max_batch_size=size)
            getattr(part, name).CopyFrom(getattr(config, name))
            yield part, check_scheduling
    for name in ("input", "output"):
        for tensor in getattr(config, name):
            part = pb.ModelConfig(name=config.name, max_batch_size=size, platform=config.platform)
            getattr(part, name).append(tensor)
            yield part, check_tensors


def _remove_first(config: pb.ModelConfig, paths: list[str]) -> bool:
    """Remove the first of the fields that a batcher has; return whether there was one."""
    for path in paths:
        if "[" in path:  # a tensor: the rules about it end with the first violation
            continue
        *parents, name = path.split(".")
        message: Any = config
        for parent in parents:
            message = getattr(message, parent)
        if parents and any(field.name == name for field, _ in message.ListFields()):
            message.ClearField(name)
            return True
    return False
